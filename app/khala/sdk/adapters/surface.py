"""The part of a run that adapters use. `AgentRunContext` of the server has it, and `RunContext` of a worker."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from pydantic_core import to_jsonable_python

from khala.domain.redaction import redacted

log = structlog.get_logger()

MAX_NAME_CHARACTERS = 64
MAX_ERROR_CHARACTERS = 500
MAX_BODY_CHARACTERS = 16_384
"""Characters of the body of a provider's error that are searched for secrets."""
MAX_LOGGED_CHARACTERS = 1_000
OUTPUT = "final_result"
"""The call that stores an output that is no text."""


class TurnText(Protocol):
    """The text of a message of the conversation. `role` is user, assistant or system."""

    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102


class StoredCall(Protocol):
    """A call that the run has made before it was interrupted."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def args(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def ended(self) -> bool: ...  # noqa: D102


class EndedCall(Protocol):
    """How a call ended. `error` is the message of a call that failed, or was denied."""

    @property
    def output(self) -> Any: ...  # noqa: D102
    @property
    def error(self) -> str | None: ...  # noqa: D102
    @property
    def denied(self) -> bool: ...  # noqa: D102


class RunSurface(Protocol):
    """A run, as adapters use it: see `khala.sdk.AgentRunContext`. Its agent has `replay=False`."""

    @property
    def run_id(self) -> object: ...  # noqa: D102
    @property
    def history(self) -> Sequence[TurnText]: ...  # noqa: D102
    @property
    def error_type(self) -> type[Exception]: ...  # noqa: D102
    async def read_blocks(self) -> Sequence[str | StoredCall]: ...  # noqa: D102
    async def text(self, text: str) -> None: ...  # noqa: D102
    async def tool_call(  # noqa: D102
        self,
        key: str,
        name: str,
        args: dict[str, Any],
        function: Callable[[dict[str, Any]], Any],
        /,
        *,
        approve: bool = False,
    ) -> EndedCall: ...
    def usage(  # noqa: D102
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost_usd: str | None = None,
        milliseconds: int = 0,
    ) -> None: ...


class PastReply(NamedTuple):
    """A reply of a model before the run was interrupted: its text, and the calls that followed from it."""

    text: str
    calls: Sequence[StoredCall]


def past_replies(
    blocks: Sequence[str | StoredCall], *, ends_reply: Callable[[StoredCall], bool] = lambda _: False
) -> tuple[list[PastReply], str]:
    """The replies that have ended, and the text after them, which belongs to a reply that was interrupted.

    A reply ends with its calls, and with a call of which `ends_reply` says so.
    """
    replies: list[PastReply] = []
    text, calls = "", list[StoredCall]()
    for block in blocks:
        if calls and (isinstance(block, str) or ends_reply(calls[-1])):
            replies.append(PastReply(text, calls))
            text, calls = "", []
        if isinstance(block, str):
            text += block
        else:
            calls.append(block)
    if calls:
        replies.append(PastReply(text, calls))
        text = ""
    return replies, text


class ReplyWriter:
    """Writes the text of a run that may have been interrupted.

    `unfinished` is the stored text of the interrupted reply. A reply that begins with it continues it. Another reply is
    written whole, as a paragraph after it.
    """

    def __init__(self, surface: RunSurface, unfinished: str) -> None:
        self._surface = surface
        self._unfinished = unfinished
        self._matched = ""
        self.is_empty = not unfinished
        """Whether the run has no text yet, or none since the last call before it was interrupted."""

    async def write(self, text: str) -> None:
        """Add text of a reply."""
        if not text:
            return None
        self.is_empty = False
        if not self._unfinished:
            return await self._surface.text(text)
        matched = self._matched + text
        if self._unfinished.startswith(matched):
            self._matched = matched
            return None
        rest = matched[len(self._unfinished) :] if matched.startswith(self._unfinished) else f"\n\n{matched}"
        self._unfinished = self._matched = ""
        return await self._surface.text(rest)

    def end_reply(self) -> None:
        """The reply has ended, so the next one is written whole."""
        if self._matched:
            self._unfinished = self._matched = ""


def stored_output(replies: Sequence[PastReply]) -> Any:
    """The output that the run has stored before it was interrupted, None if it has not."""
    last = replies[-1].calls[-1] if replies else None
    return None if last is None or last.name != OUTPUT else last.args["output"]


async def store_output(surface: RunSurface, writer: ReplyWriter, output: Any) -> Any:
    """Store an output that is no text as a call, and as JSON in the answer if that has no text. Returns it."""
    await surface.tool_call(OUTPUT, OUTPUT, {"output": output}, lambda args: args["output"])
    if writer.is_empty:
        await surface.text(json.dumps(output, ensure_ascii=False, indent=2))
    return output


def call_name(name: str) -> str:
    """The name of a tool in the form that Khala accepts."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME_CHARACTERS]
    return name if re.match("[A-Za-z]", name) else f"t_{name}"[:MAX_NAME_CHARACTERS]


def as_object(value: Any) -> dict[str, Any]:
    """Arguments of a call as a JSON object. Libraries have them as text, as an object, or as any other value."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else {}
        except ValueError:
            value = {"input": value}
    value = to_jsonable_python(value, fallback=repr)
    return value if isinstance(value, dict) else {"value": value}


def as_output(value: Any) -> Any:
    """The result of a library's tool as JSON types; what is none of them, by its `repr`."""
    return to_jsonable_python(value, fallback=repr)


def status_of(error: BaseException) -> int | None:
    """The HTTP status with which a model's provider has failed, as the clients of providers report it."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def log_refused_call(error: BaseException) -> None:
    """Log a provider's answer to a failed call, for operators: bounded, and without what looks like a secret."""
    body = getattr(error, "body", None)
    text = body if isinstance(body, str) else json.dumps(to_jsonable_python(body, fallback=repr), ensure_ascii=False)
    shown = redacted(text[:MAX_BODY_CHARACTERS])[:MAX_LOGGED_CHARACTERS]
    log.warning("library_model_call_failed", error=type(error).__name__, status=status_of(error), body=shown)


def model_failure(error: Exception, error_type: type[Exception]) -> Exception:
    """Return the error to raise for a refused call of a model, which is logged; `error` itself if it is another one."""
    status = status_of(error)
    if status is None:
        return error
    log_refused_call(error)
    return error_type(f"The model failed with the status {status}.")


def failure_of(error: BaseException) -> str:
    """A line about an error of a library, for people."""
    line = " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
