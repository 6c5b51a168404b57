"""The one port to a language model: a prompt goes in, events come out while the model speaks."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias

import msgspec

from app.domain.parts import Usage


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the conversation as a model is told it."""

    role: Literal["user", "assistant", "system"]
    text: str


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is asked: instructions, then the conversation, oldest first, ending with the user's turn.

    `said` is what the answer has said already, before its executor was lost: the model is to go on after it.
    """

    system: str
    turns: tuple[Turn, ...]
    said: str = ""
    max_output_tokens: int | None = None


class Text(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class Reasoning(msgspec.Struct, frozen=True):
    """More of the model's reasoning."""

    text: str


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """The model said all it would; always the last event of a call that went well.

    `estimated` says that the provider gave no usage and the tokens were counted here.
    """

    usage: Usage
    finish_reason: Literal["stop", "length"]
    estimated: bool = False


Event: TypeAlias = Text | Reasoning | Completed


class Model(Protocol):
    """A model that can be called. Leaving the context, or cancelling the task inside it, closes the connection."""

    name: str
    """As the provider calls it, for example `gpt-5-mini`."""
    provider: str
    """`openai`, `anthropic`, `google` or `demo`."""

    def stream(self, prompt: Prompt) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
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
