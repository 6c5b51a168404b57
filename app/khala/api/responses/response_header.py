"""The fields of a response that the options of its run decide: the same in each of its events."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from khala.api.openai.completion_options import DEFAULT_MODEL_NAMES
from khala.api.openai.types import JsonObject
from khala.api.responses.input_items import RUN_CODE
from khala.domain import ids
from khala.domain.chat import ResponseRequest, StoredRunOptions
from khala.domain.errors import NotFound
from khala.domain.generation import ResponseFormat
from khala.domain.tools import SEPARATOR

RESPONSE_PREFIX = "resp_"
CONVERSATION_PREFIX = "conv_"


class ResponseHeader(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a response: its ids, its fields that never change, and how its parts become items.

    `khala` are the fields that Khala adds to OpenAI's.
    `functions` are the names of the client's own tools. `holds`: text is sent only when it fits the requested format.
    """

    run_id: UUID
    fields: JsonObject
    khala: JsonObject
    functions: frozenset[str]
    holds: bool


def response_id(run_id: UUID) -> str:
    """Return the id of the response that is this run."""
    return RESPONSE_PREFIX + run_id.hex


def conversation_id(thread_id: UUID) -> str:
    """Return the id of the conversation that is this thread."""
    return CONVERSATION_PREFIX + thread_id.hex


def parse_id(text: str, prefix: str) -> UUID:
    """Return the id of the run or thread. Raises `NotFound` for an id that this server never makes."""
    digits = text.removeprefix(prefix)
    try:
        parsed = UUID(hex=digits)
    except ValueError:
        parsed = None
    if parsed is None or not text.startswith(prefix) or parsed.hex != digits:
        name = "conversation" if prefix == CONVERSATION_PREFIX else "response"
        raise NotFound(f"There is no {name} with this id.")
    return parsed


def header(thread_id: UUID, run_id: UUID, options: StoredRunOptions) -> ResponseHeader:
    """Return the header of the response that is this run."""
    request = options.response or ResponseRequest(model=options.model or DEFAULT_MODEL_NAMES[0])
    previous = None if request.previous is None else response_id(request.previous)
    conversation = {"id": conversation_id(thread_id)} if request.conversation else None
    fields: dict[str, Any] = {
        "id": response_id(run_id),
        "object": "response",
        "created_at": int(ids.created_at(run_id).timestamp()),
        "background": request.background,
        "conversation": conversation,
        "instructions": options.instructions or None,
        "max_output_tokens": options.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": dict(options.metadata),
        "model": request.model,
        "parallel_tool_calls": options.parallel_tool_calls,
        "previous_response_id": previous,
        "reasoning": {"effort": options.reasoning_effort, "summary": None},
        "service_tier": "default",
        "store": not request.ephemeral,
        "temperature": options.temperature,
        "text": {"format": _format(options.response_format)},
        "tool_choice": _tool_choice(options),
        "tools": _tools(options),
        "top_logprobs": options.top_logprobs,
        "top_p": options.top_p,
        "truncation": "auto" if options.context_overflow == "shorten" else "disabled",
        "user": options.user,
    }
    return ResponseHeader(
        run_id=run_id,
        fields=fields,
        khala={"threadId": thread_id, "runId": run_id, "ignored": request.ignored},
        functions=options.client_tools,
        holds=options.json_format is not None,
    )


def _format(response_format: ResponseFormat | None) -> JsonObject:
    if response_format is None or response_format.type != "json_schema":
        return {"type": "text" if response_format is None else response_format.type}
    return {
        "type": "json_schema",
        "name": response_format.name,
        "description": response_format.description or None,
        "schema": response_format.schema,
        "strict": response_format.strict,
    }


def _tool_choice(options: StoredRunOptions) -> Any:
    choice = options.tool_choice
    if choice is None or not choice.tools:
        return options.tool_mode
    tools = [{"type": "function", "name": name} for name in choice.tools]
    return tools[0] if len(tools) == 1 and choice.mode == "required" else _allowed(choice.mode, tools)


def _allowed(mode: str, tools: Sequence[JsonObject]) -> JsonObject:
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def _tools(options: StoredRunOptions) -> list[JsonObject]:
    own = [
        {
            "type": "function",
            "name": function.name,
            "description": function.description or None,
            "parameters": function.parameters,
            "strict": function.strict,
        }
        for function in options.functions
    ]
    allowed: dict[str, list[str]] = {}
    for pattern in options.tools or ():
        label, separator, name = pattern.partition(SEPARATOR)
        if separator:
            allowed.setdefault(label, []).append(name)
    runs_code = RUN_CODE in (options.tools or ())
    code = [{"type": "code_interpreter", "container": {"type": "auto"}}] if runs_code else []
    mcp = [
        {
            "type": "mcp",
            "server_label": label,
            "allowed_tools": None if "*" in names else names,
            "require_approval": "never",
        }
        for label, names in allowed.items()
    ]
    return [*own, *code, *mcp]
