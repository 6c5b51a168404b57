"""The operations of a loop over a run: the model replies, its calls are executed, until a reply is the answer."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, Protocol, TypeAlias

import msgspec

from khala.domain.chat import RunOptions
from khala.domain.run_progress import RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse

EndReason: TypeAlias = Literal["stop", "length", "max_steps", "no_progress", "tool_calls", "budget"]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of the run's model: its text, which is part of the answer already, and the calls that it makes.

    `finish_reason` is `length` for a reply that was cut off, and `tool_calls` if there are calls.
    """

    text: str
    calls: Sequence[ToolUse] = ()
    finish_reason: Literal["stop", "length", "tool_calls"] = "stop"


class LoopContext(Protocol):
    """The part of `AgentRunContext` that a loop needs. The built-in loop uses nothing else.

    The state of a loop is what is stored: `steps`. So a loop looks at them before it goes on, and needs no other memory
    to continue where it was after an interruption.
    """

    @property
    def options(self) -> RunOptions:
        """The options of the message to answer."""
        ...

    @property
    def steps(self) -> Sequence[RunStep]:
        """The steps of the run so far: texts of the model with the calls that followed, and their results."""
        ...

    @property
    def notices(self) -> AbstractSet[str]:
        """The codes of the notices of the answer so far."""
        ...

    async def text(self, text: str) -> None:
        """Add text to the answer."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """The tools that the run is offered now, by its options, the agent, and the rules of the person who asks."""
        ...

    async def reply(
        self, tools: Sequence[ToolSpec] | None = None, *, instructions: str = "", prompt: str = ""
    ) -> Reply:
        """Let the model go on with the answer, and return its reply once it is complete. Its text is streamed.

        The model reads the conversation, what was recalled, the steps so far, and `prompt` last. It continues the text
        since the last step. It may call `tools`, by default all that are offered. `instructions` are added to those of
        the run. Budgets, receipts, retries and the next models apply, and older turns are summarised if they do not
        fit. Calls of the last step that have not ended are executed before.

        Raises `StepError` if no model gives a reply.
        """
        ...

    async def begin_calls(self, calls: Sequence[ToolUse], *, max_steps: int | None = None) -> RunStep:
        """Store these calls as the next step of the answer, in one commit. None is executed yet.

        Readers see the number of the step beside `max_steps`, by default the same number.
        """
        ...

    async def finish_calls(self) -> None:
        """Execute the calls of the last step that have not ended, side by side, as the rules allow.

        The results are stored in the step; a call that fails has one, too. If calls need approval, the run waits for a
        person once the others have ended, and holds no process meanwhile. Functions of the client end at once: the
        answer is to end then with the reason `tool_calls`, and the client executes them.
        """
        ...

    async def notice(self, code: str, message: str) -> None:
        """Add a notice for readers.

        After `reprompted`, the text since the last step is a reply that is no answer: the model reads it with the
        request to continue by itself. After `format_repair`, that text does not fit the requested format for the reason
        in `message`: the model reads both, and writes its answer again.
        """
        ...

    def finish(self, reason: EndReason) -> None:
        """Set the reason with which the answer finishes, by default that of the last reply, or `stop`."""
        ...
