"""Reads the text, reasoning and tool calls of an answer from the events of Anthropic's Messages API.

https://docs.anthropic.com/en/docs/build-with-claude/streaming. Signatures of thinking are ignored, because Khala sends
no thinking back.
"""

from collections.abc import Iterable
from typing import Any

from khala.models.anthropic import events
from khala.models.anthropic.events import ContentBlock, MessageEvent, MessageUsage
from khala.models.failures import ProviderRefusalError
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming.answer_assembly import AnswerAssembly
from khala.models.streaming.tool_call_assembly import FunctionDelta, ToolCallDelta

OUTCOMES = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "content_filter"}
"""Stop reasons that are not a regular end."""
STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that each type of error has in a response. An error inside a stream has only the type."""


class MessageReader(AnswerAssembly):
    """Reads one stream of the Messages API. Events and blocks of unknown types are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self._usage = MessageUsage()
        self._tool_blocks: set[int] = set()

    @property
    def outcome(self) -> str | None:
        """The finish reason."""
        return OUTCOMES.get(self.finish_reason, "stop") if self.finish_reason else None

    @property
    def token_counts(self) -> tuple[int, int]:
        """Tokens of input, with those of the cache, and of output."""
        usage = self._usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return (usage.input_tokens or 0) + cached, usage.output_tokens or 0

    @property
    def token_details(self) -> tuple[int, int]:
        """Cached tokens of the input. Anthropic does not count reasoning."""
        return self._usage.cache_read_input_tokens or 0, 0

    def _read_event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
        decoded = events.decode(event)
        match decoded.type:
            case "content_block_delta":
                return self._read_delta(decoded)
            case "content_block_start" if decoded.content_block is not None:
                return self._begin_block(decoded.index, decoded.content_block)
            case "error":
                raise parse_error(decoded.error)
            case "message_stop":
                self.is_done = True
            case _:
                self._read_message(decoded)
        return ()

    def _read_message(self, event: MessageEvent) -> None:
        """Read the events around the blocks. Counts of later events replace those of earlier ones."""
        self.has_chunk = True
        if event.type == "message_start" and event.message is not None:
            self._add_usage(event.message.usage)
        elif event.type == "message_delta":
            self._add_usage(event.usage)
            if event.delta is not None and event.delta.stop_reason:
                self.finish_reason = event.delta.stop_reason

    def _begin_block(self, index: int, block: ContentBlock) -> Iterable[TextChunk | ReasoningChunk]:
        self.has_chunk = True
        if block.type == "tool_use":
            self._tool_blocks.add(index)
            function = FunctionDelta(name=block.name, arguments=block.input or None)
            self.tool_calls.add([ToolCallDelta(index=index, id=block.id, function=function)])
        return self._append_texts(block.text, block.thinking)

    def _read_delta(self, event: MessageEvent) -> Iterable[TextChunk | ReasoningChunk]:
        self.has_chunk = True
        delta = event.delta
        if delta is None:
            return ()
        if delta.partial_json and event.index in self._tool_blocks:
            function = FunctionDelta(arguments=delta.partial_json)
            self.tool_calls.add([ToolCallDelta(index=event.index, function=function)])
        return self._append_texts(delta.text, delta.thinking)

    def _append_texts(self, text: str, thinking: str) -> Iterable[TextChunk | ReasoningChunk]:
        if text:
            return self._append(TextChunk, text)
        return self._append(ReasoningChunk, thinking) if thinking else ()

    def _add_usage(self, usage: MessageUsage | None) -> None:
        for field in MessageUsage.__struct_fields__:
            if (count := getattr(usage, field, None)) is not None:
                setattr(self._usage, field, count)


def parse_error(error: Any, status: int | None = None, retry_after: float | None = None) -> ProviderRefusalError:
    """Parse an error of a response, or of a stream, which has no status."""
    kind = error.get("type") if isinstance(error, dict) else None
    return ProviderRefusalError.parse(error, status=status or STATUSES.get(str(kind)), retry_after=retry_after)
