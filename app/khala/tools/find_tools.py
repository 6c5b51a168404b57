"""The tool `find_tools`: finds tools that a prompt leaves out, because more are offered than it gets."""

from collections.abc import Sequence
from typing import Any

from khala.domain.tool_relevance import FIND_TOOLS, MAX_FOUND_TOOLS, matching_tools
from khala.domain.tools import ToolSpec
from khala.tools.port import CallContext, CallResult

MAX_DESCRIPTION_CHARACTERS = 200
"""Characters of a description in the result. The next prompt has the whole definition."""
MAX_QUERY_CHARACTERS = 500


class FindTools:
    """Finds tools by words of their names and descriptions. A run offers it if it offers many tools."""

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

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self._specs = specs

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        """Find the tools that match the query best."""
        found = matching_tools(args["query"], self._specs, MAX_FOUND_TOOLS)
        tools = [{"name": spec.name, "description": spec.description[:MAX_DESCRIPTION_CHARACTERS]} for spec in found]
        names = ", ".join(spec.name for spec in found)
        return CallResult(output={"tools": tools}, summary=f"Found {names}" if names else "Found no tool")
