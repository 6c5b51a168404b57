"""The prompt: instructions, and as much of the newest history as the model takes."""

from collections.abc import Sequence
from typing import Literal

from app.domain.chat import Message
from app.domain.fold import text_of
from app.models.port import ModelFailed, Prompt, Turn
from app.models.tokens import Counter

MOST_MESSAGES = 1000
"""Messages that are looked at for one prompt."""
TOKEN_BYTES = 16
"""Bytes that a token has at the most, near enough: what is read of the history for one prompt."""
TURN_TOKENS = 4
"""What a turn costs beyond its text."""


def build(history: Sequence[Message], *, system: str, said: str, limit: int, counter: Counter, model: str) -> Prompt:
    """The prompt for a history that ends with the question, in at most `limit` tokens; what doesn't fit is the oldest.

    `said` is what the answer under way has said already. Raises `ModelFailed` if the question alone is too long.
    """
    turns = [turn for message in history if (turn := _turn(message)) is not None]
    left = limit - sum(_cost(text, counter, model) for text in (system, said))
    kept: list[Turn] = []
    for turn in reversed(turns):
        left -= _cost(turn.text, counter, model)
        if left < 0:
            break
        kept.append(turn)
    if not kept:
        raise ModelFailed("context_exceeded", "This message is longer than the model can read.")
    return Prompt(system=system, turns=tuple(reversed(kept)), said=said)


def _turn(message: Message) -> Turn | None:
    text = text_of(message.content or ())
    role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
    return Turn(role=role, text=text) if text else None


def _cost(text: str, counter: Counter, model: str) -> int:
    return counter.count(text, model).tokens + TURN_TOKENS if text else 0
