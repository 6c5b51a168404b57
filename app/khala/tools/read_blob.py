"""The tool `read_blob`: an agent looks into what was too large for its prompt, a little at a time."""

from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.blob_reader import ReadMode, ReadRequest, ReadResult, read_lines
from khala.blobs.blob_service import BlobService
from khala.blobs.line_views import MAX_CONTEXT_LINES, ReadLimits
from khala.domain.errors import BlobNotFound, InvalidInput, Unavailable
from khala.domain.tools import ToolSpec
from khala.store.blobs.blobs import Blob
from khala.tools.port import CallContext, CallResult, ToolError

MOST_TEXT = 4000
"""Characters of lines that one call gives, about."""
MOST_LINE = 1000
MOST_LINES = 200
SECONDS = 5.0

SPEC = ToolSpec(
    name="read_blob",
    description=(
        "Read a part of a large tool result or an uploaded text file that is kept as a blob of this conversation. "
        "mode: head (first lines), tail (last lines), range (lines from `from` on), or grep (lines that have the "
        "regular expression `pattern`, RE2 syntax). A call gives about 4,000 characters; if the answer ends with "
        "`next`, call again with the same arguments and `after` set to it to read on."
    ),
    parameters={
        "type": "object",
        "properties": {
            "blobId": {"type": "string", "format": "uuid", "description": "The blob's id."},
            "mode": {"type": "string", "enum": ["head", "tail", "range", "grep"]},
            "lines": {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "description": "How many. Default: 50."},
            "from": {"type": "integer", "minimum": 1, "description": "range: the first line."},
            "pattern": {"type": "string", "minLength": 1, "maxLength": 1000, "description": "grep: what to find."},
            "ignoreCase": {"type": "boolean", "description": "grep: upper and lower case are the same."},
            "context": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_CONTEXT_LINES,
                "description": "grep: lines around.",
            },
            "after": {"type": "string", "description": "The `next` of the answer before."},
        },
        "required": ["blobId", "mode"],
        "additionalProperties": False,
    },
    timeout=30.0,
    idempotent=True,
)


class ReadBlobArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is looked at."""

    blob_id: UUID
    mode: ReadMode
    lines: int = 50
    start: int = msgspec.field(default=1, name="from")
    pattern: str | None = None
    ignore_case: bool = False
    context: int = 0
    after: str | None = None


class ReadBlob:
    """Reads blobs of the thread that the call is in, and of no other."""

    spec = SPEC

    def __init__(self, blob_service: BlobService) -> None:
        self._blob_service = blob_service

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Lines with their numbers, as text."""
        asked = _asked(args)
        if call.actor.thread_id is None:
            raise ToolError("There is no conversation here that could have blobs.", code="not_found")
        question = ReadRequest(
            mode=asked.mode,
            lines=min(asked.lines, MOST_LINES),
            start=asked.start,
            pattern=asked.pattern,
            ignore_case=asked.ignore_case,
            context=asked.context,
            after=asked.after,
        )
        try:
            blob = await self._blob_service.find(asked.blob_id, call.actor.thread_id)
            seen = await read_lines(
                self._blob_service, blob, question, ReadLimits(line=MOST_LINE, text=MOST_TEXT, seconds=SECONDS)
            )
        except InvalidInput as error:
            raise ToolError(error.message, code="bad_arguments") from error
        except BlobNotFound as error:
            raise ToolError(error.message, code="not_found") from error
        except Unavailable as error:
            raise ToolError(error.message, code="unavailable") from error
        return CallResult(output=_told(seen, blob), summary=_summary(seen, asked))


def _asked(args: dict[str, Any]) -> ReadBlobArguments:
    try:
        return msgspec.convert(args, ReadBlobArguments)
    except msgspec.ValidationError as error:
        raise ToolError(f"These arguments can't be used: {error}.", code="bad_arguments") from error


def _told(seen: ReadResult, blob: Blob) -> str:
    if seen.binary:
        return f"This blob is binary ({blob.media_type}, {blob.size:,} bytes): it has no lines."
    told = [f"{line.line}{':' if line.match else '-'} {line.text}" for line in seen.items]
    if seen.next:
        told.append(f"[There is more: after={seen.next}]")
    return "\n".join(told) or "[There are no such lines.]"


def _summary(seen: ReadResult, asked: ReadBlobArguments) -> str:
    if seen.binary:
        return "It is binary."
    what = "lines with the pattern" if asked.mode == "grep" else "lines"
    many = sum(line.match for line in seen.items) if asked.mode == "grep" else len(seen.items)
    return f"{many} {what}{' and more' if seen.next else ''}"
