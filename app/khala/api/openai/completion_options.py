"""How a run shall go that a request for a chat completion asks for: its body and its `x-…` headers as run options."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.api.openai.errors import ModelNotFound
from khala.api.openai.request_body import Completion, Tool
from khala.api.validation import check_json
from khala.domain.chat import DEFAULT_STEPS, MAX_FUNCTIONS, MAX_TOOL_PATTERNS, ClientFunction, RunBudget, RunOptions
from khala.domain.errors import InvalidInput
from khala.domain.idempotency import RequestIdentity

DEFAULTS = ("khala", "default")
"""Names of whatever model the server has for its default."""
YES, NO = ("true", "1", "yes", "on"), ("", "false", "0", "no", "off")
BUDGETS: dict[str, str] = {
    "x-budget-usd": "usd", "x-budget-tokens": "tokens", "x-budget-seconds": "seconds",
    "x-budget-tool-calls": "toolCalls",
}  # fmt: skip
THREAD_HEADERS = ("x-thread", "x-thread-ttl")
HEADERS = (
    "x-thread-id", *THREAD_HEADERS, "x-autopilot", "x-autopilot-events", "x-max-steps", "x-khala-tools",
    "x-cancel-on-disconnect", *BUDGETS,
)  # fmt: skip
"""What a request may say besides what OpenAI's own may."""
MOST_OUTPUT = 1_000_000
EPHEMERAL_SECONDS = 3_600
"""How long an ephemeral thread lasts unless the request says otherwise."""
MIN_EPHEMERAL_SECONDS = 60
MAX_EPHEMERAL_SECONDS = 7 * 86_400
WHOLE = re.compile(r"[0-9]{1,9}")


class CompletionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that a request wants besides its messages.

    `events`: the stream tells of the rounds of tools, in a form of its own. `usage`: a chunk with the usage at the end.
    `lasts`: the thread is on no list, and ends after that time. `ignored`: places of the request that change nothing.
    """

    model: str
    run: RunOptions
    thread_id: UUID | None
    lasts: timedelta | None = None
    stream: bool
    events: bool
    usage: bool
    cancels: bool
    ignored: tuple[str, ...] = ()
    identity: RequestIdentity | None = None


def read(asked: Completion, headers: Mapping[str, str], context: Context) -> CompletionOptions:
    """The options. Raises `InvalidInput`, and `ModelNotFound` for a model that is not offered."""
    autopilot = _flag(headers, "x-autopilot")
    run = RunOptions(
        model=model_named(asked.model, context),
        budget=_budget(headers),
        autopilot=autopilot,
        max_steps=_steps(headers.get("x-max-steps", asked.max_steps)),
        tools=_patterns(headers, autopilot=autopilot),
        functions=() if asked.tool_choice == "none" else _functions(asked.tools or []),
        max_output_tokens=None if asked.most_tokens is None else min(asked.most_tokens, MOST_OUTPUT),
    )
    stream = bool(asked.stream)
    thread_id = _thread_id(headers.get("x-thread-id"))
    return CompletionOptions(
        model=asked.model,
        run=run,
        thread_id=thread_id,
        lasts=_lasts(headers, is_new=thread_id is None),
        stream=stream,
        events=stream and autopilot and _flag(headers, "x-autopilot-events", otherwise=True),
        usage=asked.stream_options is not None and asked.stream_options.include_usage,
        cancels=_flag(headers, "x-cancel-on-disconnect"),
    )


def model_named(name: str, context: Context) -> str | None:
    """The model as a run is told it, None for the default. Raises `ModelNotFound`."""
    if name in DEFAULTS:
        return None
    if not context.models.is_allowed(name):
        raise ModelNotFound(f"The model {name[:100]!r} does not exist here. GET /v1/models lists those that do.")
    return name


def _flag(headers: Mapping[str, str], name: str, *, otherwise: bool = False) -> bool:
    said = headers.get(name)
    if said is None:
        return otherwise
    if said.strip().lower() not in YES + NO:
        raise InvalidInput("Send true or false.", path=name)
    return said.strip().lower() in YES


def _steps(said: Any) -> int:
    """The rounds that are asked for; whatever is no number of rounds is the usual one."""
    if isinstance(said, str):
        return int(said) if WHOLE.fullmatch(said.strip()) else DEFAULT_STEPS
    return min(said, 10**9) if isinstance(said, int) and not isinstance(said, bool) else DEFAULT_STEPS


def _budget(headers: Mapping[str, str]) -> RunBudget | None:
    said = {field: headers[name].strip() for name, field in BUDGETS.items() if name in headers}
    if not said:
        return None
    try:
        return msgspec.convert(said, RunBudget, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        name = next((name for name, field in BUDGETS.items() if field == place.rstrip("`")), "x-budget-usd")
        raise InvalidInput(message, path=name) from error


def _patterns(headers: Mapping[str, str], *, autopilot: bool) -> tuple[str, ...] | None:
    """Which of Khala's own tools are offered: on autopilot all, else none, unless some are named."""
    said = headers.get("x-khala-tools")
    if said is None:
        return None if autopilot else ()
    patterns = tuple(word.strip() for word in said.split(",") if word.strip())
    if len(patterns) > MAX_TOOL_PATTERNS or any(len(word) > 200 for word in patterns):
        raise InvalidInput(f"At most {MAX_TOOL_PATTERNS} patterns, of at most 200 characters.", path="x-khala-tools")
    return patterns


def _functions(tools: list[Tool]) -> tuple[ClientFunction, ...]:
    if len(tools) > MAX_FUNCTIONS:
        raise InvalidInput(f"At most {MAX_FUNCTIONS} tools.", path="tools")
    return tuple(_function(place, tool) for place, tool in enumerate(tools))


def _function(place: int, tool: Tool) -> ClientFunction:
    path = f"tools[{place}].function"
    said = {
        "name": tool.function.name,
        "description": tool.function.description or "",
        "parameters": tool.function.parameters or {},
    }
    check_json(said, path)
    try:
        return msgspec.convert(said, ClientFunction)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        raise InvalidInput(f"{message}.", path=path + where.rstrip("`")) from error


def _lasts(headers: Mapping[str, str], *, is_new: bool) -> timedelta | None:
    """How long a new thread lasts, if it is to end by itself."""
    kind, seconds = (headers.get(name, "").strip() for name in THREAD_HEADERS)
    if kind not in ("", "ephemeral"):
        raise InvalidInput("x-thread may say ephemeral.", path="x-thread")
    if kind and not is_new:
        raise InvalidInput("Only a new thread can be made ephemeral.", path="x-thread")
    if seconds and not kind:
        raise InvalidInput("This is for ephemeral threads: send x-thread: ephemeral, too.", path="x-thread-ttl")
    if not kind:
        return None
    lasts = int(seconds) if WHOLE.fullmatch(seconds) else None if seconds else EPHEMERAL_SECONDS
    if lasts is None or not MIN_EPHEMERAL_SECONDS <= lasts <= MAX_EPHEMERAL_SECONDS:
        bounds = f"{MIN_EPHEMERAL_SECONDS} to {MAX_EPHEMERAL_SECONDS:,}"
        raise InvalidInput(f"A thread may last {bounds} seconds.", path="x-thread-ttl")
    return timedelta(seconds=lasts)


def _thread_id(said: str | None) -> UUID | None:
    if said is None:
        return None
    try:
        return UUID(said.strip())
    except ValueError as error:
        raise InvalidInput("A thread's id is a UUID.", path="x-thread-id") from error
