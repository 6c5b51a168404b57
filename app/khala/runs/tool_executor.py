"""The hands of a run: they carry out the tools that the model calls, all of a round at once.

What a call has come to is a part before anything else happens: that it began is committed before it begins, and what it
came to as soon as it ends. So whoever takes the run over knows which calls have ended and are not to be made again,
which were never begun, and of which nobody can tell.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.domain import ids
from khala.domain.chat import ClientFunction
from khala.domain.errors import KhalaError
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import BlobRef, PartData, Step, ToolCall, ToolResult, ToolStatus, json_text
from khala.domain.run_progress import RunProgress, RunStep, ToolCallProgress
from khala.domain.tools import RuleAction, ToolActor, ToolSpec, call_digest
from khala.models.port import ToolUse
from khala.runs import tool_results
from khala.runs.call_telemetry import tool_called
from khala.runs.tool_results import StoredOutput
from khala.store.runs.writer import LeaseLost, Stream
from khala.store.tools.approvals import Approval
from khala.tools import port
from khala.tools.invocation import invoke
from khala.tools.port import Tool, ToolError
from khala.tools.tool_registry import ToolRegistry
from khala.tools.validation import arguments

log = structlog.get_logger()

INLINE_ARGS = 2048
"""Bytes of arguments that a part holds; more are kept in a blob."""
MOST_NAME = 100
"""Characters of a tool's name as a model calls it; there is no such tool, but it shows."""

PACE = 1.0
"""Seconds between two words about how far a call is."""
MOST_PROGRESS = 30
"""Such words of one call."""

UNKNOWN = (
    "The outcome is unknown: whoever ran this was lost before it could tell. It was not run again, because it may have "
    "had its effect."
)


class ToolDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """What runs work with besides models. `approval_seconds`: how long a question waits for its answer."""

    tool_registry: ToolRegistry
    blob_service: BlobService
    approval_seconds: float = 86_400.0


class ApprovalDecisions:
    """What people have said about calls of this run that wait for approval."""

    def __init__(self) -> None:
        self.asking = False
        """Whether an answer is awaited."""
        self.given: dict[str, Approval] = {}
        self.news = asyncio.Event()

    def hear(self, approvals: Mapping[str, Approval]) -> None:
        """These are the questions as they stand."""
        given = {call_id: one for call_id, one in approvals.items() if one.state != "pending"}
        if given.keys() - self.given.keys():
            self.given |= given
            self.news.set()


class ToolExecutor:
    """Carries out the calls of one run. `who` tells for whom: a guest may have become a user meanwhile."""

    def __init__(
        self,
        stream: Stream,
        progress: RunProgress,
        who: Callable[[], Awaitable[ToolActor]],
        tool_dependencies: ToolDependencies,
        answers: ApprovalDecisions,
        functions: Sequence[ClientFunction] = (),
    ) -> None:
        self._stream = stream
        self._progress = progress
        self._who = who
        self._dependencies = tool_dependencies
        self._answers = answers
        self._functions = {function.name: function for function in functions}
        self._tools: dict[str, Tool] = {}
        self._actions: dict[str, RuleAction] = {}
        self._inline = tool_results.InlineAllowance()

    async def offer(self, patterns: Sequence[str] | None) -> list[ToolSpec]:
        """The tools that the model may call now, those of the caller's own included."""
        self._actor = await self._who()
        offer = await self._dependencies.tool_registry.offered(self._actor, patterns)
        self._tools, self._actions = offer.tools, offer.actions
        own = [
            ToolSpec(name=one.name, description=one.description, parameters=one.parameters, source="caller")
            for one in self._functions.values()
        ]
        others = [tool.spec for tool in self._tools.values() if tool.spec.name not in self._functions]
        return own + others

    async def begin(self, uses: Sequence[ToolUse], *, step: int, most: int, spent: Mapping[str, Any]) -> RunStep:
        """A round of these calls begins: all of them are told at once, in one commit."""
        uses = [_storable(use) for use in uses]
        told = [await self._told(step, use) for use in uses]
        await self._stream.written()  # so that what follows is one batch
        self._say(Step(step=step, max_steps=most, tool_count=len(told), **spent))
        for part, _ in told:
            self._say(part)
        round_ = self._progress.rounds[-1]
        for call, use, (_, problem) in zip(round_.calls, uses, told, strict=True):
            call.args = use.args  # all of them, where the part holds only where they are
            if problem is not None:
                self._fail(call, *problem)
        await self._stream.written()
        return round_

    async def finish(self, round_: RunStep) -> list[str]:
        """Carry out what has not ended of the round; returns the calls for which somebody has to approve first.

        Calls run side by side and are told as they end. One that was under way when an earlier executor was lost is
        made again only if its tool says that this is harmless.
        """
        running: dict[asyncio.Task[None], ToolCallProgress] = {}
        try:
            for call in round_.calls:
                if call.state == "running" and call.result is None:
                    self._judge_lost(call)
            while True:
                for call in await self._startable(round_, {call.id for call in running.values()}):
                    running[asyncio.create_task(self._carry_out(call))] = call
                if not running:
                    return [call.id for call in round_.calls if call.result is None]
                await self._news(running)
                for task in [task for task in running if task.done()]:
                    del running[task]
                    task.result()
        finally:
            await _cancelled(running)

    async def _told(self, step: int, use: ToolUse) -> tuple[ToolCall, tuple[str, str] | None]:
        """The call's part, and if it can't be made why not: in words, and as a code."""
        call = ToolCall(tool_call_id=f"call_{ids.new().hex}", step=step, tool=use.name[:MOST_NAME])
        problem = None if use.problem is None else (use.problem, "bad_arguments")
        encoded = msgspec.json.encode(use.args)
        if len(encoded) <= INLINE_ARGS and self._inline.take(len(encoded)):
            return msgspec.structs.replace(call, args=use.args), problem
        if len(encoded) > arguments.MOST_ARGS:
            return call, (f"The arguments of a call have at most {arguments.MOST_ARGS:,} bytes.", "too_large")
        try:
            return msgspec.structs.replace(call, args_blob=await self._keep(encoded)), problem
        except KhalaError as error:
            return call, (f"The arguments could not be kept: {error.message}", "unavailable")

    async def _keep(self, data: bytes) -> BlobRef:
        assert self._actor.thread_id is not None
        async with self._dependencies.blob_service.spool() as spool:
            await spool.write(data)
            return await self._dependencies.blob_service.keep(
                spool, thread_id=self._actor.thread_id, run_id=self._actor.run_id, media_type="application/json"
            )

    def _judge_lost(self, call: ToolCallProgress) -> None:
        tool = self._tools.get(call.tool)
        if tool is not None and tool.spec.idempotent:
            # What somebody has approved of is not asked for again: as one that is blocked, it finds its answer.
            call.state = "blocked" if call.id in self._answers.given else "queued"
        else:
            self._fail(call, UNKNOWN, "unknown")

    async def _startable(self, round_: RunStep, under_way: set[str]) -> list[ToolCallProgress]:
        """The calls that are to run now, which is committed when this returns; others fail, or are asked for."""
        self._answers.news.clear()
        waiting = [call for call in round_.calls if call.result is None and call.id not in under_way]
        ready = [call for call in waiting if await self._load(call) and await self._may(call)]
        for call in ready:
            self._say(self._started(call))
        self._answers.asking = any(call.state == "blocked" for call in round_.calls)
        if ready:
            await self._stream.written()
        return ready

    async def _may(self, call: ToolCallProgress) -> bool:
        """Whether the call may run; it ends here if it never may, and is asked for if somebody has to approve."""
        if call.tool in self._functions:
            self._say(ToolResult(tool_call_id=call.id, ok=True, summary="Handed to the caller.", duration_ms=0))
            return False
        tool = self._tools.get(call.tool)
        if tool is None:
            self._fail(call, f"There is no tool {call.tool} here, or it may not be used.", "not_found")
            return False
        if call.state == "blocked":
            return self._approved(call)
        if await self._unfit(call, tool):
            return False
        match self._actions.get(call.tool, "ask"):
            case "deny":
                self._fail(call, f"The rules forbid to call {call.tool}.", "forbidden")
                return False
            case "ask":
                self._ask(call, tool)
                return False
            case _:
                return True

    async def _unfit(self, call: ToolCallProgress, tool: Tool) -> bool:
        """Whether the arguments are no good, so that nobody needs to be asked."""
        try:
            await arguments.check(tool.spec, call.args or {})
        except ToolError as problem:
            self._fail(call, problem.message, problem.code)
            return True
        return False

    def _ask(self, call: ToolCallProgress, tool: Tool) -> None:
        args = call.args or {}
        status = ToolStatus(
            tool_call_id=call.id,
            state="blocked",
            reason=f"{call.tool} needs somebody's approval.",
            digest=call_digest(call.tool, args),
            expires_at=datetime.now(UTC) + timedelta(seconds=self._dependencies.approval_seconds),
        )
        self._progress.apply(status)
        self._stream.ask(status, call.tool, args, tool.spec.parameters)

    def _approved(self, call: ToolCallProgress) -> bool:
        answer = self._answers.given.get(call.id)
        if answer is None:
            return False
        by = answer.decided_name or "somebody"
        match answer.state:
            case "approved":
                if answer.edited_args is not None:
                    call.args, call.args_blob = answer.edited_args, None
                return True
            case "denied":
                why = f": {answer.reason}" if answer.reason else "."
                self._fail(call, f"Denied by {by}{why}", "denied")
            case _:
                self._fail(call, "Nobody approved of this in time.", "expired")
        return False

    def _started(self, call: ToolCallProgress) -> ToolStatus:
        answer = self._answers.given.get(call.id)
        if answer is None:
            return ToolStatus(tool_call_id=call.id, state="running")
        reason = f"Approved by {answer.decided_name}." if answer.decided_name else "Approved."
        edited = answer.edited_args
        if edited is not None and len(msgspec.json.encode(edited)) > INLINE_ARGS:
            edited = None  # too long for a part; the receipt and the approval have them
        return ToolStatus(tool_call_id=call.id, state="running", reason=reason, args=edited)

    async def _load(self, call: ToolCallProgress) -> bool:
        """Have the arguments at hand, also those that an earlier executor put into a blob; if not, the call fails."""
        if call.args is not None or call.args_blob is None:
            return True
        try:
            kept = await self._dependencies.blob_service.find(call.args_blob.blob_id, self._actor.thread_id)
            async with self._dependencies.blob_service.read(kept) as chunks:
                data = b"".join([chunk async for chunk in chunks])
            call.args = msgspec.json.decode(data, type=dict[str, Any])
        except (KhalaError, msgspec.MsgspecError) as error:
            log.warning("arguments_lost", tool=call.tool, error=str(error))
            self._fail(call, "The arguments of this call could not be read again.", "unavailable")
            return False
        return True

    async def _carry_out(self, call: ToolCallProgress) -> None:
        tool = self._tools[call.tool]
        began = time.monotonic()
        args = call.args or {}
        try:
            async with self._dependencies.blob_service.spool() as sink:
                with self._progress_of(call) as progress:
                    about = port.CallContext(
                        id=call.id, idempotency_key=call.id, actor=self._actor, sink=sink, progress=progress
                    )
                    result = await invoke(tool, args, about)
                kept = await tool_results.store_output(
                    result, sink, self._dependencies.blob_service, self._actor, self._inline
                )
        except KhalaError as error:
            lost = f"It may have run, but what it put out could not be kept: {error.message}"
            kept = tool_results.failed_output(lost, "unknown")
        self._end(call, kept, milliseconds=int((time.monotonic() - began) * 1000), source=tool.spec.source)

    @contextmanager
    def _progress_of(self, call: ToolCallProgress) -> Iterator[Callable[[str], None]]:
        """Tells how far the call is, once a second at most; after this is closed nothing more of it is told."""
        due, left = time.monotonic(), MOST_PROGRESS

        def tell(text: str) -> None:
            nonlocal due, left
            if left and time.monotonic() >= due:
                due, left = time.monotonic() + PACE, left - 1
                with suppress(LeaseLost):  # whoever lost it is told by the stream
                    self._say(ToolStatus(tool_call_id=call.id, state="running", reason=tool_results.one_line(text)))

        try:
            yield tell
        finally:
            left = 0

    def _fail(self, call: ToolCallProgress, message: str, code: str) -> None:
        self._end(call, tool_results.failed_output(message, code), milliseconds=0, source=None)

    def _end(self, call: ToolCallProgress, kept: StoredOutput, *, milliseconds: int, source: str | None) -> None:
        answer = self._answers.given.get(call.id)
        args = call.args or {}
        facts: dict[str, Any] = {
            "tool": call.tool,
            "source": source,
            "outcome": "ok" if kept.ok else kept.code,
            "argsSha256": call_digest(call.tool, args),
            "size": kept.size,
            "durationMs": milliseconds,
        }
        if answer is not None:
            by = None if answer.decided_by is None else str(answer.decided_by)
            facts["approval"] = {"state": answer.state, "by": by, "edited": answer.edited_args is not None}
        self._stream.receipt("tool", facts, None, call.id)
        tool_called(call.tool, source, call.id, None if kept.ok else kept.code, milliseconds)
        self._say(
            ToolResult(
                tool_call_id=call.id,
                ok=kept.ok,
                summary=kept.summary,
                output=kept.output,
                blob=kept.blob,
                duration_ms=milliseconds,
            )
        )

    def _say(self, part: PartData) -> None:
        self._stream.add(part)
        self._progress.apply(part)

    async def _news(self, running: Mapping["asyncio.Task[None]", ToolCallProgress]) -> None:
        """Wait until a call ends, or somebody answers a question."""
        heard = asyncio.create_task(self._answers.news.wait())
        try:
            await asyncio.wait({*running, heard}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()


def _storable(use: ToolUse) -> ToolUse:
    """The call as it can be stored, before anybody is shown it: what is approved of is just what is run."""
    args = msgspec.json.decode(json_text(use.args), type=dict[str, Any])
    return msgspec.structs.replace(use, name=replace_unstorable(use.name), args=args)


async def _cancelled(running: Mapping["asyncio.Task[None]", ToolCallProgress]) -> None:
    """End what is under way, and don't leave before it has."""
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
