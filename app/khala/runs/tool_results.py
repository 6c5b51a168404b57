"""What a tool put out, as a part can hold it: whole if it is small, else in a blob with its beginning in the part."""

import asyncio
from typing import Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.blobs.spool import Spool
from khala.domain.errors import KhalaError
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import BlobRef
from khala.domain.tools import ToolActor
from khala.tools.port import CallResult

log = structlog.get_logger()

INLINE = 3000
"""Bytes of output that a part holds."""
PLENTY = 128 * 1024
"""Bytes of output in all the parts of a run, after which a part holds less."""
LITTLE = 300
MOST_SUMMARY = 120
TRIES = 3
PAUSE = 0.5
"""Seconds between two tries to keep an output."""


class InlineAllowance:
    """How much output the parts of one run may hold still, so that the message stays of a size that can be sent."""

    def __init__(self) -> None:
        self._spent = 0

    def take(self, size: int) -> bool:
        """Whether a part may hold so many bytes; if so, they are spent."""
        if size > (INLINE if self._spent < PLENTY else LITTLE):
            return False
        self._spent += size
        return True


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output as its part tells it. `size` is its bytes, `code` names what failed."""

    ok: bool
    summary: str
    output: Any = None
    blob: BlobRef | None = None
    size: int = 0
    code: str | None = None


def failed_output(message: str, code: str) -> StoredOutput:
    """A call that came to nothing."""
    return StoredOutput(ok=False, summary=one_line(message), output=message, size=len(message.encode()), code=code)


async def store_output(
    result: CallResult, sink: Spool, blob_service: BlobService, actor: ToolActor, allowance: InlineAllowance
) -> StoredOutput:
    """The result with its output where it belongs. What can't be kept is a failure that says so, never just lost."""
    output, media_type = result.output, result.media_type
    if output is None and sink.size <= INLINE and _is_text(media_type, sink.head):
        output = (await sink.whole()).decode(errors="replace")
    if isinstance(output, str):
        output = replace_unstorable(output)
    try:
        encoded = msgspec.json.encode(output)
    except (ValueError, TypeError, RecursionError) as error:
        return failed_output(f"It ran, but what it gave back is no JSON that can be kept: {error}.", "failed")
    said = result.summary or (_begin(sink.head) if output is None else _text(output, encoded))
    about: dict[str, Any] = {"ok": result.ok, "code": result.code or (None if result.ok else "failed")}
    if output is None and sink.size:
        return await _in_blob(sink, media_type, said, blob_service, actor, about)
    if output is None or allowance.take(len(encoded)):
        return StoredOutput(**about, summary=one_line(said), output=output, size=0 if output is None else len(encoded))
    async with blob_service.spool() as spool:
        await spool.write(output.encode() if isinstance(output, str) else encoded)
        kind = "text/plain; charset=utf-8" if isinstance(output, str) else "application/json"
        return await _in_blob(spool, kind, said, blob_service, actor, about)


async def _in_blob(
    spool: Spool, media_type: str, said: str, blob_service: BlobService, actor: ToolActor, about: dict[str, Any]
) -> StoredOutput:
    assert actor.thread_id is not None
    for tries in range(1, TRIES + 1):
        try:
            blob = await blob_service.keep(spool, thread_id=actor.thread_id, run_id=actor.run_id, media_type=media_type)
        except KhalaError as error:
            log.warning("output_not_kept", size=spool.size, tries=tries, error=error.message)
            if tries < TRIES:
                await asyncio.sleep(PAUSE)
            why = error.message
        else:
            return StoredOutput(**about, summary=one_line(said), blob=blob, size=spool.size)
    return failed_output(f"It ran, but its output of {spool.size:,} bytes could not be kept: {why}", "unavailable")


def one_line(text: str) -> str:
    """The text's beginning, on one line."""
    line = " ".join(replace_unstorable(text[: 4 * MOST_SUMMARY]).split())
    return line if len(line) <= MOST_SUMMARY else line[: MOST_SUMMARY - 1] + "…"


def _text(output: Any, encoded: bytes) -> str:
    return output if isinstance(output, str) else encoded[: 4 * MOST_SUMMARY].decode(errors="ignore")


def _begin(head: bytes) -> str:
    return head[: 4 * MOST_SUMMARY].decode(errors="replace")


def _is_text(media_type: str, head: bytes) -> bool:
    return media_type.startswith("text/") and b"\0" not in head
