"""Assembles an answer from the events of its stream: what the protocols have in common.

The text of all events that arrive in one read is joined, so that it is passed on in as few chunks as possible.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice

from khala.domain.parts import TokenLogprob
from khala.models.failures import ProviderRefusalError
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming.tool_call_assembly import ToolCallAssembly

MAX_LOGPROBS = 10_000
"""Tokens of an answer whose probabilities are read."""


class AnswerAssembly(ABC):
    """Reads one stream. Keep `read` fast: it runs once per token."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """All text so far, with reasoning."""
        self.has_chunk = False
        """Whether an event of the protocol has arrived."""
        self.is_done = False
        """Whether the last event of the stream has arrived."""
        self.finish_reason: str | None = None
        """Why the answer ended, in the words of the provider."""
        self.tool_calls = ToolCallAssembly()
        self.logprobs: list[TokenLogprob] = []
        """The probabilities of the text's tokens, at most `MAX_LOGPROBS`."""
        self.deltas = self.chars = 0
        """Number of pieces of text and reasoning, and of their characters."""
        self._pending_type: type[TextChunk | ReasoningChunk] = TextChunk
        self._pending: list[str] = []

    @property
    @abstractmethod
    def outcome(self) -> str | None:
        """The finish reason as `call_result.build_completed` takes it."""

    @property
    @abstractmethod
    def token_counts(self) -> tuple[int, int]:
        """Tokens of input and output; zeros if the provider reported none."""

    @property
    def token_details(self) -> tuple[int, int]:
        """Cached tokens of the input, and tokens of reasoning; zeros if the provider reported none."""
        return 0, 0

    @abstractmethod
    def _read_event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
        """Read the data of one event. Returns the pending text that is complete before it, from `_append`."""

    def close(self, rest: bytes) -> None:  # noqa: B027  # most protocols ignore it
        """The stream has ended. `rest` is the data of an event that is incomplete."""

    @property
    def expects_text(self) -> bool:
        """Whether more text will probably follow, rather than reasoning, a tool call or the end."""
        return self._pending_type is TextChunk and bool(self.texts) and not (self.finish_reason or self.tool_calls)

    def read(self, events: Iterable[bytes]) -> Iterator[TextChunk | ReasoningChunk]:
        """The joined text of these events.

        Raises `ProviderRefusalError` for an error event and `ValueError` for an invalid one, after the text before it.
        """
        problem: Exception | None = None
        try:
            for event in events:
                if event and not self.is_done:
                    yield from self._read_event(event)
        except (ProviderRefusalError, ValueError, RecursionError) as error:
            problem = error
        if self._pending:
            yield self._flush()
        if problem is not None:
            raise problem

    def _add_logprobs(self, tokens: Iterable[TokenLogprob]) -> None:
        self.logprobs += islice(tokens, MAX_LOGPROBS - len(self.logprobs))

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
