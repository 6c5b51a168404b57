"""Reads the text, reasoning and tool calls of an answer from the events of its stream.

The text of all events that arrive in one read is joined, so that it is passed on in as few chunks as possible.
"""

from collections.abc import Iterable, Iterator

from khala.models.failures import ProviderRefusalError
from khala.models.openai import chunks
from khala.models.openai.chunks import Choice, ChunkUsage, ContentPart
from khala.models.openai.tool_call_assembly import ToolCallAssembly
from khala.models.port import ReasoningChunk, TextChunk

DONE_EVENT = b"[DONE]"
"""The last event of a stream in OpenAI's protocol. Some servers send it without a finish reason before."""
THINK_START, THINK_END = "<think>", "</think>"
"""Tokens around the reasoning of open models, on servers that don't send reasoning in a field of its own."""


class AnswerReader:
    """Reads one stream. Keep `read` fast: it runs once per token."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """All text so far, with reasoning."""
        self.has_chunk = False
        """Whether a chunk has arrived."""
        self.is_done = False
        """Whether `[DONE]` has arrived."""
        self.finish_reason: str | None = None
        self.usage: ChunkUsage | None = None
        self.tool_calls = ToolCallAssembly()
        self.deltas = self.chars = 0
        """Number of pieces of text and reasoning, and of their characters."""
        self._is_thinking = False
        self._pending_type: type[TextChunk | ReasoningChunk] = TextChunk
        self._pending: list[str] = []

    @property
    def expects_text(self) -> bool:
        """Whether more text will probably follow, rather than reasoning, a tool call or the end."""
        return (
            self._pending_type is TextChunk
            and bool(self.texts)
            and not (self._is_thinking or self.finish_reason or self.usage or self.tool_calls)
        )

    def read(self, events: Iterable[bytes]) -> Iterator[TextChunk | ReasoningChunk]:
        """The joined text of these events.

        Raises `ProviderRefusalError` for an error event and `ValueError` for an invalid one, after the text before it.
        """
        problem: Exception | None = None
        try:
            for event in events:
                yield from self._read_event(event)
        except (ProviderRefusalError, ValueError, RecursionError) as error:
            problem = error
        if self._pending:
            yield self._flush()
        if problem is not None:
            raise problem

    def _read_event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
        if self.is_done or not event:
            return ()
        if event.startswith(DONE_EVENT):
            self.is_done = True
            return ()
        chunk = chunks.decode(event)
        if chunk.error:
            raise ProviderRefusalError.parse(chunk.error)
        self.has_chunk = True
        if chunk.usage is not None:
            self.usage = chunk.usage
        return self._read_choice(chunk.choices[0]) if chunk.choices else ()

    def _read_choice(self, choice: Choice) -> Iterable[TextChunk | ReasoningChunk]:
        if choice.finish_reason and self.finish_reason != "content_filter":
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        if delta is None:
            return ()
        if delta.refusal:
            self.finish_reason = "content_filter"
            return ()
        if delta.tool_calls:
            self.tool_calls.add(delta.tool_calls)
        reasoning = delta.reasoning or delta.reasoning_content
        flushed = self._append(ReasoningChunk, reasoning) if reasoning and isinstance(reasoning, str) else ()
        if delta.content:
            content = delta.content if isinstance(delta.content, str) else _text(delta.content)
            return (*flushed, *self._append_content(content))
        return flushed

    def _append_content(self, content: str) -> Iterable[TextChunk | ReasoningChunk]:
        """Append text, or reasoning between its tags. A tag counts only if it is a token of its own."""
        if content == (THINK_END if self._is_thinking else THINK_START):
            self._is_thinking = not self._is_thinking
            return ()
        return self._append(ReasoningChunk if self._is_thinking else TextChunk, content) if content else ()

    def _append(self, chunk_type: type[TextChunk | ReasoningChunk], text: str) -> Iterable[TextChunk | ReasoningChunk]:
        """Append to the pending text. Returns the pending text of the other type, if there is any."""
        flushed = (self._flush(),) if self._pending and chunk_type is not self._pending_type else ()
        self._pending_type = chunk_type
        self._pending.append(text)
        self.deltas += 1
        self.chars += len(text)
        return flushed

    def _flush(self) -> TextChunk | ReasoningChunk:
        text = "".join(self._pending)
        self._pending.clear()
        self.texts.append(text)
        return self._pending_type(text)


def _text(parts: list[ContentPart]) -> str:
    return "".join(part.text or "" for part in parts)
