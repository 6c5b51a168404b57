"""The tool `find_tools`: finds tools that a prompt leaves out, because more are offered than it gets."""

from collections.abc import Sequence
from typing import Any

from khala.domain.tool_relevance import FIND_TOOLS, MAX_FOUND_TOOLS, matching_tools
from khala.domain.tools import ToolSpec
from khala.memory.tool_router import ToolMeanings
from khala.tools.port import CallContext, CallResult

MAX_DESCRIPTION_CHARACTERS = 200
"""Characters of a description in the result. The next prompt has the whole definition."""
MAX_QUERY_CHARACTERS = 500


class FindTools:
    """Finds tools by their names and descriptions: by words, and by meaning where `meanings` knows it.

    A run offers it if it offers many tools. The result says whether the meaning counted (`by`).
    """

    spec = ToolSpec(
        name=FIND_TOOLS,
        description=(
            "Finds more tools by what they do. You see only some of your tools: if none of them fits the task, search "
            "here before you say that you cannot do it. You can call the tools that it finds in your next step."
        ),
        parameters={
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_QUERY_CHARACTERS,
                    "description": "Words that say what the tool does, such as “create calendar event”.",
                }
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        idempotent=True,
    )

    def __init__(self, specs: Sequence[ToolSpec], meanings: ToolMeanings) -> None:
        self._specs = specs
        self._meanings = meanings

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Find the tools that match the query best."""
        meaning = await self._meanings(args["query"], self._specs)
        found = matching_tools(args["query"], self._specs, MAX_FOUND_TOOLS, meaning)
        tools = [{"name": spec.name, "description": spec.description[:MAX_DESCRIPTION_CHARACTERS]} for spec in found]
        names = ", ".join(spec.name for spec in found)
        output = {"tools": tools, "by": "words" if meaning is None else "meaning"}
        return CallResult(output=output, summary=f"Found {names}" if names else "Found no tool")


def found_names(output: Any) -> list[str] | None:
    """The names of the tools in an output of `find_tools`, or None if it is not there."""
    tools = output.get("tools") if isinstance(output, dict) else None
    if not isinstance(tools, list):
        return None
    return [tool["name"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
