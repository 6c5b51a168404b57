"""Reads the agent of a run: the version that the run began with."""

from khala.domain import agent_seeds
from khala.domain.agents import AUTO, Agent
from khala.domain.chat import StoredRunOptions
from khala.runs.model_turn import RunOutcome, failed_outcome
from khala.store.agents import agents
from khala.store.postgres.database import Database

AGENT_NOT_FOUND = "The agent of this message does not exist any more."


async def read_agent(db: Database, options: StoredRunOptions) -> Agent | RunOutcome | None:
    """The run's agent, None for the default agent. If it does not exist any more, the outcome of the run."""
    if options.agent is None or options.agent == AUTO:  # A send that chooses an agent stores its name.
        return None
    if options.agent_id is None:
        agent = agent_seeds.BY_NAME.get(options.agent)
    else:
        async with db.driver() as driver:
            agent = await agents.version(driver, options.agent_id)
    return failed_outcome("agent_not_found", AGENT_NOT_FOUND) if agent is None else agent
