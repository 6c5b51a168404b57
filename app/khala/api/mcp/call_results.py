"""Converts results of Khala's tools to results of MCP: text, JSON, images, sound and embedded resources."""

import base64
from collections.abc import Iterator, Sequence

import mcp_types as types
import msgspec

from khala.api.mcp.resource_contents import SCHEME, resource_contents
from khala.domain.errors import PayloadTooLarge
from khala.tools.port import CallResult, ToolFile

MAX_RESULT_BYTES = 256 * 1024
"""Bytes of a result. Longer text is truncated, and files beyond them are left out."""
MAX_OUTPUT_BYTES = 128 << 20
"""A tool that writes more is stopped."""


class TruncatingSink:
    """A sink that keeps the beginning of the output."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Keep as much of the data as the result may contain."""
        self.size += len(data)
        if self.size > MAX_OUTPUT_BYTES:
            raise PayloadTooLarge(f"A tool may write at most {MAX_OUTPUT_BYTES:,} bytes.")
        self.content += data[: max(0, MAX_RESULT_BYTES - len(self.content))]


def convert_result(result: CallResult, sink: TruncatingSink, call_id: str) -> types.CallToolResult:
    """The result of a call. `call_id` is a part of the URIs of its files that have no URI of their own."""
    if result.content:
        blocks = list(content_blocks(result.content, f"results/{call_id}"))
        return types.CallToolResult(content=blocks, is_error=not result.ok)
    if result.output is None and sink.size:
        return types.CallToolResult(content=[_sink_block(result.media_type, sink, call_id)], is_error=not result.ok)
    if isinstance(result.output, str):
        return types.CallToolResult(
            content=[_text_block(result.output.encode("utf-8", "replace"))], is_error=not result.ok
        )
    encoded = b"" if result.output is None else msgspec.json.encode(result.output)
    structured = result.output if isinstance(result.output, dict) and len(encoded) <= MAX_RESULT_BYTES else None
    return types.CallToolResult(content=[_text_block(encoded)], structured_content=structured, is_error=not result.ok)


def failed_result(message: str) -> types.CallToolResult:
    """The result of a call that was not executed."""
    return types.CallToolResult(content=[types.TextContent(text=message)], is_error=True)


def content_blocks(content: Sequence[str | ToolFile], path: str) -> Iterator[types.ContentBlock]:
    """The blocks of texts and files, of `MAX_RESULT_BYTES` in all.

    `path` is a part of the URIs of files that have no URI of their own.
    """
    room = MAX_RESULT_BYTES
    for number, item in enumerate(content, 1):
        if isinstance(item, str):
            encoded = item.encode("utf-8", "replace")
            yield _text_block(encoded, max_bytes=room)
            room = max(0, room - len(encoded))
        elif len(item.data) <= room:
            yield _file_block(item, f"{SCHEME}{path}/{number}")
            room -= len(item.data)
        else:
            yield _omitted(item.media_type, len(item.data))


def _sink_block(media_type: str, sink: TruncatingSink, call_id: str) -> types.ContentBlock:
    kind = media_type.partition(";")[0].strip()
    if kind.startswith("text/") or kind == "application/json":
        return _text_block(bytes(sink.content), sink.size)
    if sink.size > MAX_RESULT_BYTES:
        return _omitted(kind, sink.size)
    return _file_block(ToolFile(data=bytes(sink.content), media_type=kind), f"{SCHEME}results/{call_id}/1")


def _file_block(file: ToolFile, uri: str) -> types.ContentBlock:
    """The file as an image or sound if it is one, and has no URI of its own; otherwise as a resource."""
    kind = file.media_type.partition(";")[0].strip()
    if file.uri is None and kind.startswith("image/"):
        return types.ImageContent(data=base64.b64encode(file.data).decode(), mime_type=kind)
    if file.uri is None and kind.startswith("audio/"):
        return types.AudioContent(data=base64.b64encode(file.data).decode(), mime_type=kind)
    return types.EmbeddedResource(resource=resource_contents(file.uri or uri, file.media_type, file.data))


def _text_block(encoded: bytes, size: int | None = None, *, max_bytes: int = MAX_RESULT_BYTES) -> types.TextContent:
    """The beginning of a text, and a note if it is truncated."""
    size = len(encoded) if size is None else size
    note = f"\n[truncated: the first {max_bytes:,} of {size:,} bytes]" if size > max_bytes else ""
    return types.TextContent(text=encoded[:max_bytes].decode("utf-8", "replace" if not note else "ignore") + note)


def _omitted(media_type: str, size: int) -> types.TextContent:
    return types.TextContent(text=f"[{media_type}, {size:,} bytes, omitted]")
