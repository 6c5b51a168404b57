"""The context of a worker's agent: the question, and the ways to answer it durably."""

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Never, TypeVar, overload
from uuid import UUID, uuid5

import msgspec

from khala_client.content import BlobRef, FileBlock, TextBlock, ToolBlock
from khala_client.errors import KhalaError
from khala_client.http_core import HttpCore
from khala_client.models import Message
from khala_client.run_blobs import RunBlobs
from khala_client.run_sender import RunSender
from khala_client.streams import AsyncStream
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
    result_part,
    storable,
)
from khala_client.worker_wire import ClaimedAgent, ClaimedRun, DecidedApproval

MAX_MESSAGE_CHARACTERS = 400
"""Characters of the message of a call that failed, which is returned when the function is run again."""

T = TypeVar("T")

_call_ids: ContextVar[tuple[str, ...]] = ContextVar("khala_call_ids", default=())
"""The calls whose functions this task runs, the innermost first."""


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
        self.released = False
        """Whether the run was given back."""
        self.hold_seconds = 60.0
        self.sender = RunSender(core, claimed, flush_seconds=flush_seconds)
        self._blobs = RunBlobs(core, self.sender)
        self._replayed = 0 if replay else len(self.written)
        self._content = claimed.content
        self._calls = {block.tool_call_id: block for block in claimed.content if isinstance(block, ToolBlock)}
        self._call_counts: dict[str, int] = {}
        outside = claimed.next_receipt if claimed.receipts_outside_calls is None else claimed.receipts_outside_calls
        self._skipped_receipts = outside if replay else 0
        self._running: set[str] = set()
        """The calls whose functions run."""
        self._awaited: set[str] = set()
        """The calls that wait for a person."""
        self._giving_back = asyncio.Lock()
        self._decisions: dict[str, DecidedApproval] = {one.tool_call_id: one for one in claimed.approvals}
        self._changed = asyncio.Event()
        """Set when a call was decided, or its function has ended."""

    @property
    def lost(self) -> bool:
        """Whether nothing can be written to the run any more."""
        return self.sender.lost

    @lost.setter
    def lost(self, lost: bool) -> None:
        self.sender.lost = lost

    @property
    def prompt(self) -> str:
        """The text of the message to answer."""
        return self.messages[-1].text if self.messages else ""

    async def text(self, text: str) -> None:
        """Add text to the answer. It is sent within the flush interval, the first text at once."""
        text = self._not_replayed(storable(text))
        if text:
            await self.sender.add_text(text)

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
        call_id = next(iter(_call_ids.get()), None)
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
        self.sender.add_receipt({name: value for name, value in receipt.items() if value is not None})

    async def notice(self, code: str, message: str) -> None:
        """Add a notice for readers."""
        self.sender.add_part({"kind": "notice", "data": {"code": code, "message": message}})

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
                before = blocks.pop() if blocks and isinstance(blocks[-1], str) else ""
                blocks.append(f"{before}{block.text}")
            elif isinstance(block, ToolBlock):
                args = block.args or {}
                if block.args_blob is not None:
                    args = await self._blobs.load_arguments(block.args_blob)
                blocks.append(RecordedCall(block.tool_call_id, block.tool, args, ended=block.state in ENDED))
        return blocks

    @property
    def files(self) -> Sequence[BlobRef]:
        """The files of the message to answer: see `read_blob`."""
        content = self.messages[-1].content if self.messages else None
        return [block.blob for block in content or () if isinstance(block, FileBlock)]

    async def store_blob(
        self, name: str, source: bytes | os.PathLike[str], *, media_type: str = "application/octet-stream"
    ) -> BlobRef:
        """Store a file of the run, at most 128 MiB: bytes, or the path of a file, which is read piece by piece.

        Readers see it when a function of `step`, `tool` or `tool_call` returns it: it is the result of the call then.
        The same content under the same name and type is stored once. Raises `AgentError` if the server does not take
        it.
        """
        blob = await self._blobs.store(source, name=name, media_type=media_type)
        if blob.name is None:
            raise AgentError(f"{name!r} is no name of a file.")
        return blob

    def read_blob(self, blob: BlobRef | UUID) -> AsyncStream[bytes]:
        """The bytes of a blob of the thread, in pieces: a file of a message, or an output of a run.

        After a lost connection it continues where it was. Raises `ServerError` at the end if size or SHA-256 differ.
        """
        return AsyncStream(self._blobs.read(blob))

    @overload
    async def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[..., T], *args: Any) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run the function once and return its result, which is stored: JSON or bytes, at most 16 MiB, or a `BlobRef`.

        A result over 3,000 bytes, and one of bytes, is stored as a blob. A blob is never empty, so empty bytes are None
        when the function is not run again. If the worker is lost before the result is stored, the function is run
        again.
        """
        return await self.tool(name, {}, lambda: function(*args))

    @overload
    async def tool(
        self, name: str, args: dict[str, Any], function: Callable[[], Awaitable[T]], *, approve: bool = False
    ) -> T: ...
    @overload
    async def tool(self, name: str, args: dict[str, Any], function: Callable[[], T], *, approve: bool = False) -> T: ...
    async def tool(self, name: str, args: dict[str, Any], function: Callable[[], Any], *, approve: bool = False) -> Any:
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
        if before is not None and before.state in ENDED:
            return await self._stored_result(before)  # type: ignore[no-any-return]  # what the function returned before
        if before is None:
            await self._begin_call(call_id, name, args)
        if approve:
            await self._approval(call_id)
        decision = self._decisions.get(call_id) if approve else None
        approved = args if decision is None or decision.edited_args is None else decision.edited_args
        if self.released or self._giving_back.locked():
            raise Released
        self._running.add(call_id)
        try:
            return await self._run_call(call_id, name, lambda: function(approved))
        finally:
            self._running.discard(call_id)
            self._changed.set()

    async def _stored_result(self, block: ToolBlock) -> Any:
        """The result of a call that has ended. Raises the error of one that has failed."""
        if block.state == "completed":
            return block.output if block.blob is None else await self._blobs.load(block.blob)
        decision = self._decisions.get(block.tool_call_id)
        message = block.output if isinstance(block.output, str) else block.summary
        if decision is not None and decision.state != "approved":
            raise ApprovalDenied(message or f"{block.tool} was denied.", code=decision.state)
        raise AgentError(message or f"{block.tool} failed.")

    async def _begin_call(self, call_id: str, name: str, args: dict[str, Any]) -> None:
        data = {"toolCallId": call_id, "step": 1, "tool": name, "args": args}
        if len(encode(data)) > MAX_PART_BYTES:
            del data["args"]
            data["argsBlob"] = await self._blobs.store_arguments(args)
        self._calls[call_id] = ToolBlock(tool_call_id=call_id, tool=name, state="queued", args=args)
        self.sender.add_part({"kind": "tool-call", "data": data})

    def _update_call(self, call_id: str, **changes: Any) -> None:
        self._calls[call_id] = msgspec.structs.replace(self._calls[call_id], **changes)

    async def approve(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        """Have a person decide about a call. Returns the arguments, perhaps changed. Raises `ApprovalDenied`."""
        return await self._call(self._call_id(name), name, args, lambda approved: approved, approve=True)

    async def flush(self) -> None:
        """Send everything that was added, and return when it is stored. Raises `KhalaError` if the run is lost."""
        await self.sender.flush()

    def receive(self, approvals: Sequence[DecidedApproval]) -> None:
        """Receive the decisions about calls of this run."""
        self._decisions |= {one.tool_call_id: one for one in approvals}
        self._changed.set()

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

    async def _approval(self, call_id: str) -> None:
        self._awaited.add(call_id)
        if call_id not in self._decisions and self._calls[call_id].state != "blocked":
            await self.flush()
            self._update_call(call_id, state="blocked")
            await self.sender.ask(call_id)
        decision = await self._decision(call_id)
        if decision.state != "approved":
            message = f"{decision.state.capitalize()}{f': {decision.reason}' if decision.reason else '.'}"
            self._end_call(call_id, ok=False, summary=message, began=time.monotonic(), output=message)
            raise ApprovalDenied(message, code=decision.state)

    async def _decision(self, call_id: str) -> DecidedApproval:
        """The decision about a call. After the hold time, the run is given back once no other function runs."""
        until = time.monotonic() + self.hold_seconds
        try:
            while call_id not in self._decisions:
                is_alone = self._running <= set(_call_ids.get())
                if time.monotonic() >= until and is_alone:
                    await self._give_back()
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, until - time.monotonic()) if is_alone else None):
                        await self._changed.wait()
        except asyncio.CancelledError:
            # The agent no longer waits for it: a run that is given back goes on without this decision.
            self._awaited.discard(call_id)
            raise
        self._awaited.discard(call_id)
        return self._decisions[call_id]

    async def _give_back(self) -> Never:
        async with self._giving_back:
            if not self.released:
                await self.sender.release(awaits=sorted(self._awaited))
                self.released = True
        raise Released

    async def _run_call(self, call_id: str, name: str, function: Callable[[], Awaitable[T] | T]) -> T:
        self.sender.add_part({"kind": "tool-status", "data": {"toolCallId": call_id, "state": "running"}})
        self._update_call(call_id, state="running")
        await self.flush()
        began = time.monotonic()
        token = _call_ids.set((call_id, *_call_ids.get()))
        try:
            result = function()
            value: T = await result if inspect.isawaitable(result) else result
            stored = await self._blobs.store_result(value)
        except Exception as error:
            message = str(error) or type(error).__name__
            self._end_call(call_id, ok=False, summary=f"{name} failed: {message}", began=began, output=message)
            raise
        finally:
            _call_ids.reset(token)
        self._end_call(call_id, ok=True, summary="done", began=began, **stored)
        await self.flush()
        return value

    def _end_call(self, call_id: str, *, ok: bool, summary: str, began: float, **result: Any) -> None:
        """Add the part that ends the call. An `output` of a call that failed is its whole message."""
        if not ok:
            result = {"output": storable(result["output"])[:MAX_MESSAGE_CHARACTERS]}
        part = result_part(call_id, ok=ok, summary=summary, began=began, **result)
        self.sender.add_part(part)
        self._update_call(call_id, state="completed" if ok else "failed", summary=part["data"]["summary"], **result)
