"""Stores the output of tools: a small output in the call's part, a large one in a blob with a preview in the part."""

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

MAX_INLINE_BYTES = 3000
"""Bytes of output in one part."""
RUN_INLINE_BYTES = 128 * 1024
"""Bytes of output in all parts of a run, after which a part may hold only `MAX_LATE_INLINE_BYTES`."""
MAX_LATE_INLINE_BYTES = 300
MAX_SUMMARY_CHARACTERS = 120
MAX_ATTEMPTS = 3
RETRY_INTERVAL_SECONDS = 0.5
"""Time between two attempts to store an output."""


class InlineAllowance:
    """The bytes of arguments and output that the parts of one run may hold. It bounds the size of the run's message."""

    def __init__(self) -> None:
        self._spent = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes, if a part may hold them. Returns whether they were taken."""
        if size > (MAX_INLINE_BYTES if self._spent < RUN_INLINE_BYTES else MAX_LATE_INLINE_BYTES):
            return False
        self._spent += size
        return True


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a call as stored in its part: `output` or `blob`. `size` is in bytes. `code` is set on failure."""

    ok: bool
    summary: str
    output: Any = None
    blob: BlobRef | None = None
    size: int = 0
    code: str | None = None


def failed_output(message: str, code: str) -> StoredOutput:
    """The output of a call that failed."""
    return StoredOutput(ok=False, summary=one_line(message), output=message, size=len(message.encode()), code=code)


async def store_output(
    result: CallResult, sink: Spool, blob_service: BlobService, actor: ToolActor, allowance: InlineAllowance
) -> StoredOutput:
    """Store the result's output, or without one the sink's content. Output that cannot be stored becomes a failure."""
    output, media_type = result.output, result.media_type
    if output is None and sink.size <= MAX_INLINE_BYTES and _is_text(media_type, sink.head):
        output = (await sink.whole()).decode(errors="replace")
    if isinstance(output, str):
        output = replace_unstorable(output)
    try:
        encoded = msgspec.json.encode(output)
    except (ValueError, TypeError, RecursionError) as error:
        return failed_output(f"The tool ran, but its output is not valid JSON: {error}.", "failed")
    code = result.code or (None if result.ok else "failed")
    preview = result.summary or (_preview(sink.head) if output is None else _text(output, encoded))
    stored = StoredOutput(ok=result.ok, code=code, summary=one_line(preview))
    if output is None and sink.size:
        return await _store_blob(stored, sink, media_type, blob_service, actor)
    if output is None:
        return stored
    if allowance.take(len(encoded)):
        return msgspec.structs.replace(stored, output=output, size=len(encoded))
    async with blob_service.spool() as spool:
        await spool.write(output.encode() if isinstance(output, str) else encoded)
        media_type = "text/plain; charset=utf-8" if isinstance(output, str) else "application/json"
        return await _store_blob(stored, spool, media_type, blob_service, actor)


async def _store_blob(
    stored: StoredOutput, spool: Spool, media_type: str, blob_service: BlobService, actor: ToolActor
) -> StoredOutput:
    assert actor.thread_id is not None
    for tries in range(1, MAX_ATTEMPTS + 1):
        try:
            blob = await blob_service.put(spool, thread_id=actor.thread_id, run_id=actor.run_id, media_type=media_type)
        except KhalaError as error:
            log.warning("tool_output_not_stored", size=spool.size, tries=tries, error=error.message)
            if tries < MAX_ATTEMPTS:
                await asyncio.sleep(RETRY_INTERVAL_SECONDS)
            reason = error.message
        else:
            return msgspec.structs.replace(stored, blob=blob, size=spool.size)
    message = f"The tool ran, but its output of {spool.size:,} bytes could not be stored: {reason}"
    return failed_output(message, "unavailable")


def one_line(text: str) -> str:
    """The beginning of the text, on one line."""
    line = " ".join(replace_unstorable(text[: 4 * MAX_SUMMARY_CHARACTERS]).split())
    return line if len(line) <= MAX_SUMMARY_CHARACTERS else line[: MAX_SUMMARY_CHARACTERS - 1] + "…"


def _text(output: Any, encoded: bytes) -> str:
    return output if isinstance(output, str) else encoded[: 4 * MAX_SUMMARY_CHARACTERS].decode(errors="ignore")


def _preview(head: bytes) -> str:
    return head[: 4 * MAX_SUMMARY_CHARACTERS].decode(errors="replace")


def _is_text(media_type: str, head: bytes) -> bool:
    return media_type.startswith("text/") and b"\0" not in head
