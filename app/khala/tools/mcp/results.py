"""What a server's answer to a call comes to: text, JSON, or the bytes of an image, a sound or a file."""

import base64
import binascii
import re
from typing import Any

import mcp_types as types
import msgspec

from khala.tools.port import CallResult, Sink, ToolError

INLINE = 32 * 1024
"""Bytes of an output that need no sink."""
MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}")
PIECE = 1 << 16


async def result(answer: types.CallToolResult, sink: Sink) -> CallResult:
    """The answer as a result. Raises `ToolError` if it is broken."""
    if answer.is_error:
        return CallResult(
            ok=False, output=_text(answer.content)[:INLINE] or "The tool says that it failed.", code="failed"
        )
    if answer.structured_content is not None and all(isinstance(one, types.TextContent) for one in answer.content):
        return await _json(answer.structured_content, sink)
    if len(answer.content) == 1 and (content := _bytes_of(answer.content[0])) is not None:
        return await _bytes(*content, sink)
    text = _text(answer.content)
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= INLINE:
        return CallResult(output=text)
    return await _streamed(encoded, "text/plain; charset=utf-8", sink)


async def _json(content: Any, sink: Sink) -> CallResult:
    encoded = msgspec.json.encode(content)
    if len(encoded) <= INLINE:
        return CallResult(output=content, media_type="application/json")
    return await _streamed(encoded, "application/json", sink)


async def _bytes(data: str, media_type: str | None, sink: Sink) -> CallResult:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolError("The server's answer is no base64.") from error
    kind = media_type if media_type and MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
    written = await _streamed(content, kind, sink)
    return msgspec.structs.replace(written, summary=f"{kind}, {len(content):,} bytes")


async def _streamed(content: bytes, media_type: str, sink: Sink) -> CallResult:
    for start in range(0, len(content), PIECE):
        await sink.write(content[start : start + PIECE])
    return CallResult(media_type=media_type)


def _bytes_of(block: types.ContentBlock) -> tuple[str, str | None] | None:
    """The block's base64 and media type, if it is made of bytes."""
    match block:
        case types.ImageContent() | types.AudioContent():
            return block.data, block.mime_type
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return blob.blob, blob.mime_type
        case _:
            return None


def _text(blocks: list[types.ContentBlock]) -> str:
    return "\n".join(_words(block) for block in blocks)


def _words(block: types.ContentBlock) -> str:
    """The block's text, or a mention of what it is."""
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case _:
            data, media_type = _bytes_of(block) or ("", None)
            size = len(data) * 3 // 4 - data[-2:].count("=")
            return f"[{media_type or 'data'}, {size:,} bytes, left out]"
