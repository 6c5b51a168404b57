"""An answer read from its events: what it says is handed on in as few pieces as it came in reads."""

from collections.abc import Iterable, Iterator

from khala.models.failures import ProviderRefusalError
from khala.models.openai import chunks
from khala.models.openai.chunks import Choice, ContentPiece, Counts
from khala.models.openai.tool_call_assembly import ToolCallAssembly
from khala.models.port import ReasoningChunk, TextChunk

DONE = b"[DONE]"
"""The protocol's own end; servers there are that send no finish reason."""
THINK, THOUGHT = "<think>", "</think>"
"""Tokens of their own around the reasoning of open models, where a server doesn't tell it apart."""


class AnswerReader:
    """Reads one stream. Keep `read` thin: all of it runs once per token."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        """All that was said, reasoning included."""
        self.begun = False
        """A chunk has come."""
        self.done = False
        """The protocol's own end has come."""
        self.finish: str | None = None
        self.counts: Counts | None = None
        self.calls = ToolCallAssembly()
        self._thinking = False
        self._voice: type[TextChunk | ReasoningChunk] = TextChunk
        self._said: list[str] = []

    def read(self, events: Iterable[bytes]) -> Iterator[TextChunk | ReasoningChunk]:
        """The joined text of the events of one read. Then raises for an event that is unreadable or an error.

        Raises `ProviderRefusalError` or `ValueError`.
        """
        problem: Exception | None = None
        try:
            for event in events:
                yield from self._event(event)
        except (ProviderRefusalError, ValueError, RecursionError) as error:
            problem = error
        if self._said:
            yield self._flushed()
        if problem is not None:
            raise problem

    def _event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
        if self.done or not event:
            return ()
        if event.startswith(DONE):
            self.done = True
            return ()
        chunk = chunks.decode(event)
        if chunk.error:
            raise ProviderRefusalError.of(chunk.error)
        self.begun = True
        if chunk.usage is not None:
            self.counts = chunk.usage
        return self._choice(chunk.choices[0]) if chunk.choices else ()

    def _choice(self, choice: Choice) -> Iterable[TextChunk | ReasoningChunk]:
        if choice.finish_reason and self.finish != "content_filter":
            self.finish = choice.finish_reason
        delta = choice.delta
        if delta is None:
            return ()
        if delta.refusal:
            self.finish = "content_filter"
            return ()
        if delta.tool_calls:
            self.calls.add(delta.tool_calls)
        thought = delta.reasoning or delta.reasoning_content
        changed = self._say(ReasoningChunk, thought) if thought and isinstance(thought, str) else ()
        if delta.content:
            content = delta.content if isinstance(delta.content, str) else _text(delta.content)
            return (*changed, *self._content(content))
        return changed

    def _content(self, content: str) -> Iterable[TextChunk | ReasoningChunk]:
        """Text, or the reasoning between its tags; a tag counts only as a token of its own."""
        if content == (THOUGHT if self._thinking else THINK):
            self._thinking = not self._thinking
            return ()
        return self._say(ReasoningChunk if self._thinking else TextChunk, content) if content else ()

    def _say(self, voice: type[TextChunk | ReasoningChunk], text: str) -> Iterable[TextChunk | ReasoningChunk]:
        before = (self._flushed(),) if self._said and voice is not self._voice else ()
        self._voice = voice
        self._said.append(text)
        return before

    def _flushed(self) -> TextChunk | ReasoningChunk:
        text = "".join(self._said)
        self._said.clear()
        self.heard.append(text)
        return self._voice(text)


def _text(parts: list[ContentPiece]) -> str:
    return "".join(part.text or "" for part in parts)
