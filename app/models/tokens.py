"""How many tokens a text is: counted where the model's vocabulary is at hand, else estimated, never waiting.

OpenAI's vocabularies are read by tiktoken from TIKTOKEN_CACHE_DIR, or fetched once where the network allows it. `ready`
does that in a thread of its own and waits a few seconds at most; `count` is plain computation and uses what is there.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from app.domain.parts import Usage
from app.models.port import Prompt

PATIENCE = 3.0
"""Seconds that `ready` waits for a vocabulary."""
RETRY_AFTER = 600.0
"""Seconds for which a failure is remembered."""
NEWEST = "o200k_base"


class Count(msgspec.Struct, frozen=True):
    """A number of tokens, and whether it is an estimate."""

    tokens: int
    estimated: bool


class Vocabulary(Protocol):
    """What is used of a `tiktoken.Encoding`."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode without treating special tokens specially: a user may write `<|endoftext|>`."""
        ...


def estimate(text: str) -> int:
    """UTF-8 bytes / 4, rounded up: 20 % too many for prose, half too few for dense JSON."""
    return (len(text.encode(errors="surrogatepass")) + 3) // 4


def estimate_usage(prompt: Prompt, answer: str) -> Usage:
    """The usage of a call whose provider told none."""
    asked = sum(map(estimate, (prompt.system, *(turn.text for turn in prompt.turns), prompt.said)))
    return Usage(input_tokens=asked, output_tokens=estimate(answer))


class Counter:
    """Counts tokens. One for the process: vocabularies are a hundred megabytes in memory."""

    def __init__(
        self,
        load: Callable[[str], Vocabulary] | None = None,
        *,
        patience: float = PATIENCE,
        retry_after: float = RETRY_AFTER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load or _from_tiktoken
        self._patience = patience
        self._retry_after = retry_after
        self._clock = clock
        self._loaded: dict[str, Vocabulary] = {}
        self._tried: dict[str, float] = {}

    def count(self, text: str, model: str) -> Count:
        """The tokens of `text` for a model by name. Never blocks on anything but the counting (10 ms a megabyte)."""
        vocabulary, certain = _vocabulary_of(model)
        loaded = self._loaded.get(vocabulary) if vocabulary else None
        if loaded is None:
            return Count(estimate(text), estimated=True)
        return Count(len(loaded.encode_ordinary(text)), estimated=not certain)

    async def ready(self, model: str) -> bool:
        """Get the model's vocabulary, waiting `patience` seconds at most; true if `count` will use it.

        A failure is remembered for `retry_after` seconds. What comes too late for this call is used by the next ones.
        """
        vocabulary, _ = _vocabulary_of(model)
        if vocabulary is None or vocabulary in self._loaded:
            return vocabulary is not None
        now = self._clock()
        if now - self._tried.get(vocabulary, float("-inf")) < self._retry_after:
            return False
        self._tried[vocabulary] = now
        await self._fetch(vocabulary)
        return vocabulary in self._loaded

    async def _fetch(self, vocabulary: str) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def fetch() -> None:
            try:
                self._loaded[vocabulary] = self._load(vocabulary)
            except Exception:  # noqa: BLE001  # no network, no right to write the cache, a broken file: estimates do
                return
            finally:
                with suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(done.set)

        # A daemon, not an executor's thread: tiktoken's download has no time-out and must not delay the program's end.
        threading.Thread(target=fetch, name=f"vocabulary-{vocabulary}", daemon=True).start()
        try:
            async with asyncio.timeout(self._patience):
                await done.wait()
        except TimeoutError:
            return


def _vocabulary_of(model: str) -> tuple[str | None, bool]:
    """The vocabulary of a model, and whether that is known or a good guess; None for other makers' models."""
    from tiktoken.model import encoding_name_for_model

    try:
        return encoding_name_for_model(model), True
    except KeyError:
        return (NEWEST, False) if model.startswith("gpt-") else (None, False)


def _from_tiktoken(vocabulary: str) -> Vocabulary:
    import tiktoken

    return tiktoken.get_encoding(vocabulary)
