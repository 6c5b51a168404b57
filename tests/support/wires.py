"""The three wire protocols of real providers from the server's side: bytes for each part of an answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

_encode = msgspec.json.encode


@dataclass(frozen=True, kw_only=True)
class UseTool:
    """A tool call as a provider sends it."""

    name: str
    args: Any = field(default_factory=dict)
    raw: str | None = None
    """This text instead of `args`, unchanged; not possible in protocols with JSON arguments."""
    id: str | None = "use-1"
    piece: int = 1000
    """Characters of the arguments in one chunk."""

    @property
    def pieces(self) -> Sequence[str]:
        """The arguments as they are streamed."""
        text = _encode(self.args).decode() if self.raw is None else self.raw
        return [text[start : start + self.piece] for start in range(0, len(text), self.piece)]


@dataclass(frozen=True)
class Wire:
    """One protocol. Every function returns whole server-sent events."""

    name: str
    opening: Callable[[str], bytes]
    """The events before the first token, given the model's name."""
    token: Callable[[str], bytes]
    reasoning: Callable[[str], bytes]
    closing: Callable[[str, tuple[int, int] | None], bytes]
    """The finish reason (`stop`, `length`, `tool_calls` or one of the protocol's own), usage (input, output tokens)."""
    calls: Callable[[Sequence[UseTool]], bytes]
    failure: Callable[[int, str], Any]
    """The JSON body of an error with this HTTP status."""
    failure_event: Callable[[Any], bytes]
    """The same error as an event inside an open stream."""
    prompt: Callable[[Mapping[str, Any]], str]
    """The text of the last user message in a request's body."""
    steps: Callable[[Mapping[str, Any]], int]
    """The number of steps with tool calls since that message."""
    garbage: bytes = b'data: {"id": "chatcm\n\n'
    """An event whose JSON is broken."""
    reasoning_begins: bytes = b""
    text_begins: bytes = b""
    """The events before the first token of this kind."""


def _event(body: Any) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"


def _templated(event: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """The same function, but it encodes only the text: a benchmark's server spends most of its time here."""
    before, after = event("TEXT").split(b'"TEXT"')
    return lambda text: before + _encode(text) + after


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())


def _last_user(messages: Any, key: str) -> str:
    found = (_texts(message[key]) for message in reversed(messages or ()) if message.get("role") == "user")
    return next(filter(None, found), "")


def _steps(messages: Any, key: str, used: Callable[[Mapping[str, Any]], bool]) -> int:
    """The number of messages with tool calls after the last text of the user."""
    count = 0
    for message in reversed(messages or ()):
        if message.get("role") == "user" and _texts(message[key]):
            break
        count += used(message)
    return count


def _openai_used(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls"))


def _anthropic_used(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    return isinstance(content, list) and any(part["type"] == "tool_use" for part in content)


def _google_used(message: Mapping[str, Any]) -> bool:
    return any("functionCall" in part for part in message["parts"])


def _openai_chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _event(
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "local", "choices": [choice]}
    )


def _openai_closing(finish: str, usage: tuple[int, int] | None) -> bytes:
    end = _openai_chunk({}, finish)
    if usage is not None:
        counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
        whole = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "local"}
        end += _event({**whole, "choices": [], "usage": counts})
    return end + b"data: [DONE]\n\n"


def _openai_calls(uses: Sequence[UseTool]) -> bytes:
    chunks = []
    for index, use in enumerate(uses):
        head = {"index": index, "type": "function", "function": {"name": use.name, "arguments": ""}}
        chunks.append({**head, "id": use.id} if use.id is not None else head)
        chunks += [{"index": index, "function": {"arguments": piece}} for piece in use.pieces]
    return b"".join(_openai_chunk({"tool_calls": [chunk]}) for chunk in chunks)


def _openai_failure(status: int, message: str) -> Any:
    kinds = {429: "rate_limit_exceeded", 400: "invalid_request_error", 401: "invalid_api_key"}
    code = "context_length_exceeded" if "context length" in message else kinds.get(status, "server_error")
    code = "insufficient_quota" if "quota" in message else code
    param = "temperature" if "'temperature'" in message else None
    return {"error": {"message": message, "type": code, "param": param, "code": code}}


OPENAI: Final = Wire(
    name="openai",
    opening=lambda model: _openai_chunk({"role": "assistant", "content": ""}),
    token=_templated(lambda text: _openai_chunk({"content": text})),
    reasoning=lambda text: _openai_chunk({"reasoning_content": text}),
    closing=_openai_closing,
    calls=_openai_calls,
    failure=_openai_failure,
    failure_event=_event,
    prompt=lambda body: _last_user(body.get("messages"), "content"),
    steps=lambda body: _steps(body.get("messages"), "content", _openai_used),
)


def _anthropic_event(kind: str, body: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\n".encode() + _event({"type": kind, **body})


def _anthropic_opening(model: str) -> bytes:
    usage = {"input_tokens": 0, "output_tokens": 0}
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    return _anthropic_event("message_start", {"message": message}) + _anthropic_event("ping", {})


def _anthropic_block(index: int, block: Mapping[str, Any]) -> bytes:
    return _anthropic_event("content_block_start", {"index": index, "content_block": block})


def _anthropic_delta(index: int, delta: Mapping[str, Any]) -> bytes:
    return _anthropic_event("content_block_delta", {"index": index, "delta": delta})


def _anthropic_closing(finish: str, usage: tuple[int, int] | None) -> bytes:
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}.get(finish, finish)
    counts = {"input_tokens": usage[0], "output_tokens": usage[1]} if usage else {"output_tokens": 0}
    delta = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": counts}
    stop = _anthropic_event("content_block_stop", {"index": 1})
    return stop + _anthropic_event("message_delta", delta) + _anthropic_event("message_stop", {})


def _anthropic_calls(uses: Sequence[UseTool]) -> bytes:
    events = []
    for index, use in enumerate(uses, 2):
        events.append(_anthropic_block(index, {"type": "tool_use", "id": use.id, "name": use.name, "input": {}}))
        events += [_anthropic_delta(index, {"type": "input_json_delta", "partial_json": piece}) for piece in use.pieces]
        events.append(_anthropic_event("content_block_stop", {"index": index}))
    return b"".join(events)


def _anthropic_failure(status: int, message: str) -> Any:
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
    return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}


ANTHROPIC: Final = Wire(
    name="anthropic",
    opening=_anthropic_opening,
    token=_templated(lambda text: _anthropic_delta(1, {"type": "text_delta", "text": text})),
    reasoning=lambda text: _anthropic_delta(0, {"type": "thinking_delta", "thinking": text}),
    closing=_anthropic_closing,
    calls=_anthropic_calls,
    failure=_anthropic_failure,
    failure_event=lambda body: b"event: error\n" + _event(body),
    prompt=lambda body: _last_user(body.get("messages"), "content"),
    steps=lambda body: _steps(body.get("messages"), "content", _anthropic_used),
    garbage=b'event: content_block_delta\ndata: {"type": "conte\n\n',
    reasoning_begins=_anthropic_block(0, {"type": "thinking", "thinking": "", "signature": ""}),
    text_begins=_anthropic_block(1, {"type": "text", "text": ""}),
)


def _google_part(part: Mapping[str, Any]) -> bytes:
    content = {"parts": [part], "role": "model"}
    return _event({"candidates": [{"content": content, "index": 0}], "modelVersion": "local"})


def _google_closing(finish: str, usage: tuple[int, int] | None) -> bytes:
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}.get(finish, finish)
    body: dict[str, Any] = {"candidates": [{"finishReason": reason, "index": 0}], "modelVersion": "local"}
    if usage is not None:
        counts = {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1], "totalTokenCount": sum(usage)}
        body["usageMetadata"] = counts
    return _event(body)


def _google_calls(uses: Sequence[UseTool]) -> bytes:
    named = ({"name": use.name, "args": use.args} | ({"id": use.id} if use.id else {}) for use in uses)
    return b"".join(_google_part({"functionCall": call}) for call in named)


def _google_failure(status: int, message: str) -> Any:
    kinds = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
    kinds |= {500: "INTERNAL", 503: "UNAVAILABLE", 529: "UNAVAILABLE"}
    return {"error": {"code": status, "message": message, "status": kinds.get(status, "UNKNOWN")}}


GOOGLE: Final = Wire(
    name="google",
    opening=lambda model: b"",
    token=_templated(lambda text: _google_part({"text": text})),
    reasoning=lambda text: _google_part({"text": text, "thought": True}),
    closing=_google_closing,
    calls=_google_calls,
    failure=_google_failure,
    failure_event=_event,
    prompt=lambda body: _last_user(body.get("contents"), "parts"),
    steps=lambda body: _steps(body.get("contents"), "parts", _google_used),
)


def of(path: str) -> Wire | None:
    """The protocol of a request's path."""
    if path.endswith("/chat/completions"):
        return OPENAI
    if path.endswith("/messages"):
        return ANTHROPIC
    return GOOGLE if ":streamGenerateContent" in path else None
