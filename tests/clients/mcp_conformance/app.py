"""What the protocol's conformance tests call, as an application of Khala defines it (`KHALA_APP`)."""

import asyncio
import base64
from typing import Any

from khala.sdk import ToolCallContext, ToolError, ToolFile, prompt, resource, tool

MODULE = __name__
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0" + bytes.fromhex("401f0000803e000002001000") + b"data\0\0\0\0"


@tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool
def test_image_content() -> ToolFile:
    """Return an image."""
    return ToolFile(data=PNG, media_type="image/png")


@tool
def test_audio_content() -> ToolFile:
    """Return sound."""
    return ToolFile(data=WAV, media_type="audio/wav")


@tool
def test_embedded_resource() -> ToolFile:
    """Return a resource."""
    text = b"This is an embedded resource content."
    return ToolFile(data=text, media_type="text/plain", uri="test://embedded-resource")


@tool
def test_multiple_content_types() -> list[str | ToolFile]:
    """Return a text, an image and a resource."""
    data = ToolFile(data=b'{"test":"data","value":123}', media_type="application/json", uri="test://mixed-content")
    return ["Multiple content types test:", ToolFile(data=PNG, media_type="image/png"), data]


@tool
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(context: ToolCallContext) -> str:
    """Report progress three times."""
    for percent in (0, 50, 100):
        context.progress(f"{percent} of 100")
        await asyncio.sleep(0.05)
    return "The tool has reported progress."


@prompt
def test_simple_prompt() -> str:
    """Return a prompt without arguments."""
    return "This is a simple prompt for testing."


@prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Return a prompt with its arguments.

    Args:
        arg1: The first argument.
        arg2: The second argument.

    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[str | ToolFile]:  # noqa: N803  # as the suite calls it
    """Return a prompt with a resource."""
    text = b"Embedded resource content for testing."
    return [
        ToolFile(data=text, media_type="text/plain", uri=resourceUri),
        "Please process the embedded resource above.",
    ]


@prompt
def test_prompt_with_image() -> list[str | ToolFile]:
    """Return a prompt with an image."""
    return [ToolFile(data=PNG, media_type="image/png"), "Please analyze the image above."]


@resource("test://static-text", media_type="text/plain")
def static_text() -> str:
    """Return a text."""
    return "This is the content of the static text resource."


@resource("test://static-binary", media_type="image/png")
def static_binary() -> bytes:
    """Return an image."""
    return PNG


@resource("test://template/{id}/data")
def template_data(id: str) -> dict[str, Any]:  # noqa: A002  # as the suite calls it
    """Return data for an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
