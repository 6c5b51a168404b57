"""Reads the options of a request for a response: as those of a completion request, with tools of the server."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from khala.api.context import Context
from khala.api.openai import completion_options
from khala.api.openai.completion_options import CompletionOptions
from khala.api.openai.types import CompletionBody, JsonObject, RequestMessage
from khala.api.responses.input_items import RUN_CODE
from khala.api.responses.types import (
    ChosenFunction,
    ChosenSubset,
    ChosenTool,
    CodeInterpreterTool,
    JsonObjectText,
    JsonSchemaText,
    McpServerTool,
    McpToolNames,
    ResponseBody,
    ResponseFunction,
    ResponseTool,
)
from khala.api.runs import option_checks
from khala.api.tools import client_functions
from khala.api.validation import check_json
from khala.domain.chat import MAX_FUNCTIONS, MAX_INSTRUCTIONS_CHARACTERS, MAX_TOOL_PATTERNS, RunBudget
from khala.domain.errors import InvalidInput
from khala.domain.generation import MAX_CHOSEN_TOOLS
from khala.domain.tools import SEPARATOR
from khala.tools.mcp import tool_names

LOGPROBS = "message.output_text.logprobs"
"""The only value of `include` that changes the answer."""
UNSUPPORTED_TOOLS: dict[str, str] = {
    "web_search": "This server has no web_search. Offer a function of your own, or an MCP server of the operator.",
    "file_search": "This server has no file_search. Offer a function of your own, or an MCP server of the operator.",
}
SAME_FIELDS = ("model", "stream", "parallel_tool_calls", "temperature", "top_p", "top_logprobs", "user", "metadata")
"""Options that completion requests have under the same name."""


async def read_options(
    request: ResponseBody, messages: Sequence[RequestMessage], headers: Mapping[str, str], context: Context
) -> CompletionOptions:
    """Return the options. Raises `InvalidInput` with the path in this request, and `ModelNotFound`."""
    tools = read_tools(request.tools or [])
    functions = [index for index, tool in enumerate(tools) if isinstance(tool, ResponseFunction)]
    with _own_paths(functions):
        options = completion_options.read_options(_completion_body(request, messages, tools), headers, context)
        run = options.run
        patterns = _patterns(tools, context)
        if patterns:
            given = () if run.tools is None else run.tools
            calls = request.max_tool_calls
            budget = run.budget if calls is None else _with_calls(run.budget, calls)
            run = msgspec.structs.replace(run, autopilot=True, tools=(*given, *patterns), budget=budget)
        if request.truncation is not None:
            overflow = "shorten" if request.truncation == "auto" else "error"
            run = msgspec.structs.replace(run, context_overflow=overflow)
        run = msgspec.structs.replace(run, if_busy="queue")
        await client_functions.check(run.functions, list_path="tools", item_path="tools[{}].function")
        await option_checks.check(run, context, completion_options.path_of)
    return msgspec.structs.replace(options, run=run)


def read_tools(given: Sequence[JsonObject]) -> list[ResponseTool]:
    """Return the tools. Raises `InvalidInput` for one that this server does not have."""
    if len(given) > MAX_FUNCTIONS:
        raise InvalidInput(f"Send at most {MAX_FUNCTIONS} tools.", path="tools")
    return [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(given)]


def _read_tool(given: JsonObject, path: str) -> ResponseTool:
    kind = str(given.get("type"))[:60]
    message = next((text for name, text in UNSUPPORTED_TOOLS.items() if kind.startswith(name)), None)
    if message is not None or kind not in ("function", "code_interpreter", "mcp"):
        raise InvalidInput(message or f"Tools of type {kind} are not supported.", path=f"{path}.type")
    check_json(given, path)
    try:
        tool: ResponseTool = msgspec.convert(given, ResponseTool)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{text.rstrip('.')}.", path=path + where.rstrip("`")) from error
    return tool


def refuse_unsupported(request: ResponseBody, headers: Mapping[str, str]) -> None:
    """Raise `InvalidInput` for options that would change the answer's meaning if they were ignored."""
    refused = {
        "prompt": (request.prompt is not None, "This server has no stored prompts. Send instructions."),
        "conversation": (
            request.conversation is not None and request.previous_response_id is not None,
            "Send conversation or previous_response_id, not both.",
        ),
        "instructions": (
            len(request.instructions or "") > MAX_INSTRUCTIONS_CHARACTERS,
            f"Instructions have at most {MAX_INSTRUCTIONS_CHARACTERS:,} characters. "
            f"Send longer ones as a developer's message.",
        ),
        "background": (
            bool(request.background) and request.store is False,
            "A response in the background has to be stored.",
        ),
        "x-cancel-on-disconnect": (
            "x-cancel-on-disconnect" in headers,
            "A response continues without its client. Cancel it with POST /v1/responses/{id}/cancel.",
        ),
    }
    for path, (is_refused, message) in refused.items():
        if is_refused:
            raise InvalidInput(message, path=path)


def _completion_body(
    request: ResponseBody, messages: Sequence[RequestMessage], tools: Sequence[ResponseTool]
) -> CompletionBody:
    """Return the request as one for a completion."""
    fields: dict[str, Any] = {name: getattr(request, name) for name in SAME_FIELDS}
    own = [tool for tool in tools if isinstance(tool, ResponseFunction)]
    fields |= {
        "messages": messages,
        "tools": [{"function": msgspec.to_builtins(tool)} for tool in own],
        "tool_choice": _tool_choice(request.tool_choice),
        "max_tokens": request.max_output_tokens,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
        "response_format": _format(request),
        "logprobs": bool(request.top_logprobs) or LOGPROBS in (request.include or ()),
    }
    return msgspec.convert({name: msgspec.to_builtins(value) for name, value in fields.items()}, CompletionBody)


def _tool_choice(choice: ChosenTool | None) -> Any:
    match choice:
        case ChosenFunction(name=name):
            return {"type": "function", "function": {"name": name}}
        case ChosenSubset(mode=mode, tools=tools):
            chosen = [{"type": "function", "function": {"name": tool.name}} for tool in tools]
            if not 1 <= len(chosen) <= MAX_CHOSEN_TOOLS:
                raise InvalidInput(f"Allow 1 to {MAX_CHOSEN_TOOLS} tools.", path="tool_choice.tools")
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}
        case _:
            return choice


def _format(request: ResponseBody) -> Any:
    match request.text.format if request.text else None:
        case JsonSchemaText() as given:
            fields = {name: getattr(given, name) for name in ("name", "schema", "description", "strict")}
            return {"type": "json_schema", "json_schema": fields}
        case JsonObjectText():
            return {"type": "json_object"}
        case _:
            return None


def _patterns(tools: Sequence[ResponseTool], context: Context) -> tuple[str, ...]:
    """Return patterns of the server's tools."""
    patterns: list[str] = []
    for index, tool in enumerate(tools):
        match tool:
            case CodeInterpreterTool():
                if not context.tools.registry.runs_code:
                    raise InvalidInput("This server has no sandbox for programs.", path=f"tools[{index}]")
                patterns.append(RUN_CODE)
            case McpServerTool():
                patterns += _mcp_patterns(tool, f"tools[{index}]", context)
            case ResponseFunction():
                pass
    if len(patterns) > MAX_TOOL_PATTERNS:
        raise InvalidInput(f"Allow at most {MAX_TOOL_PATTERNS} tools of the server.", path="tools")
    return tuple(patterns)


def _mcp_patterns(tool: McpServerTool, path: str, context: Context) -> list[str]:
    for name in ("server_url", "connector_id", "authorization", "headers"):
        if getattr(tool, name):
            message = "Khala connects only to the MCP servers of its operator. Name one with server_label alone."
            raise InvalidInput(message, path=f"{path}.{name}")
    if tool.require_approval not in (None, "never"):
        message = "The rules of the user and the operator decide on approvals. Send never, or nothing."
        raise InvalidInput(message, path=f"{path}.require_approval")
    prefixes = tool_names.prefixes(context.tools.mcp_connections.names)
    prefix = prefixes.get(tool.server_label)
    if prefix is None:
        raise InvalidInput("The operator has configured no MCP server of this name.", path=f"{path}.server_label")
    allowed = tool.allowed_tools.tool_names if isinstance(tool.allowed_tools, McpToolNames) else tool.allowed_tools
    if allowed is None:
        return [f"{prefix}{SEPARATOR}*"]
    if any(set(name) & set("*?[") or len(name) > MAX_MCP_TOOL_NAME_CHARACTERS for name in allowed):
        raise InvalidInput("Name each tool, without wildcards.", path=f"{path}.allowed_tools")
    return list(tool_names.full_names(prefix, allowed).values())


MAX_MCP_TOOL_NAME_CHARACTERS = 128


def _with_calls(budget: RunBudget | None, calls: int) -> RunBudget:
    return msgspec.structs.replace(budget or RunBudget(), tool_calls=calls)


@contextmanager
def _own_paths(functions: Sequence[int]) -> Iterator[None]:
    """Translate the paths of errors: those of a completion request to those of this one."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(error.message, path=_own_path(error.path, functions), more=error.more) from error


def _own_path(path: str, functions: Sequence[int]) -> str:
    if path.startswith("response_format.json_schema"):
        return "text.format" + path.removeprefix("response_format.json_schema")
    if path == "reasoning_effort":
        return "reasoning.effort"
    number, bracket, rest = path.removeprefix("tools[").partition("].function")
    if path.startswith("tools[") and bracket and number.isdigit():
        return f"tools[{functions[int(number)]}]{rest}"
    return path
