"""Executes the tool calls of one run, all calls of a step in parallel.

The start of a call is committed as a part before the call begins, and its result as soon as it ends. So after a
take-over the next executor knows which calls have ended and must not be repeated, which have not begun, and which have
an unknown outcome.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from khala.blobs.blob_service import BlobService
from khala.domain.chat import ClientFunction
from khala.domain.errors import KhalaError
from khala.domain.generation import ToolChoice, offers
from khala.domain.parts import HANDED_OVER, ToolResult
from khala.domain.plans.planner import CHANGING_TOOLS
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress
from khala.domain.tool_relevance import FIND_TOOLS, MAX_RELEVANT_TOOLS
from khala.domain.tools import RuleAction, ToolActor, ToolSpec
from khala.memory.tool_router import ToolMeanings, ToolRouter, by_words
from khala.models.port import ToolUse
from khala.runs import tool_results
from khala.runs.approval_gate import ApprovalDecisions, ApprovalGate
from khala.runs.tool_arguments import ArgumentStore, storable
from khala.runs.tool_call_recorder import ToolCallRecorder
from khala.runs.tool_questions import QUESTION_SECONDS, ToolQuestions
from khala.runs.tool_sampling import ToolSampling
from khala.runs.usage_tally import UsageTally
from khala.sdk.loading import App
from khala.store.runs.run_buffer import RunBuffer
from khala.tools import port
from khala.tools.commands import CommandRunner
from khala.tools.complete_step import CompleteStep
from khala.tools.find_tools import FindTools
from khala.tools.invocation import invoke
from khala.tools.port import Tool, ToolError
from khala.tools.tool_registry import ToolRegistry

UNKNOWN_OUTCOME = (
    "The outcome is unknown: the process that ran this was lost before it could report one. The call was not repeated, "
    "because it may have had its effect."
)

RunningCalls: TypeAlias = Mapping[asyncio.Task[None], ToolCallProgress]


class ToolDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The services that runs need.

    A request for approval expires after `approval_seconds`, and a question of a running call after `question_seconds`.
    Without a `tool_router`, the tools of a prompt are chosen by words.
    """

    tool_registry: ToolRegistry
    blob_service: BlobService
    commands: CommandRunner = msgspec.field(default_factory=lambda: CommandRunner({}))
    app: App = App()
    tool_router: ToolRouter | None = None
    approval_seconds: float = 86_400.0
    question_seconds: float = QUESTION_SECONDS

    def tool_meanings(self, payer_id: UUID) -> ToolMeanings:
        """Compares tools with texts for this user or thread."""
        return by_words if self.tool_router is None else self.tool_router.of_run(payer_id)


class ToolExecutor:
    """Executes the calls of one run.

    `find_actor` is called before each step, because a guest may have become a user meanwhile. `functions` are tools of
    the client: their calls end at once, and the client executes them. Tools that `tool_choice` excludes are not
    offered, and their calls are refused. `completes_step`: the run executes a step of a plan, and may complete
    it. Calls of a run that is not `personal` use nothing of the person's folder. `sampling` calls models for tools.
    Each step records the usage and cost of `tally`.
    """

    def __init__(
        self,
        buffer: RunBuffer,
        progress: RunProgress,
        tally: UsageTally,
        find_actor: Callable[[], Awaitable[ToolActor]],
        dependencies: ToolDependencies,
        decisions: ApprovalDecisions,
        functions: Sequence[ClientFunction] = (),
        agent_tools: Sequence[str] | None = None,
        *,
        tool_choice: ToolChoice | None = None,
        completes_step: bool = False,
        personal: bool = True,
        sampling: ToolSampling | None = None,
    ) -> None:
        self._progress = progress
        self._tally = tally
        self._find_actor = find_actor
        self._dependencies = dependencies
        self._decisions = decisions
        self._tool_choice = tool_choice
        self._functions = {function.name: function for function in functions}
        self._agent_tools = agent_tools
        self._completes_step = completes_step
        self._personal = personal
        self._sampling = sampling
        self._tools: dict[str, Tool] = {}
        self._actions: dict[str, RuleAction] = {}
        self._provided: dict[str, tuple[Tool, RuleAction]] = {}
        self._inline = tool_results.InlineAllowance()
        self._arguments = ArgumentStore(dependencies.blob_service, self._inline)
        self._recorder = ToolCallRecorder(buffer, progress, decisions.by_call_id)
        self._questions = ToolQuestions(self._recorder, decisions, dependencies.question_seconds)
        self._gate = ApprovalGate(self._recorder, decisions, dependencies.approval_seconds)

    async def offer(self, patterns: Sequence[str] | None) -> list[ToolSpec]:
        """The tools that the model may call now. The client's own tools come first.

        If there are more than a prompt gets, one of them is `find_tools`.
        """
        self._actor = await self._find_actor()
        offer = await self._dependencies.tool_registry.offer(self._actor, patterns, of_agent=self._agent_tools)
        self._tools, self._actions = offer.tools, offer.actions
        if self._completes_step:
            self._tools = {name: tool for name, tool in offer.tools.items() if name not in CHANGING_TOOLS}
            self._tools[COMPLETE_STEP], self._actions[COMPLETE_STEP] = CompleteStep(), "allow"
        if self._tool_choice is not None:
            self._tools = {name: tool for name, tool in self._tools.items() if self._is_chosen(name)}
        client_tools = [
            ToolSpec(
                name=function.name,
                description=function.description,
                parameters=function.parameters,
                source="caller",
                strict=function.strict,
            )
            for function in self._functions.values()
            if self._is_chosen(function.name)
        ]
        others = [tool.spec for tool in self._tools.values() if tool.spec.name not in self._functions]
        if len(client_tools) + len(others) <= MAX_RELEVANT_TOOLS or FIND_TOOLS in self._functions:
            return client_tools + others
        find_tools = FindTools(others, self._dependencies.tool_meanings(self._actor.owner_id))
        self._tools[FIND_TOOLS], self._actions[FIND_TOOLS] = find_tools, "allow"
        return [*client_tools, find_tools.spec, *others]

    def _is_chosen(self, name: str) -> bool:
        return offers(self._tool_choice, name)

    def provide(self, call_id: str, tool: Tool, action: RuleAction) -> None:
        """Have this tool execute the call with this id, whatever its name is, under this rule."""
        self._provided[call_id] = tool, action

    async def load_arguments(self, call: ToolCallProgress) -> dict[str, Any]:
        """The arguments of a call, which may be in a blob. Raises `ToolError`."""
        await self._arguments.load(call, self._actor)
        return call.args or {}

    def is_refused(self, call_id: str) -> bool:
        """Whether a person has denied this call, or nobody has approved it in time."""
        decision = self._decisions.by_call_id.get(call_id)
        return decision is not None and decision.state != "approved"

    def _find(self, call: ToolCallProgress) -> tuple[Tool | None, RuleAction]:
        """The tool of a call, and the treatment of the call."""
        return self._provided.get(call.id) or (self._tools.get(call.tool), self._actions.get(call.tool, "ask"))

    async def begin(
        self, uses: Sequence[ToolUse], *, max_steps: int | None = None, call_id: str | None = None
    ) -> RunStep:
        """Begin the next step with these calls, in one commit. By default, `max_steps` is the number of the step.

        A single call may get a `call_id` of the caller; others get new ones.
        """
        number = self._recorder.next_step
        uses = [storable(use) for use in uses]
        calls = [await self._arguments.create_call(number, use, self._actor, call_id) for use in uses]
        await self._recorder.committed()  # So that the following parts are one batch.
        step = self._recorder.begin_step([part for part, _ in calls], self._tally, max_steps=max_steps)
        for call, use, (_, problem) in zip(step.calls, uses, calls, strict=True):
            call.args = use.args  # The part may have only a reference to them.
            if problem is not None:
                self._recorder.fail(call, problem.message, problem.code)
        await self._recorder.committed()
        return step

    async def finish(self, step: RunStep) -> list[str]:
        """Execute the calls of the step that have not ended. Returns the ids of the calls that wait for approval.

        Calls run in parallel, and each result is added when its call ends. A call that was running when an earlier
        executor was lost is repeated only if its tool is idempotent. Otherwise it fails with an unknown outcome.
        """
        running: dict[asyncio.Task[None], ToolCallProgress] = {}
        try:
            for call in step.calls:
                if call.state == "running" and call.result is None:
                    self._recover(call)
            while True:
                for call in await self._start_ready(step, {call.id for call in running.values()}):
                    running[asyncio.create_task(self._execute(call))] = call
                if not running:
                    return [call.id for call in step.calls if call.result is None]
                await self._wait(running)
                for task in [task for task in running if task.done()]:
                    del running[task]
                    task.result()
        finally:
            await _cancel(running)

    def _recover(self, call: ToolCallProgress) -> None:
        """Requeue or fail a call whose executor was lost."""
        tool, _ = self._find(call)
        if tool is not None and tool.spec.idempotent:
            # An approved call needs no second approval: for a blocked call, the gate uses the existing decision.
            call.state = "blocked" if call.id in self._decisions.by_call_id else "queued"
        else:
            self._recorder.fail(call, UNKNOWN_OUTCOME, "unknown")

    async def _start_ready(self, step: RunStep, running: set[str]) -> list[ToolCallProgress]:
        """Commit the start of the calls that may be executed now, and return them. Others fail or wait for approval."""
        self._decisions.changed.clear()
        waiting = [call for call in step.calls if call.result is None and call.id not in running]
        ready = [call for call in waiting if await self._is_ready(call)]
        for call in ready:
            self._recorder.add(self._gate.started_status(call))
        self._decisions.awaited = any(call.state == "blocked" for call in step.calls)
        if ready:
            await self._recorder.committed()
        return ready

    async def _is_ready(self, call: ToolCallProgress) -> bool:
        try:
            await self._arguments.load(call, self._actor)
        except ToolError as error:
            self._recorder.fail(call, error.message, error.code)
            return False
        if call.tool in self._functions and self._is_chosen(call.tool) and call.id not in self._provided:
            result = ToolResult(tool_call_id=call.id, ok=True, summary=HANDED_OVER, duration_ms=0)
            self._recorder.add(result)
            return False
        tool, action = self._find(call)
        if tool is None:
            message = f"{call.tool} isn't available in this chat."
            self._recorder.fail(call, message, "not_found")
            return False
        return await self._gate.admits(call, tool, action, self._actor.user_id)

    async def _execute(self, call: ToolCallProgress) -> None:
        tool, _ = self._find(call)
        assert tool is not None  # as in `_is_ready`
        blob_service = self._dependencies.blob_service
        began = time.monotonic()
        try:
            async with blob_service.spool() as sink:
                with self._recorder.progress_reporter(call) as report:
                    context = port.CallContext(
                        id=call.id,
                        idempotency_key=call.id,
                        actor=self._actor,
                        sink=sink,
                        progress=report,
                        sample=None if self._sampling is None else self._sampling.sampler_of(call.id),
                        ask=self._questions.bound_to(call),
                        personal=self._personal,
                    )
                    result = await invoke(tool, call.args or {}, context)
                output = await tool_results.store_output(result, sink, blob_service, self._actor, self._inline)
        except KhalaError as error:
            message = f"The call may have had its effect, but its output could not be stored: {error.message}"
            output = tool_results.failed_output(message, "unknown")
        milliseconds = int((time.monotonic() - began) * 1000)
        self._recorder.end(call, output, milliseconds=milliseconds, source=tool.spec.source)

    async def _wait(self, running: RunningCalls) -> None:
        """Return when a call has ended, or a decision about one has arrived."""
        decided = asyncio.create_task(self._decisions.changed.wait())
        try:
            await asyncio.wait({*running, decided}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            decided.cancel()


async def _cancel(running: RunningCalls) -> None:
    """Cancel the running calls, and return when they have ended."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
