"""Converts a server's answer to a call to a result: text, JSON, or the bytes of an image, audio or a file."""

import base64
import binascii
import re
from typing import assert_never

import mcp_types as types

from khala.tools.port import CallResult, Sink, ToolError
from khala.tools.tool_output import bytes_result, json_result, text_result

MAX_INLINE_BYTES = 32 * 1024
"""Bytes of text or JSON that need no sink."""
MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,64}/[A-Za-z0-9!#$&^_.+-]{1,64}")


async def convert_result(answer: types.CallToolResult, sink: Sink) -> CallResult:
    """Convert the answer to a result. Raises `ToolError` for invalid base64."""
    text = _text(answer.content)
    if answer.is_error:
        output = text[:MAX_INLINE_BYTES] or "The tool reported a failure without a message."
        return CallResult(ok=False, output=output, code="failed")
    if answer.structured_content is not None and all(isinstance(block, types.TextContent) for block in answer.content):
        return await json_result(sink, answer.structured_content, max_inline_bytes=MAX_INLINE_BYTES)
    if len(answer.content) == 1 and (binary := _binary(answer.content[0])) is not None:
        return await _binary_result(*binary, sink)
    return await text_result(sink, text, max_inline_bytes=MAX_INLINE_BYTES)


async def _binary_result(data: str, media_type: str | None, sink: Sink) -> CallResult:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolError("The server's answer is not valid base64.") from error
    kind = media_type if media_type and MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
    return await bytes_result(sink, content, kind, f"{kind}, {len(content):,} bytes")


def _binary(block: types.ContentBlock) -> tuple[str, str | None] | None:
    """The base64 and the media type of a block that holds bytes; None for other blocks."""
    match block:
        case types.ImageContent() | types.AudioContent():
            return block.data, block.mime_type
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return blob.blob, blob.mime_type
        case types.TextContent() | types.EmbeddedResource() | types.ResourceLink():
            return None
        case _:
            assert_never(block)


def _text(blocks: list[types.ContentBlock]) -> str:
    return "\n".join(_block_text(block) for block in blocks)


def _block_text(block: types.ContentBlock) -> str:
    """The block's text; for a block without text, a description in brackets."""
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=resource):
            if isinstance(resource, types.TextResourceContents):
                return resource.text
            return _describe_omitted(resource.blob, resource.mime_type)
        case types.ImageContent() | types.AudioContent():
            return _describe_omitted(block.data, block.mime_type)
        case types.ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case _:
            assert_never(block)


def _describe_omitted(data: str, media_type: str | None) -> str:
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[{media_type or 'data'}, {size:,} bytes, left out]"
