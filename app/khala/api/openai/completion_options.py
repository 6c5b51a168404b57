"""Reads the options of a completion request from its body and its `x-…` headers."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.api.openai.errors import ModelNotFound
from khala.api.openai.types import CompletionBody, FunctionTool
from khala.api.validation import check_json
from khala.domain.chat import (
    DEFAULT_STEPS,
    MAX_AGENT_NAME_CHARACTERS,
    MAX_FUNCTIONS,
    MAX_TOOL_PATTERNS,
    ClientFunction,
    RunBudget,
    RunOptions,
)
from khala.domain.errors import InvalidInput
from khala.domain.idempotency import RequestIdentity

DEFAULT_MODEL_NAMES = ("khala", "default")
"""Names of the server's default model."""
YES, NO = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
BUDGETS: dict[str, str] = {
    "x-budget-usd": "usd", "x-budget-tokens": "tokens", "x-budget-seconds": "seconds",
    "x-budget-tool-calls": "toolCalls",
}  # fmt: skip
THREAD_HEADERS = ("x-thread", "x-thread-ttl")
AGENT_HEADER = "x-khala-agent"
HEADERS = (
    "x-thread-id", *THREAD_HEADERS, "x-autopilot", "x-autopilot-events", "x-max-steps", "x-khala-tools",
    AGENT_HEADER, "x-cancel-on-disconnect", *BUDGETS,
)  # fmt: skip
"""Headers that Khala adds to OpenAI's protocol."""
MAX_OUTPUT_TOKENS = 1_000_000
DEFAULT_EPHEMERAL_SECONDS = 3_600
"""The lifetime of an ephemeral thread if the request sets none."""
MIN_EPHEMERAL_SECONDS = 60
MAX_EPHEMERAL_SECONDS = 7 * 86_400
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a completion request, without its messages.

    `events`: stream the steps of an autopilot run as Khala's events. `usage`: end the stream with a chunk of the token
    usage. `lifetime`: the new thread is unlisted and is deleted after this time. `cancels`: cancel the run if the
    client disconnects. `ignored`: paths of the request that have no effect.
    """

    model: str
    run: RunOptions
    thread_id: UUID | None
    lifetime: timedelta | None = None
    stream: bool
    events: bool
    usage: bool
    cancels: bool
    ignored: tuple[str, ...] = ()
    identity: RequestIdentity | None = None


def read_options(request: CompletionBody, headers: Mapping[str, str], context: Context) -> CompletionOptions:
    """Return the options. Raises `InvalidInput`, and `ModelNotFound` for a model that is not offered."""
    autopilot = _flag(headers, "x-autopilot")
    run = RunOptions(
        agent=_agent(headers),
        model=resolve_model(request.model, context),
        budget=_budget(headers),
        autopilot=autopilot,
        max_steps=_steps(headers.get("x-max-steps", request.max_steps)),
        tools=_patterns(headers, autopilot=autopilot),
        functions=() if request.tool_choice == "none" else _functions(request.tools or []),
        max_output_tokens=None
        if request.max_output_tokens is None
        else min(request.max_output_tokens, MAX_OUTPUT_TOKENS),
    )
    stream = bool(request.stream)
    thread_id = _thread_id(headers.get("x-thread-id"))
    return CompletionOptions(
        model=request.model,
        run=run,
        thread_id=thread_id,
        lifetime=_lifetime(headers, is_new=thread_id is None),
        stream=stream,
        events=stream and autopilot and _flag(headers, "x-autopilot-events", default=True),
        usage=request.stream_options is not None and request.stream_options.include_usage,
        cancels=_flag(headers, "x-cancel-on-disconnect"),
    )


def resolve_model(name: str, context: Context) -> str | None:
    """Return the model for the run's options, None for the default. Raises `ModelNotFound`."""
    if name in DEFAULT_MODEL_NAMES:
        return None
    if not context.models.is_allowed(name):
        raise ModelNotFound(f"The model {name[:100]!r} does not exist here. GET /v1/models lists those that do.")
    return name


def _flag(headers: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    value = headers.get(name)
    if value is None:
        return default
    if value.strip().lower() not in YES + NO:
        raise InvalidInput("Send true or false.", path=name)
    return value.strip().lower() in YES


def _steps(value: Any) -> int:
    """Return the maximum number of steps. A value that is not a number means the default."""
    if isinstance(value, str):
        return int(value) if WHOLE_NUMBER.fullmatch(value.strip()) else DEFAULT_STEPS
    return min(value, 10**9) if isinstance(value, int) and not isinstance(value, bool) else DEFAULT_STEPS


def _budget(headers: Mapping[str, str]) -> RunBudget | None:
    limits = {field: headers[name].strip() for name, field in BUDGETS.items() if name in headers}
    if not limits:
        return None
    try:
        return msgspec.convert(limits, RunBudget, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        name = next((name for name, field in BUDGETS.items() if field == place.rstrip("`")), "x-budget-usd")
        raise InvalidInput(message, path=name) from error


def _patterns(headers: Mapping[str, str], *, autopilot: bool) -> tuple[str, ...] | None:
    """Return patterns of the server's tools to offer. By default, autopilot offers all, and other runs none."""
    value = headers.get("x-khala-tools")
    if value is None:
        return None if autopilot else ()
    patterns = tuple(word.strip() for word in value.split(",") if word.strip())
    if len(patterns) > MAX_TOOL_PATTERNS or any(len(word) > 200 for word in patterns):
        raise InvalidInput(
            f"Send at most {MAX_TOOL_PATTERNS} patterns of at most 200 characters each.", path="x-khala-tools"
        )
    return patterns


def _agent(headers: Mapping[str, str]) -> str | None:
    name = headers.get(AGENT_HEADER, "").strip()
    if len(name) > MAX_AGENT_NAME_CHARACTERS:
        raise InvalidInput(
            f"Send the name of an agent, at most {MAX_AGENT_NAME_CHARACTERS} characters.", path=AGENT_HEADER
        )
    return name or None


def _functions(tools: list[FunctionTool]) -> tuple[ClientFunction, ...]:
    if len(tools) > MAX_FUNCTIONS:
        raise InvalidInput(f"Send at most {MAX_FUNCTIONS} tools.", path="tools")
    return tuple(_function(index, tool) for index, tool in enumerate(tools))


def _function(index: int, tool: FunctionTool) -> ClientFunction:
    path = f"tools[{index}].function"
    definition = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": tool.function.parameters or {},
    }
    check_json(definition, path)
    try:
        return msgspec.convert(definition, ClientFunction)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=path + where.rstrip("`")) from error


def _lifetime(headers: Mapping[str, str], *, is_new: bool) -> timedelta | None:
    """Return the lifetime of an ephemeral thread, None for a durable one."""
    kind, seconds = (headers.get(name, "").strip() for name in THREAD_HEADERS)
    if kind not in ("", "ephemeral"):
        raise InvalidInput("x-thread may only be ephemeral.", path="x-thread")
    if kind and not is_new:
        raise InvalidInput("Only a new thread can be ephemeral.", path="x-thread")
    if seconds and not kind:
        raise InvalidInput("Only ephemeral threads expire. Also send x-thread: ephemeral.", path="x-thread-ttl")
    if not kind:
        return None
    lifetime = int(seconds) if WHOLE_NUMBER.fullmatch(seconds) else None if seconds else DEFAULT_EPHEMERAL_SECONDS
    if lifetime is None or not MIN_EPHEMERAL_SECONDS <= lifetime <= MAX_EPHEMERAL_SECONDS:
        bounds = f"{MIN_EPHEMERAL_SECONDS} to {MAX_EPHEMERAL_SECONDS:,}"
        raise InvalidInput(f"An ephemeral thread may last {bounds} seconds.", path="x-thread-ttl")
    return timedelta(seconds=lifetime)


def _thread_id(value: str | None) -> UUID | None:
    if value is None:
        return None
    try:
        return UUID(value.strip())
    except ValueError as error:
        raise InvalidInput("A thread's id is a UUID.", path="x-thread-id") from error
