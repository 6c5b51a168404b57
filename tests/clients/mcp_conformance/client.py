"""Khala as a client of one server, for the conformance tests: `python -m tests.clients.mcp_conformance.client URL`.

It connects as `khala serve` does with a configured server. It makes the calls that the suite names in the environment,
or else calls each tool once. Its person accepts each question with the defaults of the form.
"""

import asyncio
import json
import os
import sys
from typing import Any

import msgspec

from khala.domain import ids
from khala.models.port import Prompt
from khala.tools.mcp import McpServerConfig
from khala.tools.port import SampledText, ToolError, UserAnswer, UserQuestion
from tests.support.mcp_client import call_context, connected

EXAMPLES: dict[str, Any] = {"number": 2, "integer": 2, "boolean": True, "array": [], "object": {}}
CALL_SECONDS = 20.0


async def answer(question: UserQuestion) -> UserAnswer:
    """Accept the defaults of the form."""
    fields = (question.schema or {}).get("properties", {})
    return UserAnswer(
        action="accept",
        content={name: field.get("default", example(field)) for name, field in fields.items()},
    )


async def sample(_: Prompt) -> SampledText:
    return SampledText(text="A text of the model.", model="demo")


def example(schema: dict[str, Any]) -> Any:
    """A value that fits a simple schema."""
    return schema["enum"][0] if "enum" in schema else EXAMPLES.get(schema.get("type", "string"), "text")


def arguments(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: example(field) for name, field in schema.get("properties", {}).items()}


def named_calls() -> list[tuple[str, dict[str, Any]]]:
    """The calls that the suite names: Khala's names of the tools, and the arguments."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    return [(f"suite__{call['name']}", call["arguments"]) for call in context.get("toolCalls", [])]


async def main(url: str) -> None:
    server = McpServerConfig(name="suite", url=url, elicitation=True, sampling=True, timeout=CALL_SECONDS)
    async with connected(server) as connections:
        tools = connections.tools()
        for name, args in named_calls() or [(name, arguments(tool.spec.parameters)) for name, tool in tools.items()]:
            context = msgspec.structs.replace(call_context(ids.new().hex), ask=answer, sample=sample)
            try:
                print(name, (await tools[name].run(args, context)).output)
            except ToolError as error:
                print(name, "failed:", error.message)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
