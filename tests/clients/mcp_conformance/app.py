"""What the protocol's conformance tests call, as an application of Khala defines it (`KHALA_APP`)."""

import asyncio

from khala.sdk import ToolCallContext, ToolError, tool

MODULE = __name__


@tool
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


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
