"""Measures the building of a prompt from a long conversation: `python -m tests.bench.context`.

Compared are the first prompt of a run, later prompts of the same run, which reuse what was counted, and counting every
turn anew, as a builder without a memory has to. All are measured in turns, so that other load affects them alike.
"""

import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

from khala.domain.chat import Message
from khala.domain.fold import TextBlock
from khala.domain.run_progress import RunProgress
from khala.models.token_counter import TokenCounter
from khala.runs.prompt import PromptInput, fit
from khala.runs.prompt_messages import message_turns
from khala.runs.prompt_tokens import ModelTokenCounter

TURNS = 2000
CHARACTERS = 600
LIMIT = 32_000
ROUNDS = 15


def conversation(turns: int, characters: int) -> list[Message]:
    """A conversation of so many messages, each of so many characters."""
    now, text = datetime(2026, 1, 1, tzinfo=UTC), "The quick brown fox jumps over the lazy dog. " * characters
    return [
        Message(
            id=UUID(int=number), thread_id=UUID(int=1), role="user" if number % 2 == 0 else "assistant", status="final",
            seq=0, content=(TextBlock(text=f"{number} {text}"[:characters]),), created_at=now, updated_at=now,
        )
        for number in range(1, turns + 1)
    ]  # fmt: skip


def milliseconds(action: Callable[[], object]) -> float:
    """The time of one call."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Measure, and print the medians."""
    history, counter = conversation(TURNS, CHARACTERS), ModelTokenCounter(TokenCounter(), "none")
    figures: dict[str, list[float]] = {"first prompt of a run": [], "later prompt of a run": [], "counting all": []}

    def build(content: PromptInput) -> None:
        fit(content, system="Be brief.", limit=LIMIT, token_counter=counter)

    for _ in range(ROUNDS):
        content = PromptInput(history=history, progress=RunProgress())
        figures["first prompt of a run"].append(milliseconds(lambda content=content: build(content)))  # type: ignore[misc]
        figures["later prompt of a run"].append(milliseconds(lambda content=content: build(content)))  # type: ignore[misc]
        figures["counting all"].append(milliseconds(lambda: [counter.turns(message_turns(one)) for one in history]))
    print(f"{TURNS:,} turns of {CHARACTERS} characters, limit {LIMIT:,} tokens, medians of {ROUNDS}")
    for name, times in figures.items():
        print(f"{name:>24}: {statistics.median(times):7.2f} ms")


if __name__ == "__main__":
    main()
