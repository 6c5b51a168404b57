"""The agents and tools of this application. `khala dev` loads them again when this file changes."""

from khala.sdk import AgentRunContext, agent, tool


@tool
def count_words(text: str) -> dict[str, int]:
    """Count the words and the characters of a text.

    Args:
        text: The text to count.
    """
    return {"words": len(text.split()), "characters": len(text)}


@agent(
    "counter",
    title="Word counter",
    guests=True,
    tools=["count_words"],
    examples=["How long is this sentence?"],
)
async def counter(context: AgentRunContext) -> str:
    """Says how long a message is."""
    counted = await context.call("count_words", text=context.prompt)
    return f"You wrote {counted['words']} words, which are {counted['characters']} characters."
