"""The one port to a language model: a prompt goes in, events come out while the model speaks."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from khala.domain.parts import TokenUsage
from khala.domain.tools import ToolSpec

SUMMARISE = "Summarise the conversation"
"""Words of the last user's turn by which a model is asked to summarise what comes before; the demo model knows them."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model calls. `problem` says why its arguments can't be read, where they can't."""

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
    """A file that belongs to a user's message."""

    name: str
    media_type: str
    data: bytes


class PromptTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation as a model is told it.

    A user's may have `files`, an assistant's `uses` of tools; their outcomes follow in a turn of the role `tool`, in
    the order of the uses.
    """

    role: Literal["user", "assistant", "system", "tool"]
    text: str = ""
    files: tuple[PromptFile, ...] = ()
    uses: tuple[ToolUse, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a model: instructions, then the conversation, oldest first. The last turn is a user's or of tools.

    `said` is the text that the answer had before its executor was lost: the model continues after it.
    """

    system: str
    turns: tuple[PromptTurn, ...]
    tools: tuple[ToolSpec, ...] = ()
    said: str = ""
    max_output_tokens: int | None = None


class TextChunk(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class ReasoningChunk(msgspec.Struct, frozen=True):
    """More of the model's reasoning."""

    text: str


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The model said all it would; always the last event of a call that went well.

    `estimated` says that the provider gave no usage and the tokens were counted here. `uses` are the tools that it
    calls, in its order; there are some if and only if the reason is `tool_calls`.
    """

    usage: TokenUsage
    finish_reason: Literal["stop", "length", "tool_calls"]
    estimated: bool = False
    uses: tuple[ToolUse, ...] = ()


ModelEvent: TypeAlias = TextChunk | ReasoningChunk | Completed


class LanguageModel(Protocol):
    """A model that can be called. Leaving the context, or cancelling the task inside it, closes the connection."""

    name: str
    """As the provider calls it, for example `gpt-5-mini`."""
    provider: str
    """`openai`, `anthropic`, `google` or `demo`."""
    reads_tools: bool
    """Whether what a prompt's tools are counts as input."""

    def stream(self, prompt: Prompt) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Call the model once, without retries. Raises `ModelFailed`, before or in the midst of the events."""
        ...


class ModelFailed(Exception):
    """A model call failed.

    `code`: `rate_limited`, `overloaded`, `unavailable` (5xx), `connection_lost`, `timeout`, `invalid_response`,
    `refused` (any other 4xx: bad request, wrong key, unknown model) or `context_exceeded` (the prompt is longer than
    the model takes). `retryable`: the same call may succeed later. `retry_after`: seconds the provider asked for.
    `midstream`: events had come before. The message is for the person in the chat; `__cause__` has what the provider
    said.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        midstream: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.retry_after = retry_after
        self.midstream = midstream
