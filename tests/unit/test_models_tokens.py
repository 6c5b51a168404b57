"""Counting and estimating tokens, when the vocabulary loads, hangs or fails."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiktoken import Encoding

from khala.domain.parts import TokenUsage
from khala.domain.tools import ToolSpec
from khala.models import token_counter
from khala.models.port import Prompt, PromptFile, PromptTurn, ToolOutcome, ToolUse
from khala.models.token_counter import TokenCount, TokenCounter

BYTES = Encoding(
    "bytes",
    pat_str=r"\S+|\s+",
    mergeable_ranks={bytes([value]): value for value in range(256)},
    special_tokens={"<|endoftext|>": 256},
)
"""A real vocabulary in which every byte is a token."""


@given(st.text())
def test_an_estimate_is_a_quarter_of_the_bytes_rounded_up(text: str) -> None:
    assert token_counter.estimate(text) == -(-len(text.encode()) // 4)


def test_half_a_surrogate_pair_is_no_error() -> None:
    assert token_counter.estimate("\ud800") == 1


def test_usage_is_estimated_from_the_whole_prompt() -> None:
    prompt = Prompt(system="1234", turns=(PromptTurn(role="user", text="12345"), PromptTurn(role="assistant", text="")))
    assert token_counter.estimate_usage(prompt, "1234") == TokenUsage(input_tokens=3, output_tokens=1)


async def test_a_loaded_vocabulary_counts_exactly() -> None:
    counter = TokenCounter(lambda name: BYTES)
    assert counter.count("žluť", "gpt-4o") == TokenCount(2, True)
    assert await counter.load("gpt-4o")
    assert counter.count("žluť", "gpt-4o") == TokenCount(6, False)


async def test_special_tokens_in_a_users_text_are_plain_text() -> None:
    counter = TokenCounter(lambda name: BYTES)
    await counter.load("gpt-4o")
    assert counter.count("<|endoftext|>", "gpt-4o") == TokenCount(13, False)


async def test_a_model_newer_than_the_tables_is_counted_but_called_an_estimate() -> None:
    counter = TokenCounter(lambda name: BYTES)
    assert await counter.load("gpt-99-nova")
    assert counter.count("four", "gpt-99-nova") == TokenCount(4, True)


async def test_models_of_other_vendors_are_estimated_without_loading_a_vocabulary() -> None:
    def never(name: str) -> Encoding:
        pytest.fail(f"asked for {name}")

    counter = TokenCounter(never)
    assert not await counter.load("claude-sonnet-5-5")
    assert counter.count("12345", "claude-sonnet-5-5") == TokenCount(2, True)


async def test_a_failure_is_remembered_and_tried_again_later() -> None:
    now, loads = 0.0, 0

    def fail(name: str) -> Encoding:
        nonlocal loads
        loads += 1
        raise ConnectionError("no network")

    counter = TokenCounter(fail, clock=lambda: now, retry_interval=600)
    assert [await counter.load("gpt-4o") for _ in range(3)] == [False] * 3
    assert loads == 1
    now = 601.0
    await counter.load("gpt-4o")
    assert loads == 2


async def test_a_hanging_load_blocks_no_caller_and_is_used_once_it_ends() -> None:
    arrive = threading.Event()

    def hang(name: str) -> Encoding:
        arrive.wait(10)
        return BYTES

    counter = TokenCounter(hang, timeout=0.05)
    assert not await counter.load("gpt-4o")
    assert counter.count("four", "gpt-4o").estimated
    arrive.set()
    async with asyncio.timeout(5):
        while counter.count("four", "gpt-4o").estimated:
            await asyncio.sleep(0.005)
    assert await counter.load("gpt-4o")


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A proxy that accepts connections and never responds, like a network that drops packets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_tiktoken_itself_does_not_hang_where_packets_are_dropped(
    black_hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, black_hole)
    counter = TokenCounter(timeout=0.3)
    async with asyncio.timeout(2):
        assert not await counter.load("gpt-4o")
    assert counter.count("12345", "gpt-4o") == TokenCount(2, True)


SPEC = ToolSpec(name="echo", description="Says it.", parameters={"type": "object"})


def test_all_of_a_turn_is_estimated() -> None:
    used = ToolUse(id="1", name="echo", args={"text": "12345678"})
    outcome = ToolOutcome(id="1", name="echo", text="12345678", ok=True)
    turns = (
        PromptTurn(role="assistant", text="1234", uses=(used,)),
        PromptTurn(role="tool", outcomes=(outcome,)),
        PromptTurn(role="user", files=(PromptFile(name="name", media_type="text/plain", data=b"12345678"),)),
    )
    assert [token_counter.estimate_turn(turn) for turn in turns] == [1 + 1 + 5, 1 + 2, 1 + 2]
    prompt = Prompt(system="", turns=turns)
    assert token_counter.estimate_usage(prompt, "1234", (used,)) == TokenUsage(input_tokens=13, output_tokens=7)


@pytest.mark.parametrize(
    ("media_type", "data", "expected"),
    [
        ("image/png", b"1" * 9999, token_counter.IMAGE_TOKENS),
        ("application/pdf", b"%PDF", token_counter.MIN_PDF_TOKENS),
        ("application/pdf; v=1", b"1" * 1_000_000, 10_000),
        ("image/svg+xml", b"<svg/>", 1 + 2),
        ("application/zip", b"PK\0\0" * 999, 1),
        ("text/plain", b"\xff\xfe" * 99, 1),
    ],
)
def test_a_file_is_estimated_by_the_content_that_a_model_receives(media_type: str, data: bytes, expected: int) -> None:
    assert token_counter.estimate_file(PromptFile(name="name", media_type=media_type, data=data)) == expected


def test_tools_count_as_prompt_tokens() -> None:
    prompt = Prompt(system="", turns=(), tools=(SPEC,) * 3)
    size = token_counter.estimate_tool(SPEC)
    assert size == token_counter.estimate('["echo","Says it.",{"type":"object"}]')
    assert token_counter.estimate_usage(prompt, "") == TokenUsage(input_tokens=3 * size)
    assert token_counter.estimate_usage(prompt, "", tools=False) == TokenUsage()


def test_tools_beyond_the_cache_size_are_estimated_correctly() -> None:
    for number in range(3 * token_counter.MAX_REMEMBERED_TOOLS):
        spec = ToolSpec(name="x" * (number % 60), description="", parameters={})
        assert token_counter.estimate_tool(spec) == (number % 60 + 13) // 4


async def test_a_turn_is_counted_with_its_calls_outcomes_and_files() -> None:
    counter = TokenCounter(lambda name: BYTES)
    await counter.load("gpt-4o")
    used = PromptTurn(role="assistant", text="abc", uses=(ToolUse(id="1", name="echo", args={}),))
    assert counter.count_turn(used, "gpt-4o") == TokenCount(len("abc\necho {}"), False)
    seen = PromptTurn(role="user", text="abc", files=(PromptFile(name="a", media_type="image/png", data=b""),))
    assert counter.count_turn(seen, "gpt-4o") == TokenCount(3 + token_counter.IMAGE_TOKENS, True)
