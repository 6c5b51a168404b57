"""The fields that Khala reads of a chunk of a streamed answer. All are optional: Google omits what is empty."""

from typing import Any

import msgspec


class _Fields(msgspec.Struct, rename="camel"):
    """Fields whose names on the wire are in camel case."""


class FunctionCall(_Fields):
    """A whole tool call. Only newer models send an id."""

    name: str = ""
    args: dict[str, Any] | None = None
    id: str | None = None


class GeminiPart(_Fields):
    """A piece of text, or of reasoning if `thought` is set, or a tool call."""

    text: str | None = None
    thought: bool | None = None
    function_call: FunctionCall | None = None


class GeminiContent(_Fields):
    """The addition to the answer."""

    parts: list[GeminiPart] | None = None


class GeminiToken(_Fields):
    """A token and the logarithm of its probability."""

    token: str = ""
    log_probability: float = 0.0


class TopCandidates(_Fields):
    """The most likely tokens at one place."""

    candidates: list[GeminiToken] | None = None


class LogprobsResult(_Fields):
    """The tokens of the text, and the most likely ones at their places."""

    chosen_candidates: list[GeminiToken] | None = None
    top_candidates: list[TopCandidates] | None = None


class GeminiCandidate(_Fields):
    """One of the requested answers; Khala requests one."""

    content: GeminiContent | None = None
    finish_reason: str | None = None
    logprobs_result: LogprobsResult | None = None


class PromptFeedback(_Fields):
    """Why there is no answer."""

    block_reason: str | None = None


class UsageMetadata(_Fields):
    """Token counts so far. The prompt includes cached tokens, and excludes those of Google's own tools."""

    prompt_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    candidates_token_count: int | None = None
    thoughts_token_count: int | None = None
    cached_content_token_count: int | None = None


class GeminiChunk(_Fields):
    """One event of the stream."""

    candidates: list[GeminiCandidate] | None = None
    prompt_feedback: PromptFeedback | None = None
    usage_metadata: UsageMetadata | None = None
    error: Any = None


decode = msgspec.json.Decoder(GeminiChunk).decode
"""Decode a chunk from JSON. Raises `msgspec.DecodeError`."""
