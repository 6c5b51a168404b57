"""How many tokens a text is: counted where the model's vocabulary is at hand, else estimated, never waiting.

OpenAI's vocabularies are read by tiktoken from TIKTOKEN_CACHE_DIR, or fetched once where the network allows it. `ready`
does that in a thread of its own and waits a few seconds at most; `count` is plain computation and uses what is there.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from khala.domain.parts import TokenUsage
from khala.domain.tools import ToolSpec
from khala.models import prompt_files
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolUse

PATIENCE = 3.0
"""Seconds that `ready` waits for a vocabulary."""
RETRY_AFTER = 600.0
"""Seconds for which a failure is remembered."""
NEWEST = "o200k_base"
IMAGE = 1000
"""Tokens of an image, of any size: providers scale them down."""
SMALLEST_PDF = 2000
PDF_BYTES = 100
"""Bytes of a PDF for a token: its pages are read as text and seen as images."""
MAX_REMEMBERED_TOOLS = 2048
"""Tools whose size is remembered: the same few hundred are offered in every call."""

_tools: dict[int, tuple[ToolSpec, int]] = {}
"""By id, which is not another's while the tool is kept here."""


class TokenCount(msgspec.Struct, frozen=True):
    """A number of tokens, and whether it is an estimate."""

    tokens: int
    estimated: bool


class Vocabulary(Protocol):
    """The used part of `tiktoken.Encoding`."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode without treating special tokens specially: a user may write `<|endoftext|>`."""
        ...


def estimate(text: str) -> int:
    """UTF-8 bytes / 4, rounded up: 20 % too many for prose, half too few for dense JSON."""
    return (len(text.encode(errors="surrogatepass")) + 3) // 4


def estimate_usage(prompt: Prompt, answer: str, uses: Sequence[ToolUse] = (), *, tools: bool = True) -> TokenUsage:
    """The usage of a call whose provider told none; without the prompt's tools where the model doesn't read them."""
    asked = estimate(prompt.system) + estimate(prompt.said) + sum(map(estimate_turn, prompt.turns))
    offered = sum(map(estimate_tool, prompt.tools)) if tools else 0
    return TokenUsage(input_tokens=asked + offered, output_tokens=estimate(answer) + estimate_uses(uses))


def estimate_turn(turn: PromptTurn) -> int:
    """The tokens of a turn, with its files, its tool calls and their results."""
    told = sum(estimate(outcome.name) + estimate(outcome.text) for outcome in turn.outcomes)
    return estimate(turn.text) + told + estimate_uses(turn.uses) + sum(map(estimate_file, turn.files))


def estimate_uses(uses: Sequence[ToolUse]) -> int:
    """The tokens of a model's output that calls these tools."""
    return sum(estimate(use.name) + _size(msgspec.json.encode(use.args)) for use in uses)


def estimate_file(file: PromptFile) -> int:
    """Of a text its length, of an image a flat sum, of a PDF a sum by its size."""
    match prompt_files.sort(file):
        case "text":
            return _size(file.data) + estimate(file.name)
        case "image":
            return IMAGE
        case "pdf":
            return max(SMALLEST_PDF, len(file.data) // PDF_BYTES)
        case "other":
            return estimate(file.name)


def estimate_tool(spec: ToolSpec) -> int:
    """The tokens of a tool's definition in a prompt."""
    known = _tools.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_tools) >= MAX_REMEMBERED_TOOLS:
            _tools.clear()
        known = _tools[id(spec)] = spec, _size(msgspec.json.encode([spec.name, spec.description, spec.parameters]))
    return known[1]


def _size(encoded: bytes) -> int:
    return (len(encoded) + 3) // 4


class TokenCounter:
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

    def count(self, text: str, model: str) -> TokenCount:
        """The tokens of `text` for a model by name. Never blocks on anything but the counting (10 ms a megabyte)."""
        vocabulary, certain = _vocabulary_of(model)
        loaded = self._loaded.get(vocabulary) if vocabulary else None
        if loaded is None:
            return TokenCount(estimate(text), estimated=True)
        return TokenCount(len(loaded.encode_ordinary(text)), estimated=not certain)

    def count_turn(self, turn: PromptTurn, model: str) -> TokenCount:
        """The tokens of a turn with all that belongs to it; what is in files is estimated."""
        used = (f"{use.name} {msgspec.json.encode(use.args).decode()}" for use in turn.uses)
        told = (f"{outcome.name} {outcome.text}" for outcome in turn.outcomes)
        counted = self.count("\n".join((turn.text, *used, *told)), model)
        held = sum(map(estimate_file, turn.files))
        return TokenCount(counted.tokens + held, estimated=counted.estimated or bool(held))

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
