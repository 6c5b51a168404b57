"""The task of a step: its text, and the options of the run that does it."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from khala.domain import agent_seeds, agents
from khala.domain.agents import Agent
from khala.domain.chat import MAX_STEPS, RunOptions, StoredRunOptions
from khala.domain.plans.events import StepStarted
from khala.domain.plans.tasks import checkout_of, task_of
from khala.domain.program_level import STEP_LEVEL
from khala.domain.routing import DEFAULT_AGENT
from khala.sdk.loading import App
from khala.store.agents import agents as stored_agents
from khala.store.plans.plan_rows import StoredPlan
from khala.store.plans.step_runs import StepTask
from khala.store.postgres.database import Database
from khala.tools.commands import Command, find_command


class FoundAgent(msgspec.Struct, frozen=True):
    """An agent of a plan. The default agent is None, and only an agent of a user has an id of its version."""

    agent: Agent | None = None
    agent_id: UUID | None = None


async def find_agent(
    db: Database, commands: Mapping[str, Command], app: App, user_id: UUID | None, name: str
) -> FoundAgent | None:
    """The agent of this name that this user may use, or None. An own agent hides the built-in one of the same name."""
    if name == DEFAULT_AGENT:
        return FoundAgent()
    if (command := find_command(commands, name, guest=user_id is None)) is not None:
        return FoundAgent(command.agent)
    if (app_agent := app.find(name, guest=user_id is None)) is not None:
        return FoundAgent(app_agent.agent)
    if user_id is not None:
        async with db.driver() as driver:
            found = await stored_agents.find(driver, user_id, name)
        if found is not None:
            return FoundAgent(found.agent, found.id)
    seed = agent_seeds.BY_NAME.get(name)
    return None if seed is None else FoundAgent(seed)


class StepTasks:
    """Makes the tasks of steps."""

    def __init__(self, db: Database, commands: Mapping[str, Command], app: App = App()) -> None:  # noqa: B008
        self._db = db
        self._commands = commands
        self._app = app

    async def make(self, stored: StoredPlan, started: StepStarted) -> StepTask | None:
        """The task of the attempt that starts. None if its agent does not exist."""
        found = await find_agent(self._db, self._commands, self._app, stored.user_id, started.agent)
        if found is None:
            return None
        requested = RunOptions(autopilot=True, max_steps=MAX_STEPS)
        if found.agent is None:
            options = StoredRunOptions(**msgspec.structs.asdict(requested))
        else:
            options = agents.choose(requested, found.agent, found.agent_id)
        step = stored.plan.steps[started.step_id]
        options = msgspec.structs.replace(
            options, checkout=checkout_of(stored.plan, step), needs=max(options.needs, STEP_LEVEL)
        )
        return StepTask(text=task_of(stored.plan, step), options=options)
