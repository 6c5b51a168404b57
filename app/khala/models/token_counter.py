"""Counts the tokens of texts with the model's vocabulary if it is loaded, and estimates them otherwise.

tiktoken reads OpenAI's vocabularies from TIKTOKEN_CACHE_DIR, or downloads them once. `TokenCounter.load` does that in a
thread and waits a few seconds at most. `TokenCounter.count` never waits: it uses the vocabularies that are loaded.
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

LOAD_TIMEOUT_SECONDS = 3.0
"""Time that `load` waits for a vocabulary."""
RETRY_INTERVAL_SECONDS = 600.0
"""Time after a failed load before the next one."""
NEWEST_VOCABULARY = "o200k_base"
IMAGE_TOKENS = 1000
"""Estimate for an image of any size, because providers scale images down."""
MIN_PDF_TOKENS = 2000
PDF_BYTES_PER_TOKEN = 100
"""Estimate for PDFs, whose pages are read as text and as images."""
MAX_REMEMBERED_TOOLS = 2048
"""Tools whose size is cached, because every call offers the same few hundred."""

_tools: dict[int, tuple[ToolSpec, int]] = {}
"""Tools and their sizes, by `id()`, which stays unique because the tools are referenced here."""


class TokenCount(msgspec.Struct, frozen=True):
    """A number of tokens, and whether it is an estimate."""

    tokens: int
    estimated: bool


class Vocabulary(Protocol):
    """The part of `tiktoken.Encoding` that is used."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode special tokens as plain text, because a user may write `<|endoftext|>`."""
        ...


def estimate(text: str) -> int:
    """UTF-8 bytes / 4, rounded up. The estimate is 20 % too high for prose, and by half too low for dense JSON."""
    return (len(text.encode(errors="surrogatepass")) + 3) // 4


def estimate_usage(prompt: Prompt, answer: str, uses: Sequence[ToolUse] = (), *, tools: bool = True) -> TokenUsage:
    """The usage of a call whose provider reported none. `tools`: whether the prompt's tools count as input."""
    text_tokens = estimate(prompt.system) + estimate(prompt.partial_answer) + sum(map(estimate_turn, prompt.turns))
    tool_tokens = sum(map(estimate_tool, prompt.tools)) if tools else 0
    return TokenUsage(input_tokens=text_tokens + tool_tokens, output_tokens=estimate(answer) + estimate_uses(uses))


def estimate_turn(turn: PromptTurn) -> int:
    """The tokens of a turn, with its files, its tool calls and their results."""
    outcome_tokens = sum(estimate(outcome.name) + estimate(outcome.text) for outcome in turn.outcomes)
    return estimate(turn.text) + outcome_tokens + estimate_uses(turn.uses) + sum(map(estimate_file, turn.files))


def estimate_uses(uses: Sequence[ToolUse]) -> int:
    """The tokens of a model's output that calls these tools."""
    return sum(estimate(use.name) + _size(msgspec.json.encode(use.args)) for use in uses)


def estimate_file(file: PromptFile) -> int:
    """The tokens of a file: for text by its length, for a PDF by its size, and for an image a constant."""
    match prompt_files.kind_of(file):
        case "text":
            return _size(file.data) + estimate(file.name)
        case "image":
            return IMAGE_TOKENS
        case "pdf":
            return max(MIN_PDF_TOKENS, len(file.data) // PDF_BYTES_PER_TOKEN)
        case "other":
            return estimate(file.name)


def estimate_tool(spec: ToolSpec) -> int:
    """The tokens of a tool's definition in a prompt."""
    cached = _tools.get(id(spec))
    if cached is None or cached[0] is not spec:
        if len(_tools) >= MAX_REMEMBERED_TOOLS:
            _tools.clear()
        cached = _tools[id(spec)] = spec, _size(msgspec.json.encode([spec.name, spec.description, spec.parameters]))
    return cached[1]


def _size(encoded: bytes) -> int:
    return (len(encoded) + 3) // 4


class TokenCounter:
    """Counts tokens. A process has one, because vocabularies take a hundred megabytes of memory."""

    def __init__(
        self,
        load: Callable[[str], Vocabulary] | None = None,
        *,
        timeout: float = LOAD_TIMEOUT_SECONDS,
        retry_interval: float = RETRY_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_vocabulary = load or _from_tiktoken
        self._timeout = timeout
        self._retry_interval = retry_interval
        self._clock = clock
        self._loaded: dict[str, Vocabulary] = {}
        self._tried_at: dict[str, float] = {}

    def count(self, text: str, model: str) -> TokenCount:
        """The tokens of `text` for a model by name. Takes 10 ms for a megabyte of text."""
        vocabulary, is_certain = _vocabulary_of(model)
        loaded = self._loaded.get(vocabulary) if vocabulary else None
        if loaded is None:
            return TokenCount(estimate(text), estimated=True)
        return TokenCount(len(loaded.encode_ordinary(text)), estimated=not is_certain)

    def is_loaded(self, model: str) -> bool:
        """Whether `count` uses a vocabulary for this model, its own or the one of the newest models of its family."""
        return _vocabulary_of(model)[0] in self._loaded

    def count_turn(self, turn: PromptTurn, model: str) -> TokenCount:
        """The tokens of a turn with its tool calls, outcomes and files. Those of files are estimated."""
        uses = (f"{use.name} {msgspec.json.encode(use.args).decode()}" for use in turn.uses)
        outcomes = (f"{outcome.name} {outcome.text}" for outcome in turn.outcomes)
        counted = self.count("\n".join((turn.text, *uses, *outcomes)), model)
        file_tokens = sum(map(estimate_file, turn.files))
        return TokenCount(counted.tokens + file_tokens, estimated=counted.estimated or bool(file_tokens))

    async def load(self, model: str) -> bool:
        """Load the model's vocabulary. Returns whether `count` will use it, after the timeout at the latest.

        After a failure, calls return False for the retry interval. A vocabulary that is loaded after the timeout is
        used from then on.
        """
        vocabulary, _ = _vocabulary_of(model)
        if vocabulary is None or vocabulary in self._loaded:
            return vocabulary is not None
        now = self._clock()
        if now - self._tried_at.get(vocabulary, float("-inf")) < self._retry_interval:
            return False
        self._tried_at[vocabulary] = now
        await self._fetch(vocabulary)
        return vocabulary in self._loaded

    async def _fetch(self, vocabulary: str) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def fetch() -> None:
            try:
                self._loaded[vocabulary] = self._load_vocabulary(vocabulary)
            except Exception:  # noqa: BLE001  # no network, no right to write the cache, a broken file: tokens are estimated
                return
            finally:
                with suppress(RuntimeError):  # the event loop has ended in the meantime
                    loop.call_soon_threadsafe(done.set)

        # A daemon thread, because tiktoken's download has no timeout and must not delay the end of the process.
        threading.Thread(target=fetch, name=f"vocabulary-{vocabulary}", daemon=True).start()
        try:
            async with asyncio.timeout(self._timeout):
                await done.wait()
        except TimeoutError:
            return


def _vocabulary_of(model: str) -> tuple[str | None, bool]:
    """The vocabulary of a model, and whether it is certain or a guess. None for models that are not by OpenAI."""
    from tiktoken.model import encoding_name_for_model

    try:
        return encoding_name_for_model(model), True
    except KeyError:
        return (NEWEST_VOCABULARY, False) if model.startswith("gpt-") else (None, False)


def _from_tiktoken(vocabulary: str) -> Vocabulary:
    import tiktoken

    return tiktoken.get_encoding(vocabulary)
