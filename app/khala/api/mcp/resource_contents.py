"""The content of a resource as MCP has it: text, or base64."""

import base64

import mcp_types as types

from khala.blobs.content_type import is_text

SCHEME = "khala://"
"""Begins the URIs of Khala's own resources."""
MAX_RESOURCE_BYTES = 1 << 20
"""Bytes of a resource that can be read."""


def resource_contents(
    uri: str, media_type: str, content: bytes
) -> types.TextResourceContents | types.BlobResourceContents:
    """A content of a resource: as text if it is text, else as base64."""
    if is_text(content):
        return types.TextResourceContents(uri=uri, mime_type=media_type, text=content.decode("utf-8", "replace"))
    return types.BlobResourceContents(uri=uri, mime_type=media_type, blob=base64.b64encode(content).decode())
