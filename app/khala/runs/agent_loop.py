"""The `LoopContext` of an agent in Python: it checks what the agent asks for, and carries it out by `RunOperations`."""

from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import get_args

import msgspec

from khala.domain.autopilot import MAX_TOOL_CALLS_PER_STEP
from khala.domain.chat import RunOptions
from khala.domain.flush_policy import replace_unstorable
from khala.domain.run_progress import RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.runs.agent_tasks import AgentOperations
from khala.runs.run_operations import RunOperations
from khala.sdk.errors import CODE, CODE_FORM, StepError
from khala.sdk.loop import EndReason, Reply
from khala.sdk.tool import as_json

MAX_OPERATIONS = 1_000
"""Steps, calls, approvals and model calls of one run."""
MAX_LOOP_OPERATIONS = 5_000
"""Operations of a loop in one call of the agent's function."""
MAX_NOTICE_CHARACTERS = 1_000
NOT_ENDED = "The calls of the last step have not ended. Call `finish_calls` before you begin the next step."


def check_step_limit(steps: Sequence[RunStep]) -> None:
    """Raise `StepError` if the run may have no further step with calls."""
    if sum(bool(step.calls) for step in steps) >= MAX_OPERATIONS:
        raise StepError(f"A run has at most {MAX_OPERATIONS:,} steps.")


class AgentLoop:
    """The operations of a loop in one run, one at a time.

    `prepare` is called before each, and raises `StepError` if the agent may do nothing now. `write` adds text.
    """

    def __init__(
        self,
        operations: RunOperations,
        active: AgentOperations,
        prepare: Callable[[], Awaitable[None]],
        write: Callable[[str], Awaitable[None]],
    ) -> None:
        self._operations = operations
        self._active = active
        self._prepare = prepare
        self._write = write
        self._count = 0

    @property
    def options(self) -> RunOptions:
        """See `LoopContext`."""
        return self._operations.options

    @property
    def steps(self) -> Sequence[RunStep]:
        """See `LoopContext`."""
        return self._operations.steps

    @property
    def notices(self) -> AbstractSet[str]:
        """See `LoopContext`."""
        return self._operations.notices

    async def text(self, text: str) -> None:
        """See `LoopContext`."""
        await self._write(text)

    async def tools(self) -> Sequence[ToolSpec]:
        """See `LoopContext`."""
        await self._begin()
        return await self._operations.tools()

    async def reply(
        self, tools: Sequence[ToolSpec] | None = None, *, instructions: str = "", prompt: str = ""
    ) -> Reply:
        """See `LoopContext`."""
        await self._begin()
        return await self._active.carry_out(
            lambda: self._operations.reply(tools, instructions=instructions, prompt=prompt), alone=True
        )

    async def begin_calls(self, calls: Sequence[ToolUse], *, max_steps: int | None = None) -> RunStep:
        """See `LoopContext`."""
        await self._begin()
        steps = self._operations.steps
        if steps and not steps[-1].ended:
            raise StepError(NOT_ENDED)
        check_step_limit(steps)
        if not 0 < len(calls) <= MAX_TOOL_CALLS_PER_STEP:
            raise StepError(f"A step has 1 to {MAX_TOOL_CALLS_PER_STEP} calls, not {len(calls):,}.")
        checked = [msgspec.structs.replace(call, args=as_json(call.args)) for call in calls]
        return await self._active.carry_out(
            lambda: self._operations.begin_calls(checked, max_steps=max_steps), alone=True
        )

    async def finish_calls(self) -> None:
        """See `LoopContext`."""
        await self._begin()
        await self._active.carry_out(self._operations.finish_calls, alone=True)

    async def notice(self, code: str, message: str) -> None:
        """See `LoopContext`."""
        await self._begin()
        if CODE.fullmatch(code) is None:
            raise StepError(f"The code of a notice has {CODE_FORM}.")
        if len(message) > MAX_NOTICE_CHARACTERS:
            raise StepError(f"A notice has at most {MAX_NOTICE_CHARACTERS:,} characters.")
        await self._operations.notice(code, replace_unstorable(message))

    def finish(self, reason: EndReason) -> None:
        """See `LoopContext`."""
        if reason not in get_args(EndReason):
            raise StepError(f"An answer finishes with one of these reasons: {', '.join(get_args(EndReason))}.")
        self._operations.finish(reason)

    async def _begin(self) -> None:
        await self._prepare()
        self._count += 1
        if self._count > MAX_LOOP_OPERATIONS:
            raise StepError(f"A loop has at most {MAX_LOOP_OPERATIONS:,} operations.")
