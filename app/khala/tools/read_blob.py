"""The tool `read_blob`: reads a part of an output or a file that is too large for the prompt."""

from typing import Any
from uuid import UUID

import msgspec

from khala.blobs.blob_reader import ReadMode, ReadRequest, ReadResult, read_lines
from khala.blobs.blob_service import BlobService
from khala.blobs.line_views import MAX_CONTEXT_LINES, ReadLimits
from khala.domain.errors import BlobNotFound, InvalidInput, Unavailable
from khala.domain.tools import ToolSpec
from khala.store.blobs.blobs import StoredFile
from khala.tools.port import CallContext, CallResult, ToolError
from khala.tools.tool_output import pluralize

MAX_TEXT_CHARACTERS = 4000
"""Approximate characters of the lines that one call returns."""
MAX_LINE_CHARACTERS = 1000
MAX_LINES = 200
READ_TIMEOUT_SECONDS = 5.0

SPEC = ToolSpec(
    name="read_blob",
    description=(
        "Read a part of a large tool result or an uploaded text file that is stored as a blob of this conversation, or "
        "of a file of its folder. "
        "mode: head (first lines), tail (last lines), range (lines from `from` on), or grep (lines that match "
        "the regular expression `pattern`, RE2 syntax). A call returns about 4,000 characters. If the result ends with "
        "`after=…`, call again with the same arguments and this `after` to read on."
    ),
    parameters={
        "type": "object",
        "properties": {
            "blobId": {"type": "string", "format": "uuid", "description": "The blob's id."},
            "mode": {"type": "string", "enum": ["head", "tail", "range", "grep"]},
            "lines": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "description": "How many. Default: 50."},
            "from": {"type": "integer", "minimum": 1, "description": "range: the first line."},
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "grep: the regular expression.",
            },
            "ignoreCase": {"type": "boolean", "description": "grep: ignore upper and lower case."},
            "context": {
                "type": "integer",
                "minimum": 0,
                "maximum": MAX_CONTEXT_LINES,
                "description": "grep: lines around a match.",
            },
            "after": {"type": "string", "description": "The `after` of the previous result."},
        },
        "required": ["blobId", "mode"],
        "additionalProperties": False,
    },
    timeout=30.0,
    idempotent=True,
)


class ReadBlobArguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The arguments of `read_blob`."""

    blob_id: UUID
    mode: ReadMode
    lines: int = 50
    start: int = msgspec.field(default=1, name="from")
    pattern: str | None = None
    ignore_case: bool = False
    context: int = 0
    after: str | None = None


class ReadBlob:
    """`read_blob`: read lines of a blob of the call's own thread, or of a file of its folder."""

    spec = SPEC

    def __init__(self, blob_service: BlobService) -> None:
        self._blob_service = blob_service

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Return lines with their numbers, as text."""
        request = _parse_arguments(args)
        if call.actor.thread_id is None:
            raise ToolError("This call belongs to no conversation, so there are no blobs.", code="not_found")
        read_request = ReadRequest(
            mode=request.mode,
            lines=min(request.lines, MAX_LINES),
            start=request.start,
            pattern=request.pattern,
            ignore_case=request.ignore_case,
            context=request.context,
            after=request.after,
        )
        try:
            user_id = call.actor.user_id if call.personal else None
            blob = await self._blob_service.find_readable(request.blob_id, call.actor.thread_id, user_id)
            result = await read_lines(
                self._blob_service,
                blob,
                read_request,
                ReadLimits(line=MAX_LINE_CHARACTERS, text=MAX_TEXT_CHARACTERS, seconds=READ_TIMEOUT_SECONDS),
            )
        except InvalidInput as error:
            raise ToolError(error.message, code="bad_arguments") from error
        except BlobNotFound as error:
            raise ToolError(error.message, code="not_found") from error
        except Unavailable as error:
            raise ToolError(error.message, code="unavailable") from error
        return CallResult(output=_text(result, blob), summary=_summary(result, request))


def _parse_arguments(args: dict[str, Any]) -> ReadBlobArguments:
    try:
        return msgspec.convert(args, ReadBlobArguments)
    except msgspec.ValidationError as error:
        raise ToolError(f"Invalid arguments: {error}.", code="bad_arguments") from error


def _text(result: ReadResult, blob: StoredFile) -> str:
    if result.binary:
        return f"This blob is binary ({blob.media_type}, {blob.size:,} bytes): it has no lines."
    lines = [f"{line.line}{':' if line.match else '-'} {line.text}" for line in result.items]
    if result.next:
        lines.append(f"[There is more: after={result.next}]")
    return "\n".join(lines) or "[No such lines.]"


def _summary(result: ReadResult, request: ReadBlobArguments) -> str:
    if result.binary:
        return "The blob is binary."
    noun = "matching line" if request.mode == "grep" else "line"
    count = sum(line.match for line in result.items) if request.mode == "grep" else len(result.items)
    return pluralize(count, noun) + (" and more" if result.next else "")
