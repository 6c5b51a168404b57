"""Converts a server's answer to a call to a result: text, JSON, an image, audio or a file, or several of these."""

import base64
import binascii
import re
from typing import assert_never

import mcp_types as types

from khala.tools.port import CallResult, Sink, ToolError, ToolFile
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
    content = [_file(block) or _block_text(block) for block in answer.content]
    if not any(isinstance(item, ToolFile) for item in content):
        return await text_result(sink, text, max_inline_bytes=MAX_INLINE_BYTES)
    if len(content) == 1 and isinstance(only := content[0], ToolFile):
        return await bytes_result(sink, only.data, only.media_type, f"{only.media_type}, {len(only.data):,} bytes")
    return CallResult(content=tuple(content), summary=text)


def _file(block: types.ContentBlock) -> ToolFile | None:
    """The file of a block that holds bytes; None for other blocks. Raises `ToolError` for invalid base64."""
    match block:
        case types.ImageContent() | types.AudioContent():
            return _decoded(block.data, block.mime_type)
        case types.EmbeddedResource(resource=types.BlobResourceContents() as blob):
            return _decoded(blob.blob, blob.mime_type, uri=blob.uri)
        case types.TextContent() | types.EmbeddedResource() | types.ResourceLink():
            return None
        case _:
            assert_never(block)


def _decoded(data: str, media_type: str | None, *, uri: str | None = None) -> ToolFile:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ToolError("The server's answer is not valid base64.") from error
    kind = media_type if media_type and MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
    return ToolFile(data=content, media_type=kind, uri=uri)


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
            return _describe_file(resource.blob, resource.mime_type)
        case types.ImageContent() | types.AudioContent():
            return _describe_file(block.data, block.mime_type)
        case types.ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case _:
            assert_never(block)


def _describe_file(data: str, media_type: str | None) -> str:
    size = len(data) * 3 // 4 - data[-2:].count("=")
    return f"[{media_type or 'data'}, {size:,} bytes]"
