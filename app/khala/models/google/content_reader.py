"""Reads the text, reasoning and tool calls of an answer from the events of the Gemini API.

https://ai.google.dev/api/generate-content#v1beta.GenerateContentResponse
"""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from khala.domain.parts import LikelyToken, TokenLogprob
from khala.models.google import chunks, errors
from khala.models.google.chunks import FunctionCall, GeminiCandidate, GeminiPart, LogprobsResult, UsageMetadata
from khala.models.port import ReasoningChunk, TextChunk
from khala.models.streaming.answer_assembly import AnswerAssembly
from khala.models.streaming.tool_call_assembly import FunctionDelta, ToolCallDelta

BLOCKED = "BLOCKED_PROMPT"
"""The finish reason of an answer that Google did not begin."""
OUTCOMES = {
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), "length"),
    **dict.fromkeys((BLOCKED, "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT"), "content_filter"),
    **dict.fromkeys(("SPII", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "MODEL_ARMOR"), "content_filter"),
    **dict.fromkeys(("LANGUAGE", "MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "NO_IMAGE"), "error"),
}
"""Finish reasons that are not a regular end."""


class ContentReader(AnswerAssembly):
    """Reads one stream of the Gemini API, which has no last event: it ends with the response."""

    def __init__(self) -> None:
        super().__init__()
        self._usage = UsageMetadata()
        self._calls = 0

    @property
    def outcome(self) -> str | None:
        """The finish reason."""
        return OUTCOMES.get(self.finish_reason, "stop") if self.finish_reason else None

    @property
    def token_counts(self) -> tuple[int, int]:
        """Tokens of input and of output, with those of Google's own tools and of reasoning."""
        usage = self._usage
        return (
            (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
            (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        )

    @property
    def token_details(self) -> tuple[int, int]:
        """Cached tokens of the input, and tokens of reasoning."""
        return self._usage.cached_content_token_count or 0, self._usage.thoughts_token_count or 0

    def _read_event(self, event: bytes) -> Iterable[TextChunk | ReasoningChunk]:
        chunk = chunks.decode(event)
        if chunk.error:
            raise errors.parse(chunk.error)
        self.has_chunk = True
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata
        if chunk.candidates:
            return self._read_candidate(chunk.candidates[0])
        if chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason:
            self.finish_reason = BLOCKED
        return ()

    def _read_candidate(self, candidate: GeminiCandidate) -> Iterable[TextChunk | ReasoningChunk]:
        if candidate.finish_reason and self.finish_reason != BLOCKED:
            self.finish_reason = candidate.finish_reason
        if candidate.logprobs_result is not None:
            self._add_logprobs(_logprobs(candidate.logprobs_result))
        parts = candidate.content.parts if candidate.content is not None else None
        if parts is None:
            return ()
        if len(parts) == 1:
            return self._read_part(parts[0])
        return [text for part in parts for text in self._read_part(part)]

    def _read_part(self, part: GeminiPart) -> Iterable[TextChunk | ReasoningChunk]:
        if part.function_call is not None:
            self._add_call(part.function_call)
        if not part.text:
            return ()
        return self._append(ReasoningChunk if part.thought else TextChunk, part.text)

    def _add_call(self, call: FunctionCall) -> None:
        function = FunctionDelta(name=call.name, arguments=call.args)
        self.tool_calls.add([ToolCallDelta(index=self._calls, id=call.id, function=function)])
        self._calls += 1


def _logprobs(result: LogprobsResult) -> Iterator[TokenLogprob]:
    for chosen, top in zip_longest(result.chosen_candidates or (), result.top_candidates or ()):
        if chosen is None:
            return
        likely = tuple(
            LikelyToken(token=one.token, logprob=one.log_probability) for one in (top and top.candidates) or ()
        )
        yield TokenLogprob(token=chosen.token, logprob=chosen.log_probability, top=likely)
