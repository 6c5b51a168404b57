"""Reads the options of a completion request from its body and its `x-…` headers."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.api.openai.errors import ModelNotFound
from khala.api.openai.types import (
    AllowedTools,
    AnswerFormat,
    CompletionBody,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    ToolChoiceOption,
    ToolMessage,
)
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
from khala.domain.generation import ResponseFormat, ToolChoice
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
STREAM_HEADER = "x-khala-stream"
INSTRUCTIONS_HEADER = "x-khala-instructions"
CONTEXT_HEADER = "x-khala-context"
PERSONAL_HEADER = "x-khala-personal"
HEADERS = (
    "x-thread-id", *THREAD_HEADERS, "x-autopilot", "x-autopilot-events", "x-max-steps", "x-khala-tools",
    AGENT_HEADER, STREAM_HEADER, INSTRUCTIONS_HEADER, CONTEXT_HEADER, PERSONAL_HEADER, "x-cancel-on-disconnect",
    *BUDGETS,
)  # fmt: skip
"""Headers that Khala adds to OpenAI's protocol."""
MAX_OUTPUT_TOKENS = 1_000_000
DEFAULT_EPHEMERAL_SECONDS = 3_600
"""The lifetime of an ephemeral thread if the request sets none."""
MIN_EPHEMERAL_SECONDS = 60
MAX_EPHEMERAL_SECONDS = 7 * 86_400
SAMPLING = (
    "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "reasoning_effort", "logprobs",
    "top_logprobs", "user", "metadata",
)  # fmt: skip
FORMAT_PATH = "response_format.json_schema"
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")

Struct = TypeVar("Struct", bound=msgspec.Struct)


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All options of a completion request, without its messages.

    `events`: stream the steps of an autopilot run as Khala's events. `usage`: end the stream with a chunk of the token
    usage. `lifetime`: the new thread is unlisted and is deleted after this time. `cancels`: cancel the run if the
    client disconnects. `checked`: text is streamed only when it is known to fit the requested format. `ignored`: paths
    of the request that have no effect. `choices` is the number of answers.
    """

    model: str
    run: RunOptions
    thread_id: UUID | None
    lifetime: timedelta | None = None
    stream: bool
    events: bool
    usage: bool
    cancels: bool
    checked: bool = False
    choices: int = 1
    ignored: tuple[str, ...] = ()
    identity: RequestIdentity | None = None


def read_options(request: CompletionBody, headers: Mapping[str, str], context: Context) -> CompletionOptions:
    """Return the options. Raises `InvalidInput`, and `ModelNotFound` for a model that is not offered."""
    autopilot = _flag(headers, "x-autopilot")
    run = RunOptions(
        **_sampling(request),
        agent=_agent(headers),
        model=resolve_model(request.model, context),
        budget=_budget(headers),
        autopilot=autopilot,
        max_steps=_steps(headers.get("x-max-steps", request.max_steps)),
        tools=_patterns(headers, autopilot=autopilot),
        functions=_functions(request.tools or []),
        tool_choice=_tool_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        max_output_tokens=None
        if request.max_output_tokens is None
        else min(request.max_output_tokens, MAX_OUTPUT_TOKENS),
        response_format=_response_format(request.response_format),
        server_instructions=_chosen(headers, INSTRUCTIONS_HEADER, ("omit", "prepend"), is_second=autopilot),
        personal=_flag(headers, PERSONAL_HEADER, default=False),
        context_overflow="shorten"
        if _chosen(headers, CONTEXT_HEADER, ("error", "shorten"), is_second=autopilot)
        else "error",
    )
    stream = bool(request.stream)
    events = stream and autopilot and _flag(headers, "x-autopilot-events", default=True)
    thread_id = _thread_id(headers.get("x-thread-id"))
    return CompletionOptions(
        model=request.model,
        run=run,
        thread_id=thread_id,
        lifetime=_lifetime(headers, is_new=thread_id is None),
        stream=stream,
        events=events,
        usage=request.stream_options is not None and request.stream_options.include_usage,
        cancels=_flag(headers, "x-cancel-on-disconnect"),
        choices=_choices(request, events=events),
        checked=_chosen(headers, STREAM_HEADER, ("live", "checked"), is_second=False),
    )


def _choices(request: CompletionBody, *, events: bool) -> int:
    count = 1 if request.n is None else request.n
    if count > 1 and events:
        raise InvalidInput("A stream of Khala's events has one choice: n must be 1.", path="n")
    if count > 1 and isinstance(request.messages[-1], ToolMessage):
        raise InvalidInput("After the result of a tool there is one choice: n must be 1.", path="n")
    return count


def path_of(field: str) -> str:
    """Return the path of an option of the run in the body of a request."""
    return f"{FORMAT_PATH}.schema" if field == "response_format" else field


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
        wrong = place.rstrip("`") or message.partition(" ")[0]  # A limit out of bounds has no place, but its message.
        name = next((name for name, field in BUDGETS.items() if field == wrong), "x-budget-usd")
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
        "strict": bool(tool.function.strict),
    }
    return convert(definition, ClientFunction, path)


def _sampling(request: CompletionBody) -> dict[str, Any]:
    """The options of a run with the names of OpenAI's protocol."""
    for name in ("stop", "user", "metadata"):
        check_json(getattr(request, name), name)
    given = {name: getattr(request, name) for name in SAMPLING}
    stop = (request.stop,) if isinstance(request.stop, str) else request.stop
    return {name: value for name, value in given.items() if value is not None} | {"stop": tuple(stop or ())}


def _tool_choice(requested: ToolChoiceOption | None) -> ToolChoice | None:
    match requested:
        case NamedTool(function=function):
            return convert({"mode": "required", "tools": [function.name]}, ToolChoice, "tool_choice")
        case AllowedTools(allowed_tools=subset):
            names = [tool.function.name for tool in subset.tools]
            return convert({"mode": subset.mode, "tools": names}, ToolChoice, "tool_choice")
        case None | "auto":
            return None
        case mode:
            return ToolChoice(mode=mode)


def _response_format(requested: AnswerFormat | None) -> ResponseFormat | None:
    match requested:
        case JsonObjectFormat():
            return ResponseFormat(type="json_object")
        case JsonSchemaFormat(json_schema=definition):
            given = {
                "type": "json_schema",
                "name": definition.name,
                "description": definition.description or "",
                "schema": definition.schema,
                "strict": bool(definition.strict),
            }
            return convert(given, ResponseFormat, FORMAT_PATH)
        case _:
            return None


def convert(fields: dict[str, Any], struct: type[Struct], path: str) -> Struct:
    """Return the struct with these fields. Raises `InvalidInput` with the place of the value below the path."""
    check_json(fields, path)
    try:
        return msgspec.convert(fields, struct)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{message.rstrip('.')}.", path=path + where.rstrip("`")) from error


def _chosen(headers: Mapping[str, str], name: str, words: tuple[str, str], *, is_second: bool) -> bool:
    """Return whether a header has the second of these words. Without the header, `is_second` is the answer."""
    value = headers.get(name, words[is_second]).strip().lower()
    if value not in words:
        raise InvalidInput(f"Send {words[0]} or {words[1]}.", path=name)
    return value == words[1]


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
