"""Probes an agent that had reached a rate limit: whether it can be used again."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from khala.domain import agents
from khala.models import model_names
from khala.models.model_names import BadModelError, ModelRef
from khala.models.port import LanguageModel, ModelFailed, Prompt, PromptTurn
from khala.plans.step_tasks import find_agent
from khala.sdk.loading import App
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from khala.tools.commands import Command, CommandRunner, find_command
from khala.tools.commands.runner import CommandOutput

log = structlog.get_logger()

PROBE_SECONDS = 5.0
"""The longest time that a probe may take."""
PROBE_TOKENS = 16
"""The most tokens of the reply, which nobody reads. Some providers refuse a lower limit."""
QUESTION = "Reply with OK."
KILL_AFTER_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL to a command that did not answer in time."""


class AgentProbe:
    """Probes agents by a call of their model that is as short as possible."""

    def __init__(
        self,
        db: Database,
        commands: CommandRunner,
        open_model: Callable[[ModelRef], LanguageModel],
        default: ModelRef,
        app: App = App(),  # noqa: B008
    ) -> None:
        self._db = db
        self._commands = commands
        self._open_model = open_model
        self._default = default
        self._app = app

    async def probe(self, stored: StoredPlan, name: str) -> bool:
        """Whether the model or command of this agent answers within `PROBE_SECONDS`."""
        command = find_command(self._commands.commands, name, guest=stored.user_id is None)
        if command is not None:
            return await self._runs(command, stored.thread_id)
        agent = await find_agent(self._db, self._commands.commands, self._app, stored.user_id, name)
        if agent is None:
            return False
        model = agents.models_of(agent.agent)[0]
        try:
            ref = self._default if model is None else model_names.parse(model)
            async with asyncio.timeout(PROBE_SECONDS):
                return await self._answers(self._open_model(ref))
        except (BadModelError, ModelFailed, TimeoutError) as error:
            log.info("agent_probe_failed", plan_id=str(stored.id), agent=name, error=str(error))
            return False

    async def _runs(self, command: Command, thread_id: UUID) -> bool:
        output = CommandOutput(stdout=_ignore, stderr=_ignore)
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                end = await self._commands.run(
                    command, QUESTION, thread_id, output, kill_after=lambda: KILL_AFTER_SECONDS
                )
        except TimeoutError:
            return False
        return end.code == 0

    async def _answers(self, model: LanguageModel) -> bool:
        question = PromptTurn(role="user", text=QUESTION)
        prompt = Prompt(system="", turns=(question,), max_output_tokens=PROBE_TOKENS)
        async with model.stream(prompt) as events:
            async for _ in events:
                return True
        return False


async def _ignore(data: bytes) -> None:
    """Drop the output."""
