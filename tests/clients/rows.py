"""The clients of the matrix, which are its rows, and the features, which are its columns."""

from typing import Literal

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One client: its program is `FOLDER/PROGRAM` in this folder, where the versions of its packages are pinned."""

    id: str
    title: str
    package: str
    kind: Literal["python", "node", "page"]
    folder: str
    program: str


def _python(name: str, title: str, package: str = "", *, program: str = "client.py", row: str = "") -> Row:
    return Row(row or name, title, package or name, "python", f"programs/{name}", program)


def _node(row: str, title: str, package: str, folder: str, program: str = "client.mjs") -> Row:
    return Row(row, title, package, "node", folder, program)


def _page(row: str, title: str, package: str, folder: str) -> Row:
    return Row(row, title, package, "page", folder, "page.tsx")


ROWS = (
    _python("openai-python", "openai (Python), chat completions", "openai"),
    _python(
        "openai-python", "openai (Python), responses", "openai", program="responses.py", row="openai-python-responses"
    ),
    _python("langchain-python", "LangChain (Python)", "langchain-openai"),
    _python("litellm", "LiteLLM"),
    _python("pydantic-ai", "Pydantic AI", "pydantic-ai-slim"),
    _python("openai-agents", "OpenAI Agents SDK"),
    _python("llm", "llm"),
    _python("instructor", "Instructor"),
    _node("openai-node", "openai (Node)", "openai", "programs/openai-node"),
    _node("langchain-node", "LangChain (JavaScript)", "@langchain/openai", "programs/langchain-node"),
    _node("ai-sdk-chat", "AI SDK, @ai-sdk/openai with chat", "@ai-sdk/openai", "programs/ai-sdk-providers"),
    _node("ai-sdk-responses", "AI SDK, @ai-sdk/openai with responses", "@ai-sdk/openai", "programs/ai-sdk-providers"),
    _node(
        "ai-sdk-compatible",
        "AI SDK, @ai-sdk/openai-compatible",
        "@ai-sdk/openai-compatible",
        "programs/ai-sdk-providers",
    ),
    _page("use-chat", "AI SDK, useChat (React)", "@ai-sdk/react", "ai-sdk"),
    _page("tanstack-react", "TanStack AI, useChat (React)", "@tanstack/ai-react", "programs/tanstack-react"),
    _page("copilotkit", "CopilotKit (React)", "@copilotkit/react-core", "programs/copilotkit"),
    _node("ag-ui", "AG-UI client", "@ag-ui/client", "ag-ui", "matrix.mjs"),
    _node("durable-streams", "Durable Streams client", "@durable-streams/client", "durable-streams", "matrix.mjs"),
    _python("mcp", "MCP client (Python)"),
    _node("mcp-inspector", "MCP Inspector", "@modelcontextprotocol/inspector", "programs/mcp-inspector"),
)

FEATURES = {
    "text": "Text", "stream": "Stream", "tools": "Tools", "forced": "Forced tool", "structured": "Structured output",
    "images": "Images", "usage": "Usage", "cancel": "Cancel", "resume": "Resume", "approvals": "Approvals",
    "errors": "Errors",
}  # fmt: skip
