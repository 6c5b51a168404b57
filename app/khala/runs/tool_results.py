"""Stores the output of tools: a small output in the call's part, a large one in a blob with a preview in the part."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import structlog

from khala.blobs.blob_service import BlobService
from khala.blobs.content_type import is_text
from khala.blobs.spool import Spool
from khala.domain.errors import KhalaError
from khala.domain.flush_policy import replace_unstorable
from khala.domain.parts import BlobRef
from khala.domain.tools import ToolActor
from khala.tools.port import CallResult, ToolFile

log = structlog.get_logger()

MAX_INLINE_BYTES = 3000
"""Bytes of output in one part."""
RUN_INLINE_BYTES = 128 * 1024
"""Bytes of output in all parts of a run, after which a part may hold only `MAX_LATE_INLINE_BYTES`."""
MAX_LATE_INLINE_BYTES = 300
MAX_SUMMARY_CHARACTERS = 120
MAX_FILES = 20
"""Files of one result that are stored. Further ones are only mentioned."""
MAX_ATTEMPTS = 3
RETRY_INTERVAL_SECONDS = 0.5
"""Time between two attempts to store an output."""


class InlineAllowance:
    """The bytes of arguments and output that the parts of one run may hold. It bounds the size of the run's message.

    `files` are the files in results that the run has stored, by their bytes' hash. Equal files are stored once, so that
    equal results have equal texts, by which a run that repeats itself is found.
    """

    def __init__(self) -> None:
        self.files: dict[bytes, BlobRef] = {}
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
    result = await _without_files(result, sink, blob_service, actor, allowance)
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


async def _without_files(
    result: CallResult, sink: Spool, blob_service: BlobService, actor: ToolActor, allowance: InlineAllowance
) -> CallResult:
    """The result with an output in place of its content: the bytes of a single file, or a text."""
    match result.content:
        case ():
            return result
        case (ToolFile() as file,) if not _is_document(file):
            await sink.write(file.data)
            summary = result.summary or f"{file.media_type}, {len(file.data):,} bytes"
            return msgspec.structs.replace(result, output=None, media_type=file.media_type, summary=summary)
        case content:
            text = await _content_text(content, blob_service, actor, allowance)
            return msgspec.structs.replace(result, output=text)


async def _content_text(
    content: Sequence[str | ToolFile], blob_service: BlobService, actor: ToolActor, allowance: InlineAllowance
) -> str:
    """Texts and files as one text. Documents are a part of it, and other files are blobs that it mentions."""
    texts: list[str] = []
    files = 0
    for item in content:
        if isinstance(item, str):
            texts.append(item)
        elif _is_document(item):
            texts.append(item.data.decode("utf-8", "replace"))
        else:
            files += 1
            mention = await _stored_file(item, blob_service, actor, allowance) if files <= MAX_FILES else "left out"
            texts.append(f"[{item.media_type}, {len(item.data):,} bytes, {mention}]")
    return "\n".join(texts)


async def _stored_file(file: ToolFile, blob_service: BlobService, actor: ToolActor, allowance: InlineAllowance) -> str:
    """Store the file as a blob of the thread; returns how a text mentions it."""
    digest = hashlib.sha256(file.data).digest()
    if digest not in allowance.files:
        async with blob_service.spool() as spool:
            await spool.write(file.data)
            stored = StoredOutput(ok=True, summary="")
            stored = await _store_blob(stored, spool, file.media_type, blob_service, actor)
        if stored.blob is None:
            return stored.summary
        allowance.files[digest] = stored.blob
    return f"blob {allowance.files[digest].blob_id}"


def _is_document(file: ToolFile) -> bool:
    """Whether the file is text that a model reads as a part of the result."""
    kind = file.media_type.partition(";")[0].strip()
    return (kind.startswith("text/") or kind == "application/json") and is_text(file.data)


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
