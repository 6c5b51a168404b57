"""Reads the agent of a run: the version that the run began with."""

from collections.abc import Mapping, Sequence

from khala.domain import agent_seeds
from khala.domain.agents import APP_PREFIX, AUTO, COMMAND_PREFIX, Agent
from khala.domain.chat import StoredRunOptions
from khala.domain.plans.planner import PLAN_CREATE
from khala.runs.model_turn import RunOutcome, failed_outcome
from khala.sdk.agent import AppAgent
from khala.sdk.loading import App
from khala.store.agents import agents
from khala.store.postgres.database import Database
from khala.store.runs.run_queue import ClaimedRun
from khala.tools.commands import Command, find_command

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


def tools_of(agent: Agent | None, options: StoredRunOptions) -> Sequence[str] | None:
    """The patterns of the agent's tools, None for all. Any agent can make the plan of a draft."""
    if agent is None or options.draft is None:
        return None if agent is None else agent.tools
    return (*agent.tools, PLAN_CREATE)


def command_of(commands: Mapping[str, Command], claimed: ClaimedRun) -> Command | RunOutcome | None:
    """The command that executes the run, None for an agent of Khala. If there is none any more, the run's outcome."""
    name = claimed.options.agent or ""
    if not name.startswith(COMMAND_PREFIX):
        return None
    command = find_command(commands, name, guest=claimed.guest)
    return failed_outcome("agent_not_found", AGENT_NOT_FOUND) if command is None else command


def app_agent_of(app: App, claimed: ClaimedRun) -> AppAgent | RunOutcome | None:
    """The Python function that executes the run, None for another agent. If there is none any more, the outcome."""
    name = claimed.options.agent or ""
    if not name.startswith(APP_PREFIX):
        return None
    found = app.find(name, guest=claimed.guest)
    return failed_outcome("agent_not_found", AGENT_NOT_FOUND) if found is None else found
