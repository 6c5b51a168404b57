"""Results of tools over MCP: several texts and files keep their order and kinds, within the bound of a result."""

import base64

import mcp_types as types

from khala.api.mcp.call_results import MAX_RESULT_BYTES, TruncatingSink, convert_result
from khala.tools.port import CallResult, ToolFile

PNG = b"\x89PNG\0"


def blocks(*content: str | ToolFile) -> list[types.ContentBlock]:
    return convert_result(CallResult(content=content), TruncatingSink(), "7").content


def test_texts_and_files_keep_their_order_and_kinds() -> None:
    text, image, sound, document, other = blocks(
        "look:",
        ToolFile(data=PNG, media_type="image/png"),
        ToolFile(data=b"RIFF\0", media_type="audio/wav"),
        ToolFile(data=b"{}", media_type="application/json", uri="shop://orders/7"),
        ToolFile(data=b"\0\1"),
    )
    assert text == types.TextContent(text="look:")
    assert image == types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")
    assert sound == types.AudioContent(data=base64.b64encode(b"RIFF\0").decode(), mime_type="audio/wav")
    assert isinstance(document, types.EmbeddedResource)
    assert document.resource == types.TextResourceContents(
        uri="shop://orders/7", mime_type="application/json", text="{}"
    )
    assert isinstance(other, types.EmbeddedResource)
    assert other.resource == types.BlobResourceContents(
        uri="khala://results/7/5", mime_type="application/octet-stream", blob=base64.b64encode(b"\0\1").decode()
    )


def test_an_image_that_is_the_content_of_a_resource_is_a_resource() -> None:
    (block,) = blocks(ToolFile(data=PNG, media_type="image/png", uri="shop://logo"))
    assert isinstance(block, types.EmbeddedResource)
    assert block.resource.uri == "shop://logo"


def test_a_result_has_a_bound_for_all_texts_and_files_together() -> None:
    large = ToolFile(data=b"\0" * (MAX_RESULT_BYTES - 5), media_type="image/png")
    image, text, omitted = blocks(large, "123456789", large)
    assert isinstance(image, types.ImageContent)
    assert isinstance(text, types.TextContent)
    assert text.text == "12345\n[truncated: the first 5 of 9 bytes]"
    assert omitted == types.TextContent(text=f"[image/png, {len(large.data):,} bytes, omitted]")
