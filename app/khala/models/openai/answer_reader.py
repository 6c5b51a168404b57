"""Reads the text, reasoning and tool calls of an answer from the events of OpenAI's protocol."""

from collections.abc import Iterable

from khala.domain.parts import LikelyToken, TokenLogprob
from khala.models.failures import ProviderRefusalError
from khala.models.openai import chunks
from khala.models.openai.chunks import Choice, ChunkLogprob, ChunkUsage, ContentPart
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming.answer_assembly import AnswerAssembly

DONE_EVENT = b"[DONE]"
"""The last event of a stream in OpenAI's protocol. Some servers send it without a finish reason before."""
THINK_START, THINK_END = "<think>", "</think>"
"""Tokens around the reasoning of open models, on servers that don't send reasoning in a field of its own."""
OUTCOMES = {"length": "length", "content_filter": "content_filter"}
"""Finish reasons other than `stop`. Any other value counts as `stop`, because servers use many words for it."""


class AnswerReader(AnswerAssembly):
    """Reads one stream of OpenAI, or of a server that speaks its protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.usage: ChunkUsage | None = None
        self._is_thinking = False

    @property
    def outcome(self) -> str | None:
        """The finish reason. A stream that ends with `[DONE]` is complete also without one."""
        reason = self.finish_reason
        return OUTCOMES.get(reason, "stop") if reason else "stop" if self.is_done else None

    @property
    def token_counts(self) -> tuple[int, int]:
        """Tokens of input and output."""
        usage = self.usage
        return (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)

    @property
    def token_details(self) -> tuple[int, int]:
        """Cached tokens of the input, and tokens of reasoning."""
        prompt = self.usage.prompt_tokens_details if self.usage else None
        completion = self.usage.completion_tokens_details if self.usage else None
        return (prompt and prompt.cached_tokens) or 0, (completion and completion.reasoning_tokens) or 0

    @property
    def expects_text(self) -> bool:
        """Whether more text will probably follow."""
        return super().expects_text and not (self._is_thinking or self.usage)

    def close(self, rest: bytes) -> None:
        """Some servers send `[DONE]` without the line feeds after it."""
        self.is_done = self.is_done or rest.startswith(DONE_EVENT)

    def _read_event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
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
        if choice.logprobs is not None and choice.logprobs.content:
            self._add_logprobs(map(_logprob, choice.logprobs.content))
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


def _logprob(given: ChunkLogprob) -> TokenLogprob:
    top = tuple(LikelyToken(token=one.token, logprob=one.logprob) for one in given.top_logprobs or ())
    return TokenLogprob(token=given.token, logprob=given.logprob, bytes=given.bytes, top=top)


def _text(parts: list[ContentPart]) -> str:
    return "".join(part.text or "" for part in parts)
