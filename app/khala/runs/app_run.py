"""Executes a run of an agent that is a Python function: carries out what it asks for, once.

Steps, tool calls, approvals and model calls are tool calls of the answer, so they are stored, shown, approved and
recovered as those of a model are. When a run continues, the function is called again, and its n-th call under a name
gets the stored result of the n-th one.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from pydantic_core import to_jsonable_python

from khala.blobs.blob_service import BlobService
from khala.domain.chat import Message
from khala.domain.errors import BudgetExhausted, Unavailable
from khala.domain.flush_policy import replace_unstorable
from khala.domain.fold import text_of
from khala.domain.parts import TokenUsage
from khala.domain.run_progress import RunProgress, ToolCallProgress
from khala.domain.tools import TOOL_NAME, RuleAction, ToolActor
from khala.models.port import Prompt, PromptTurn, ToolUse
from khala.runs.agent_loop import AgentLoop, check_step_limit
from khala.runs.agent_tasks import AgentOperations, end_tasks, leaves
from khala.runs.autopilot import Autopilot
from khala.runs.budget_meter import BudgetMeter
from khala.runs.model_turn import RunOutcome
from khala.runs.run_operations import RunOperations, failure_of
from khala.runs.step_tool import USAGE_OUTSIDE, StepFunction, StepTool, UsageReports, is_in_step
from khala.runs.stored_calls import FoundCall, StoredCalls
from khala.runs.stored_results import ResultReader
from khala.runs.tool_executor import ToolExecutor
from khala.sdk.agent import AppAgent, ApprovalResult, CallOutcome, ConversationTurn, RecordedCall
from khala.sdk.errors import StepError
from khala.sdk.loop import LoopContext
from khala.sdk.tool import as_json, as_result, call_function
from khala.store.runs.run_buffer import LeaseLost
from khala.tools.port import CallContext, CallResult, ToolError

log = structlog.get_logger()

MAX_TEXT_CHARACTERS = 2_000_000
"""Characters that an agent may add to an answer."""
GENERATE = "generate"
NOT_DETERMINISTIC = (
    "The agent wrote another text than before it was interrupted. What may differ from call to call belongs in a step."
)
INTERNAL_ERROR = "The agent failed with an internal error."
WRITTEN = (
    "You have already written the beginning of this answer, which ends as follows. Write what comes after it, and do "
    "not repeat it.\n\n{text}"
)
MAX_QUOTED_CHARACTERS = 4_000
"""Characters of an agent's own text that the model reads before it writes the rest."""
AFTER_ANSWER = "An agent may do nothing after `answer`."
LOOP_REPLAYS = "Only an agent with `replay=False` can use `loop`: its replies are not written again."


class AppRun:
    """The run of one agent, and the `AgentRunContext` that its function gets."""

    def __init__(
        self,
        operations: RunOperations,
        usage: UsageReports,
        *,
        progress: RunProgress,
        meter: BudgetMeter,
        tool_executor: ToolExecutor,
        blob_service: BlobService,
        actor: ToolActor,
        history: Sequence[Message],
    ) -> None:
        assert actor.run_id is not None
        self._operations = operations
        self._usage = usage
        self._progress = progress
        self._meter = meter
        self._replay = True
        self._tool_executor = tool_executor
        self._results = ResultReader(blob_service, actor.thread_id)
        self._actor = actor
        self._history = history
        self._stored_text = "".join(step.text for step in progress.steps) + progress.pending_text
        self._written = 0
        """Characters that the function has written since it was called."""
        self._stored_calls = StoredCalls(progress, actor.run_id)
        self._beginning = asyncio.Lock()
        self._active = AgentOperations()
        self._loop: LoopContext = AgentLoop(operations, self._active, self._prepare, self.text)
        self._answered: RunOutcome | None = None

    async def run(self, agent: AppAgent) -> RunOutcome:
        """Call the agent's function, until it returns, fails, or waits for a person.

        Raises `LeaseLost` and `Unavailable`.
        """
        await self._operations.tools()
        self._replay = agent.replay
        self._written = 0 if agent.replay else len(self._stored_text)
        task = asyncio.create_task(self._call(agent), name=f"agent {agent.name}")
        try:
            stopped = self._active.stopped
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return stopped.result() if stopped.done() else task.result()
        finally:
            await end_tasks({task, *self._active.tasks}, agent.name)

    async def _call(self, agent: AppAgent) -> RunOutcome:
        try:
            text = await call_function(agent.function, self)
            if text:
                await self.text(text)
        except Exception as raised:  # any error of the agent
            errors = list(leaves(raised))
            for error in errors:
                if isinstance(error, LeaseLost | Unavailable):
                    raise error from raised
            known = next((error for error in errors if isinstance(error, StepError | ToolError)), None)
            if known is None:
                log.exception("agent_crashed", agent=agent.name)
                known = StepError(INTERNAL_ERROR)
            return self._failed(known)
        return self._answered or RunOutcome("final", self._operations.reason)

    def _failed(self, error: StepError | ToolError) -> RunOutcome:
        if not isinstance(error, StepError):
            error = StepError(str(error))
        if self._meter.exhausted:
            error = StepError(str(error), code=BudgetExhausted.code)
        return failure_of(error)

    @property
    def prompt(self) -> str:
        """See `AgentRunContext`."""
        return text_of(self._history[-1].content or ())

    @property
    def messages(self) -> Sequence[Message]:
        """See `AgentRunContext`."""
        return self._history

    @property
    def user_id(self) -> str | None:
        """See `AgentRunContext`."""
        return None if self._actor.user_id is None else str(self._actor.user_id)

    @property
    def thread_id(self) -> str:
        """See `AgentRunContext`."""
        return str(self._actor.thread_id)

    @property
    def run_id(self) -> str:
        """See `AgentRunContext`."""
        return str(self._actor.run_id)

    @property
    def error_type(self) -> type[Exception]:
        """See `AgentRunContext`."""
        return StepError

    @property
    def loop(self) -> LoopContext:
        """See `AgentRunContext`."""
        if self._replay:
            raise StepError(LOOP_REPLAYS)
        return self._loop

    @property
    def history(self) -> Sequence[ConversationTurn]:
        """See `AgentRunContext`."""
        turns = (ConversationTurn(role=one.role, text=text_of(one.content or ())) for one in self._history)
        return [turn for turn in turns if turn.text]

    async def text(self, text: str) -> None:
        """See `AgentRunContext`."""
        await self._prepare()
        text = replace_unstorable(text)
        stored = self._stored_text[self._written : self._written + len(text)]
        if not text.startswith(stored):
            raise StepError(NOT_DETERMINISTIC)
        self._written += len(text)
        if self._written > MAX_TEXT_CHARACTERS:
            raise StepError(f"An answer has at most {MAX_TEXT_CHARACTERS:,} characters.")
        if new := text[len(stored) :]:
            await self._operations.text(new)

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """See `AgentRunContext`."""
        bound = inspect.signature(function).bind(*args, **kwargs)

        async def carry_out(_: dict[str, Any], __: CallContext) -> CallResult:
            result = await call_function(function, *bound.args, **bound.kwargs)
            return CallResult(output="" if result is None else as_json(result))

        shown = to_jsonable_python(dict(bound.arguments), fallback=repr)
        call = await self._carry_out(name, shown, carry_out)
        result = await self._results.read(call)
        return None if result == "" else result

    async def tool_call(
        self,
        key: str,
        name: str,
        args: dict[str, Any],
        function: Callable[[dict[str, Any]], Any],
        /,
        *,
        approve: bool = False,
    ) -> CallOutcome:
        """See `AgentRunContext`."""

        async def carry_out(approved: dict[str, Any], context: CallContext) -> CallResult:
            return await as_result(await call_function(function, approved), context)

        action: RuleAction = "ask" if approve else "allow"
        call = await self._carry_out(name, as_json(args), carry_out, action=action, key=key)
        assert call.result is not None
        try:
            return CallOutcome(output=await self._results.read(call))
        except StepError as error:
            return CallOutcome(error=str(error), denied=self._tool_executor.is_refused(call.id))

    def usage(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: str | None = None,
        milliseconds: int = 0,
    ) -> None:
        """See `AgentRunContext`."""
        if self._replay and not is_in_step():
            raise StepError(USAGE_OUTSIDE)
        usage = TokenUsage(input_tokens=input_tokens, output_tokens=output_tokens)
        self._usage.add(provider, model, usage, cost_usd, milliseconds=milliseconds)

    async def read_blocks(self) -> Sequence[str | RecordedCall]:
        """See `AgentRunContext`."""
        blocks: list[str | RecordedCall] = []
        for step in self._progress.steps:
            blocks += [step.text] if step.text else []
            for call in step.calls:
                args = await self._tool_executor.load_arguments(call)
                blocks.append(RecordedCall(id=call.id, name=call.tool, args=args, ended=call.result is not None))
        return [*blocks, self._progress.pending_text] if self._progress.pending_text else blocks

    async def call(self, tool: str, /, **args: Any) -> Any:
        """See `AgentRunContext`."""
        return await self._results.read(await self._carry_out(tool, args))

    async def approve(self, name: str, /, **arguments: Any) -> ApprovalResult:
        """See `AgentRunContext`."""

        async def carry_out(approved: dict[str, Any], _: CallContext) -> CallResult:
            return CallResult(output=approved, summary="Approved.")

        call = await self._carry_out(name, as_json(arguments), carry_out, action="ask")
        assert call.result is not None
        if not call.result.ok:
            return ApprovalResult(approved=False, arguments=arguments, reason=call.result.summary)
        return ApprovalResult(approved=True, arguments=await self._results.read(call))

    async def generate(self, prompt: str, *, instructions: str = "", max_tokens: int | None = None) -> str:
        """See `AgentRunContext`."""

        async def carry_out(_: dict[str, Any], call: CallContext) -> CallResult:
            assert call.sample is not None
            turns = (PromptTurn(role="user", text=prompt),)
            reply = await call.sample(Prompt(system=instructions, turns=turns, max_output_tokens=max_tokens))
            return CallResult(output=reply.text)

        shown = {"prompt": prompt, "instructions": instructions}
        call = await self._carry_out(GENERATE, {name: text for name, text in shown.items() if text}, carry_out)
        return str(await self._results.read(call))

    async def answer(self, *, instructions: str = "") -> None:
        """See `AgentRunContext`."""
        self._check_open()
        own_text = self._take_own_text()
        if own_text.strip():
            written = WRITTEN.format(text=own_text[-MAX_QUOTED_CHARACTERS:])
            instructions = "\n\n".join(filter(None, (instructions, written)))
        self._answered = RunOutcome("final", "stop")  # So that nothing else may be done meanwhile.
        loop = Autopilot(self._operations, instructions=instructions, earlier_steps=self._stored_calls.count)
        outcome = await self._operations.outcome_of(loop.run())
        if outcome.status == "final":
            self._answered = outcome
        else:
            await self._active.stop(outcome)

    def _take_own_text(self) -> str:
        """The text that the agent has written since the last step. What follows it was written by the loop.

        It is removed from the progress, so that the model does not continue it as text of its own.
        """
        self._operations.settle_text()
        progress = self._progress
        own = max(0, self._written - sum(len(step.text) for step in progress.steps))
        text, progress.pending_text = progress.pending_text[:own], progress.pending_text[own:]
        return text

    def _check_open(self) -> None:
        if self._answered is not None:
            raise StepError(AFTER_ANSWER)
        self._active.check()

    async def _prepare(self) -> None:
        self._check_open()
        await self._usage.check()

    async def _carry_out(
        self,
        name: str,
        args: dict[str, Any],
        function: StepFunction | None = None,
        *,
        action: RuleAction = "allow",
        key: str | None = None,
    ) -> ToolCallProgress:
        """The call that ended, now or before the run was interrupted. Without a function it is that of a tool."""
        await self._prepare()
        if TOOL_NAME.fullmatch(name) is None:
            raise StepError(
                f"{name[:100]!r} is no name: it needs 1 to 64 letters, digits, _ and -, the first a letter."
            )
        place = self._stored_calls.next_place(name)

        async def call() -> ToolCallProgress:
            # Calls begin in the order in which the function asks for them, so that they are found in this order again.
            async with self._beginning:
                stored = self._stored_calls.at(name, place) if key is None else self._stored_calls.keyed(key)
                step, call = stored or await self._begin(name, args, key)
            if call.result is None:
                if function is not None:
                    self._tool_executor.provide(call.id, StepTool(name, function), action)
                await self._operations.finish_calls(step)
            return call

        return await self._active.carry_out(call)

    async def _begin(self, name: str, args: dict[str, Any], key: str | None) -> FoundCall:
        check_step_limit(self._progress.steps)
        call_id = None if key is None else self._stored_calls.id_of(key)
        step = await self._operations.begin_calls([ToolUse(id="", name=name, args=args)], call_id=call_id)
        return FoundCall(step, step.calls[0])
