"""The built-in loop over a scripted run that stores nothing."""

from collections.abc import Sequence
from typing import cast

from khala.domain.chat import RunBudget, RunOptions
from khala.domain.run_progress import RunStep
from khala.domain.tools import ToolSpec
from khala.models.port import ToolUse
from khala.runs.autopilot import Autopilot
from khala.sdk.loop import EndReason, LoopContext, Reply

MAX_REPLIES = 10


class ScriptedRun:
    """A run whose model calls the same tool in each reply."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.steps: list[RunStep] = []
        self.notices: set[str] = set()
        self.texts: list[str] = []
        self.replies = 0
        self.finished: EndReason | None = None

    async def text(self, text: str) -> None:
        self.texts.append(text)

    async def tools(self) -> Sequence[ToolSpec]:
        return ()

    async def reply(
        self, tools: Sequence[ToolSpec] | None = None, *, instructions: str = "", prompt: str = ""
    ) -> Reply:
        self.replies += 1
        assert self.replies < MAX_REPLIES
        return Reply(text="", calls=[ToolUse(id="1", name="ghost", args={})], finish_reason="tool_calls")

    async def finish_calls(self) -> None:
        """Nothing to execute."""

    async def notice(self, code: str, message: str) -> None:
        self.notices.add(code)

    def finish(self, reason: EndReason) -> None:
        self.finished = reason


async def test_a_model_that_calls_tools_which_are_not_offered_is_asked_once_more() -> None:
    run = ScriptedRun(RunOptions(budget=RunBudget(tool_calls=0)))
    await Autopilot(cast("LoopContext", run)).run()
    assert (run.replies, run.finished, run.notices, len(run.texts)) == (2, "budget", {"budget"}, 1)
