"""The port to language models: takes a prompt and streams events."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from khala.domain.generation import DEFAULT_GENERATION, GenerationOptions, ResponseFormat
from khala.domain.parts import TokenLogprob, TokenUsage
from khala.domain.tools import ToolSpec

SUMMARISE = "Summarise the conversation"
"""Text in the last user turn that requests a summary of the turns before. The demo model recognises it."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call by the model. `problem`: why its arguments are invalid, if they are."""

    id: str
    name: str
    args: dict[str, Any]
    problem: str | None = None


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call in a prompt; `id` and `name` are those of the call."""

    id: str
    name: str
    text: str
    ok: bool


class PromptFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a user's message."""

    name: str
    media_type: str
    data: bytes


class PromptTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation in a prompt.

    A user's turn may have `files`, and an assistant's turn `uses` of tools. Their outcomes follow in a turn of the role
    `tool`, in the order of the uses.
    """

    role: Literal["user", "assistant", "system", "tool"]
    text: str = ""
    files: tuple[PromptFile, ...] = ()
    uses: tuple[ToolUse, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a model: instructions, then the conversation, oldest first. The last turn is a user's or of tools.

    `partial_answer` is the text of the answer before its executor was lost. The model continues after it. `generation`
    is how the model writes the answer, as far as its provider can do so.
    """

    system: str
    turns: tuple[PromptTurn, ...]
    tools: tuple[ToolSpec, ...] = ()
    partial_answer: str = ""
    max_output_tokens: int | None = None
    generation: GenerationOptions = DEFAULT_GENERATION

    @property
    def requires_tool(self) -> bool:
        """Whether the reply has to call a tool."""
        return bool(self.tools) and self.generation.tool_mode == "required"

    @property
    def native_format(self) -> ResponseFormat | None:
        """The format of JSON for the provider to enforce. None for the rest of an answer, which alone does not fit."""
        return None if self.partial_answer.strip() or self.requires_tool else self.generation.json_format


class TextChunk(msgspec.Struct, frozen=True):
    """Text that is added to the answer."""

    text: str


class ReasoningChunk(msgspec.Struct, frozen=True):
    """Text that is added to the model's reasoning."""

    text: str


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is complete. This is the last event of each successful call.

    `estimated`: the provider reported no usage, so the tokens are an estimate. `uses`: the tool calls, in the model's
    order; they are not empty if and only if the finish reason is `tool_calls`. `cached_tokens` of the input were read
    from the provider's cache, and `reasoning_tokens` of the output are reasoning, as far as the provider reports it.
    `logprobs` are those of the text's tokens, if they were requested and the provider has them.
    """

    usage: TokenUsage
    finish_reason: Literal["stop", "length", "tool_calls"]
    estimated: bool = False
    uses: tuple[ToolUse, ...] = ()
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


ModelEvent: TypeAlias = TextChunk | ReasoningChunk | Completed


HoldText: TypeAlias = Callable[[Callable[[], bool], float, float], None]
"""Tells the reader of a run's text that a model's client stopped reading, which saves reads of single tokens.

The first argument makes the client read again; it returns whether text has arrived meanwhile. The others are the deltas
and characters per second that the model sent last.
"""


class LanguageModel(Protocol):
    """A model that can be called. Leaving the context, or cancelling the task inside it, closes the connection."""

    name: str
    """The provider's name of the model, for example `gpt-5-mini`."""
    provider: str
    """The provider's name, for example `openai`, or `demo`."""
    reads_tools: bool
    """Whether the definitions of a prompt's tools count as input tokens."""

    def enforces(self, schema: dict[str, Any]) -> bool:
        """Whether the provider makes an answer fit this JSON Schema, so that the prompt need not describe it."""
        ...

    def stream(
        self, prompt: Prompt, hold: HoldText | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model once, without retries. Raises `ModelFailed`, before or between the events.

        With `hold`, text after the first may be read later, until it is asked for.
        """
        ...


class ModelFailed(Exception):
    """A model call failed.

    `code`: `rate_limited`, `overloaded`, `unavailable` (5xx), `connection_lost`, `timeout`, `invalid_response`,
    `option_refused` (an option of the request), `refused` (any other 4xx: bad request, wrong key, unknown model) or
    `context_exceeded` (the prompt is too long for the model). `cause`: why it was `refused`, if that is known:
    `invalid_key`, `quota_exhausted`, `unknown_model` or `content_filtered`. `retryable`: the same call may succeed
    later. `retry_after`: seconds that the provider asked to wait. `midstream`: events arrived before the failure. The
    message is for the person in the chat; `__cause__` has the provider's error.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        cause: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        midstream: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.cause = cause
        self.retryable = retryable
        self.retry_after = retry_after
        self.midstream = midstream
