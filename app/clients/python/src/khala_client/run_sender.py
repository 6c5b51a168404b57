"""Sends what a worker's function writes to its run: in order, once, whatever server or connection fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from khala_client.errors import KhalaError
from khala_client.http_core import HttpCore
from khala_client.worker_parts import AgentError, pieces_of
from khala_client.worker_wire import ClaimedRun, NextSeqs

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


class RunSender:
    """The pending parts of one run. Each request is repeated until it is answered: a repetition changes nothing."""

    def __init__(self, core: HttpCore, claimed: ClaimedRun, *, flush_seconds: float) -> None:
        self.epoch = claimed.epoch
        self.path = f"/api/executor/runs/{claimed.run_id}"
        self.lost = False
        """Whether nothing can be written to the run any more."""
        self.ending = False
        """Whether the end is being sent. The server may have stored it, and its answer may be lost."""
        self._core = core
        self._flush_seconds = flush_seconds
        self._seq = claimed.next_seq
        self._receipt_seq = claimed.next_receipt
        self._texts: list[str] = []
        self._characters = 0
        self._since: float | None = None
        self._urgent = True
        self._parts: list[dict[str, Any]] = []
        self._receipts: list[dict[str, Any]] = []
        self._unanswered: tuple[str, dict[str, Any]] | None = None
        """The action and body of a request that counts parts. It is repeated before any other one."""
        self._changed = asyncio.Event()
        self._sending = asyncio.Lock()

    async def add_text(self, text: str) -> None:
        """Add text, which is sent within the flush interval, the first text at once."""
        self._texts.append(text)
        self._characters += len(text)
        self._mark()
        while self._characters > MAX_PENDING_CHARACTERS:
            await self.flush()

    def add_part(self, part: dict[str, Any]) -> None:
        """Add a part, which is sent at once."""
        self._take_text()
        self._parts.append(part)
        self._urgent = True
        self._mark()

    def add_receipt(self, receipt: dict[str, Any]) -> None:
        """Add the receipt of a model call, which is sent with the next parts."""
        self._receipts.append(receipt)
        if self._texts or self._parts:
            self._mark()

    async def flush(self) -> None:
        """Send everything that was added, and return when it is stored. Raises `KhalaError` if the run is lost."""
        while self._texts or self._parts or self._unanswered or self._sending.locked():
            async with self._sending:
                await self._send()

    async def flush_loop(self) -> None:
        """Send what was added when it is due, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._since is not None and not self._urgent:
                await asyncio.sleep(max(0.0, self._since + self._flush_seconds - time.monotonic()))
            await self.flush()

    async def ask(self, call_id: str) -> None:
        """Have a person decide about this call, which was sent."""
        await self.flush()
        async with self._sending:  # Another call may be sending parts: both requests count the parts.
            while self._unanswered is not None:
                await self._send()
            self._unanswered = "approvals", {"epoch": self.epoch, "seq": self._seq, "toolCallId": call_id}
            await self._send()

    async def finish(self, status: str, *, reason: str = "stop", error: AgentError | None = None) -> None:
        """End the run. A worker calls it when the function has returned."""
        await self.flush()
        body: dict[str, Any] = {"epoch": self.epoch, "seq": self._seq, "status": status, "reason": reason}
        if error is not None:
            body["error"] = {"code": error.code, "message": str(error)[:1000] or "The agent failed."}
        body |= {"receiptSeq": self._receipt_seq, "receipts": self._receipts}
        self.ending = True
        await self._post("finish", body, dict)

    async def release(self, *, awaits: Sequence[str] = ()) -> None:
        """Give the run back: to the queue, or until one of these calls is decided."""
        await self.flush()
        await self._post("release", {"epoch": self.epoch, "awaits": list(awaits)}, dict)

    def drop_pending(self) -> None:
        """Forget what the server has refused, so that the run can be ended."""
        self._texts.clear()
        self._characters = 0
        self._parts.clear()
        self._receipts.clear()
        self._unanswered = None

    async def until_answered(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of a request that is sent until there is an answer. Raises `KhalaError`."""
        delay = RETRY_SECONDS
        while True:
            if self.lost:
                raise KhalaError("Another worker has this run.", code="stale_epoch")
            try:
                return await attempt()
            except KhalaError as error:
                if not error.is_transient and error.code != "rate_limited":
                    if error.code in LOST:
                        self.lost = True
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_RETRY_SECONDS)

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
        """Send the unanswered request, or else the pending parts. If this is cancelled, the request stays."""
        self._unanswered = self._unanswered or self._next_append()
        if self._unanswered is None:
            return
        action, body = self._unanswered
        await self._post(action, body, NextSeqs)
        self._unanswered = None
        self._seq += len(body["parts"]) if action == "parts" else 1
        self._receipt_seq += len(body.get("receipts", ()))

    def _next_append(self) -> tuple[str, dict[str, Any]] | None:
        """The next append, None if nothing is pending."""
        self._take_text()
        parts, self._parts = self._parts[:MAX_PARTS_PER_APPEND], self._parts[MAX_PARTS_PER_APPEND:]
        if not parts:
            return None
        receipts, self._receipts = self._receipts[:MAX_RECEIPTS], self._receipts[MAX_RECEIPTS:]
        self._since = time.monotonic() if self._parts else None
        self._urgent = False
        return "parts", {
            "epoch": self.epoch,
            "seq": self._seq,
            "parts": parts,
            "receiptSeq": self._receipt_seq,
            "receipts": receipts,
        }

    async def _post(self, action: str, body: dict[str, Any], kind: type[T]) -> T:
        url = f"{self.path}/{action}"
        return await self.until_answered(lambda: self._core.request("POST", url, kind, body=body, idempotent=True))
