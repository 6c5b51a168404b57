"""The context of a worker's agent: the question, and the ways to answer it durably."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar
from uuid import UUID, uuid5

from khala_client.content import TextBlock, ToolBlock
from khala_client.errors import KhalaError
from khala_client.http_core import HttpCore
from khala_client.models import Message
from khala_client.wire import encode
from khala_client.worker_parts import (
    ENDED,
    MAX_PART_BYTES,
    AgentError,
    ApprovalDenied,
    CallOutcome,
    ConversationTurn,
    RecordedCall,
    Released,
    ReplayDiverged,
    call_data,
    pieces_of,
    result_part,
    storable,
)
from khala_client.worker_wire import ClaimedAgent, ClaimedRun, DecidedApproval, NextSeqs

MAX_PARTS_PER_APPEND = 200
MAX_RECEIPTS = 64
MAX_PENDING_CHARACTERS = 1 << 20
"""Characters that wait to be sent. While there are more, `text` waits."""
RETRY_SECONDS = 0.5
"""The wait after a request that failed for now, at first."""
MAX_RETRY_SECONDS = 5.0

LOST = ("stale_epoch", "run_ended", "run_not_found", "budget_exhausted")
"""The codes of errors after which nothing can be written to the run."""

T = TypeVar("T")

_call_id: ContextVar[str | None] = ContextVar("khala_call_id", default=None)
"""The call whose function this task runs."""


class RunContext:
    """One run. Everything that it writes is stored in order, once, whatever worker, server or connection fails.

    After a worker was lost, the function is run again from its beginning. Then text that is stored already is not
    written again, and the results of steps and tools that have ended are returned without running them. A function
    that writes another text the second time ends its run, unless its agent was registered with `replay=False`: then
    nothing is skipped, and the function goes on after `written`.
    """

    def __init__(self, core: HttpCore, claimed: ClaimedRun, *, replay: bool, flush_seconds: float) -> None:
        self.run_id: UUID = claimed.run_id
        self.thread_id: UUID = claimed.thread_id
        self.agent: ClaimedAgent = claimed.agent
        self.options: dict[str, Any] = claimed.options
        self.messages: Sequence[Message] = claimed.messages
        self.taken_over = claimed.taken_over
        self.written = "".join(block.text for block in claimed.content if isinstance(block, TextBlock))
        """The text that former workers have written."""
        self.cancelled = claimed.cancelled
        """Whether somebody cancels the run. The function's task is cancelled, too."""
        self._core = core
        self.epoch = claimed.epoch
        self.lost = False
        self.released = False
        """Whether the run was given back."""
        self.ending = False
        """Whether the end is being sent. The server may have stored it, and its answer may be lost."""
        self._flush_seconds = flush_seconds
        self._replayed = 0 if replay else len(self.written)
        self._content = claimed.content
        self._calls = {block.tool_call_id: block for block in claimed.content if isinstance(block, ToolBlock)}
        self._call_counts: dict[str, int] = {}
        self._seq = claimed.next_seq
        self._receipt_seq = claimed.next_receipt
        outside = claimed.next_receipt if claimed.receipts_outside_calls is None else claimed.receipts_outside_calls
        self._skipped_receipts = outside if replay else 0
        self._texts: list[str] = []
        self._characters = 0
        self._since: float | None = None
        self._urgent = True
        self._parts: list[dict[str, Any]] = []
        self._batch: dict[str, Any] | None = None
        self._receipts: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self._sending = asyncio.Lock()
        self._decisions: dict[str, DecidedApproval] = {one.tool_call_id: one for one in claimed.approvals}
        self._decided = asyncio.Event()
        self.hold_seconds = 60.0

    @property
    def prompt(self) -> str:
        """The text of the message to answer."""
        return self.messages[-1].text if self.messages else ""

    async def text(self, text: str) -> None:
        """Add text to the answer. It is sent within the flush interval, the first text at once."""
        text = self._not_replayed(storable(text))
        if not text:
            return
        self._texts.append(text)
        self._characters += len(text)
        self._mark()
        while self._characters > MAX_PENDING_CHARACTERS:
            await self.flush()

    def usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        provider: str | None = None,
        model: str | None = None,
        cost_usd: str | None = None,
        milliseconds: int = 0,
    ) -> None:
        """Report one model call, which counts against the budgets. `cost_usd` is a decimal string.

        Without a cost, the server uses its price list. A call that a step reports belongs to the step: it is reported
        again only if the step is run again.
        """
        call_id = _call_id.get()
        if call_id is None and self._skipped_receipts:
            self._skipped_receipts -= 1
            return
        receipt = {
            "type": "model",
            "usage": {"inputTokens": input_tokens, "outputTokens": output_tokens},
            "totalMs": milliseconds,
            "provider": provider,
            "model": model,
            "costUsd": cost_usd,
            "toolCallId": call_id,
        }
        self._receipts.append({name: value for name, value in receipt.items() if value is not None})
        if self._texts or self._parts:
            self._mark()

    async def notice(self, code: str, message: str) -> None:
        """Add a notice for readers."""
        await self._append({"kind": "notice", "data": {"code": code, "message": message}})

    @property
    def error_type(self) -> type[Exception]:
        """The exception by which a function ends its run with a message for people: `AgentError`."""
        return AgentError

    @property
    def history(self) -> Sequence[ConversationTurn]:
        """The texts of `messages`. Messages without text are left out."""
        return [ConversationTurn(one.role, one.text) for one in self.messages if one.text]

    async def read_blocks(self) -> Sequence[str | RecordedCall]:
        """The texts and calls of this run that former workers have written, in order."""
        blocks: list[str | RecordedCall] = []
        for block in self._content:
            if isinstance(block, TextBlock):
                blocks.append(block.text)
            elif isinstance(block, ToolBlock):
                ended = block.state in ENDED
                blocks.append(RecordedCall(block.tool_call_id, block.tool, block.args or {}, ended=ended))
        return blocks

    async def step(self, name: str, function: Callable[..., Awaitable[T] | T], *args: Any) -> T:
        """Run the function once and return its result, which is stored. It must be JSON of at most 3,900 bytes.

        If the worker is lost before the result is stored, the function is run again.
        """
        return await self.tool(name, {}, lambda: function(*args))

    async def tool(
        self, name: str, args: dict[str, Any], function: Callable[[], Awaitable[T] | T], *, approve: bool = False
    ) -> T:
        """As `step`, for a call that readers see with its arguments. With `approve`, a person decides first.

        Raises `ApprovalDenied`. An error of the function is stored as the call's failure, and raised.
        """
        return await self._call(self._call_id(name), name, args, lambda _: function(), approve=approve)

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
        """As `tool`, for a call that has a key in this run, so that the order of calls does not matter.

        `key` may be the id that a library gives to the call, or the id of a `RecordedCall`. The function gets the
        arguments, which a person may have changed. An error of the function is stored, and returned.
        """
        call_id = key if key in self._calls else f"call_{uuid5(self.run_id, key).hex}"
        try:
            return CallOutcome(await self._call(call_id, name, args, function, approve=approve))
        except (KhalaError, ReplayDiverged):
            raise
        except Exception as error:  # noqa: BLE001  # The error of any function is the outcome of its call.
            return CallOutcome(error=str(error) or type(error).__name__, denied=isinstance(error, ApprovalDenied))

    async def _call(
        self,
        call_id: str,
        name: str,
        args: dict[str, Any],
        function: Callable[[dict[str, Any]], Awaitable[T] | T],
        *,
        approve: bool,
    ) -> T:
        before = self._calls.get(call_id)
        if before is not None and before.state == "completed":
            return before.output  # type: ignore[no-any-return]  # what the function returned before, as JSON
        if before is not None and before.state in ("failed", "cancelled"):
            decision = self._decisions.get(call_id)
            if decision is not None and decision.state != "approved":
                raise ApprovalDenied(before.summary or f"{name} was denied.", code=decision.state)
            raise AgentError(before.summary or f"{name} failed.")
        if before is None:
            await self._append({"kind": "tool-call", "data": call_data(call_id, name, args)})
        if approve and (before is None or before.state != "running"):
            await self._approval(call_id, asked=before is not None and before.state == "blocked")
        await self._append({"kind": "tool-status", "data": {"toolCallId": call_id, "state": "running"}})
        await self.flush()
        decision = self._decisions.get(call_id) if approve else None
        approved = args if decision is None or decision.edited_args is None else decision.edited_args
        return await self._run_call(call_id, name, lambda: function(approved))

    async def approve(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Have a person decide about a call. Returns the arguments, perhaps changed. Raises `ApprovalDenied`."""
        return await self._call(self._call_id(name), name, args, lambda approved: approved, approve=True)

    async def flush(self) -> None:
        """Send everything that was added, and return when it is stored. Raises `KhalaError` if the run is lost."""
        while self._texts or self._parts or self._batch or self._sending.locked():
            await self._send()

    async def flush_loop(self) -> None:
        """Send what was added when it is due, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._since is not None and not self._urgent:
                await asyncio.sleep(max(0.0, self._since + self._flush_seconds - time.monotonic()))
            await self.flush()

    async def finish(self, status: str, *, reason: str = "stop", error: AgentError | None = None) -> None:
        """End the run. A worker calls it when the function has returned."""
        await self.flush()
        body: dict[str, Any] = {"epoch": self.epoch, "seq": self._seq, "status": status, "reason": reason}
        if error is not None:
            body["error"] = {"code": error.code, "message": str(error)[:1000] or "The agent failed."}
        body |= {"receiptSeq": self._receipt_seq, "receipts": self._receipts}
        self.ending = True
        await self._post("finish", body, dict)

    def drop_pending(self) -> None:
        """Forget what the server has refused, so that the run can be ended."""
        self._texts.clear()
        self._parts.clear()
        self._receipts.clear()
        self._batch = None

    async def release(self, *, awaits: Sequence[str] = ()) -> None:
        """Give the run back."""
        await self.flush()
        await self._post("release", {"epoch": self.epoch, "awaits": list(awaits)}, dict)

    def receive(self, approvals: Sequence[DecidedApproval]) -> None:
        """Receive the decisions about calls of this run."""
        self._decisions |= {one.tool_call_id: one for one in approvals}
        self._decided.set()

    def _not_replayed(self, text: str) -> str:
        """The end of the text that is not stored yet."""
        stored = self.written[self._replayed : self._replayed + len(text)]
        if not text.startswith(stored):
            raise ReplayDiverged(
                "The answer was interrupted, and could not be continued. Please try again.", code="replay_diverged"
            )
        self._replayed += len(stored)
        return text[len(stored) :]

    def _call_id(self, name: str) -> str:
        """The id of the next call of this name: the same whenever the function is run again."""
        self._call_counts[name] = number = self._call_counts.get(name, 0) + 1
        return f"{name}-{number}"

    async def _approval(self, call_id: str, *, asked: bool) -> None:
        await self.flush()
        if not asked:
            async with self._sending:  # Another call may be sending parts: both requests count the parts.
                body = {"epoch": self.epoch, "seq": self._seq, "toolCallId": call_id}
                self._seq = (await self._post("approvals", body, NextSeqs)).next_seq
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.hold_seconds):
                while call_id not in self._decisions:
                    self._decided.clear()
                    await self._decided.wait()
        decision = self._decisions.get(call_id)
        if decision is None:
            await self.release(awaits=[call_id])
            self.released = True
            raise Released
        if decision.state != "approved":
            message = f"{decision.state.capitalize()}{f': {decision.reason}' if decision.reason else '.'}"
            await self._append(result_part(call_id, ok=False, summary=message, began=time.monotonic()))
            raise ApprovalDenied(message, code=decision.state)

    async def _run_call(self, call_id: str, name: str, function: Callable[[], Awaitable[T] | T]) -> T:
        began = time.monotonic()
        token = _call_id.set(call_id)
        try:
            result = function()
            value: T = await result if inspect.isawaitable(result) else result
        except Exception as error:
            await self._append(result_part(call_id, ok=False, summary=f"{name} failed: {error}", began=began))
            raise
        finally:
            _call_id.reset(token)
        part = result_part(call_id, ok=True, summary="done", began=began, output=value)
        if len(encode(part["data"])) > MAX_PART_BYTES:
            raise AgentError(f"The result of {name} has more than 3,900 bytes of JSON.")
        await self._append(part)
        await self.flush()
        return value

    async def _append(self, part: dict[str, Any]) -> None:
        self._take_text()
        self._parts.append(part)
        self._urgent = True
        self._mark()

    def _mark(self) -> None:
        if self._since is None:
            self._since = time.monotonic()
        self._changed.set()

    def _take_text(self) -> None:
        """Make parts of the pending text."""
        text = "".join(self._texts)
        self._texts.clear()
        self._characters = 0
        self._parts += [{"kind": "text-delta", "data": {"text": piece}} for piece in pieces_of(text)]

    async def _send(self) -> None:
        """Send the pending parts in one request, until it has succeeded."""
        async with self._sending:
            body = self._batch = self._batch or self._next_batch()
            if body is None:
                return
            # If this is cancelled, the batch stays, and is sent again.
            await self._post("parts", body, NextSeqs)
            self._batch = None
            self._seq += len(body["parts"])
            self._receipt_seq += len(body["receipts"])

    def _next_batch(self) -> dict[str, Any] | None:
        """The body of the next request, None if nothing is pending."""
        self._take_text()
        parts, self._parts = self._parts[:MAX_PARTS_PER_APPEND], self._parts[MAX_PARTS_PER_APPEND:]
        if not parts:
            return None
        receipts, self._receipts = self._receipts[:MAX_RECEIPTS], self._receipts[MAX_RECEIPTS:]
        self._since = time.monotonic() if self._parts else None
        self._urgent = False
        return {
            "epoch": self.epoch,
            "seq": self._seq,
            "parts": parts,
            "receiptSeq": self._receipt_seq,
            "receipts": receipts,
        }

    async def _post(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """Send a request until there is an answer. It can be repeated, because a repetition changes nothing."""
        delay = RETRY_SECONDS
        while True:
            if self.lost:
                raise KhalaError("Another worker has this run.", code="stale_epoch")
            try:
                url = f"/api/executor/runs/{self.run_id}/{path}"
                return await self._core.request("POST", url, kind, body=body, idempotent=True)
            except KhalaError as error:
                if not error.is_transient and error.code != "rate_limited":
                    if error.code in LOST:
                        self.lost = True
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)
