"""The demo model: its answers, its pace, and the failures that it simulates on request."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.parts import TokenUsage
from khala.models.demo import script as demo_script
from khala.models.demo.model import DemoModel
from khala.models.demo.script import Script, delays, write
from khala.models.port import Completed, ModelEvent, ModelFailed, Prompt, PromptTurn, TextChunk


def prompt(text: str, limit: int | None = None) -> Prompt:
    return Prompt(system="Be kind.", turns=(PromptTurn(role="user", text=text),), max_output_tokens=limit)


async def ask(text: str, limit: int | None = None) -> list[ModelEvent]:
    async with DemoModel().stream(prompt(text, limit)) as events:
        return [event async for event in events]


def text_of(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextChunk))


async def failing(text: str, model: DemoModel | None = None) -> tuple[ModelFailed, str]:
    received: asyncio.Queue[ModelEvent] = asyncio.Queue()
    with pytest.raises(ModelFailed) as caught:
        await listen(model or DemoModel(), text, received)
    return caught.value, text_of([received.get_nowait() for _ in range(received.qsize())])


async def listen(model: DemoModel, text: str, received: asyncio.Queue[ModelEvent]) -> None:
    async with model.stream(prompt(text)) as events:
        async for event in events:
            received.put_nowait(event)


async def test_the_answer_is_markdown_that_quotes_the_question_and_explains_the_demo() -> None:
    answer = text_of(await ask("What is   love? /pace=0"))
    for expected in ("demo model", "“What is love? /pace=0”", "\n## ", "\n1. ", "```sh", "| --- |", "KHALA_MODEL="):
        assert expected in answer


async def test_help_lists_every_directive() -> None:
    answer = text_of(await ask("/help /pace=0"))
    for directive in ("words", "pace", "fail", "hang", "empty", "ratelimit", "echo", "help"):
        assert f"`/{directive}" in answer


async def test_words_are_numbered_and_each_is_a_token() -> None:
    events = await ask("please /words=300 /pace=0")
    assert text_of(events).split() == [f"word{number}" for number in range(1, 301)]
    assert len(events) == 301
    assert events[-1] == Completed(usage=TokenUsage(input_tokens=9, output_tokens=300), finish_reason="stop")


async def test_a_token_limit_truncates_the_answer_with_reason_length() -> None:
    events = await ask("/words=10 /pace=0", limit=3)
    assert text_of(events) == "word1 word2 word3 "
    assert isinstance(events[-1], Completed)
    assert events[-1].finish_reason == "length"


@given(st.text())
def test_an_echo_is_exact_whatever_its_tokens(text: str) -> None:
    assert "".join(write(f"/pace=0 /echo {text}").tokens) == text


@given(st.sampled_from(["/words=30", "Hello?", "/help", "/empty", "/echo aé👩 x"]), st.integers(0, 400))
def test_an_interrupted_answer_continues_where_it_ended(message: str, place: int) -> None:
    whole = "".join(write(message).tokens)
    script = write(message, partial_answer=whole[:place])
    assert whole[:place] + "".join(script.tokens) == whole
    assert all(script.tokens)


def test_a_simulated_failure_keeps_its_place_in_a_continued_answer() -> None:
    assert write("/words=9 /hang=5", partial_answer="word1 word2 ").hang_after == 3
    assert write("/words=9 /hang=5", partial_answer="word1 word2 word3 word4 word5 word6 ").hang_after == 0


def test_earlier_text_that_does_not_match_is_ignored() -> None:
    assert write("/words=2", partial_answer="As I said").tokens == ("word1 ", "word2")


def test_directives_after_echo_are_text() -> None:
    script = write("/echo /words=3 /fail=0")
    assert ("".join(script.tokens), script.fail_after) == ("/words=3 /fail=0", None)


@given(st.text())
def test_no_message_crashes_the_demo_model(text: str) -> None:
    script = write(text)
    assert all(script.tokens)
    assert len(list(delays(script))) == len(script.tokens)


UNREADABLE = ("/words=", "/words=x", "/words=-1", "/pace=1.5", "/words=3,1", "/fail", "x/empty", "/emptyx")


@pytest.mark.parametrize("word", UNREADABLE)
def test_a_directive_that_cannot_be_read_is_an_ordinary_word(word: str) -> None:
    script = write(word)
    assert script == Script(tokens=script.tokens)
    assert f"You asked: “{word}”" in "".join(script.tokens)


def test_words_and_pace_are_bounded() -> None:
    script = write("/words=999999999 /pace=999999999")
    assert (len(script.tokens), script.pace) == (demo_script.MAX_WORDS, demo_script.MAX_PACE)


def test_the_natural_pace_varies_a_little_and_is_the_same_every_time() -> None:
    script = write("Tell me something.")
    waits = list(delays(script))
    assert waits == list(delays(script))
    assert len(set(waits)) > len(waits) / 2
    assert 40 < len(waits) / sum(waits) < 60
    assert 3 < sum(map(len, script.tokens)) / len(script.tokens) <= 4


def test_a_requested_pace_is_even() -> None:
    assert set(delays(write("/words=9 /pace=200"))) == {1 / 200}
    assert set(delays(write("/words=9 /pace=0"))) == {0.0}


async def test_the_pace_is_kept_by_the_clock() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await ask("/words=50 /pace=500")
    assert 0.1 <= loop.time() - began < 2


async def test_an_empty_answer_completes() -> None:
    assert await ask("/empty") == [Completed(usage=TokenUsage(input_tokens=4), finish_reason="stop")]


@pytest.mark.parametrize(
    ("after", "midstream", "expected"),
    [(0, False, ""), (2, True, "word1 word2 "), (9, True, "word1 word2 word3")],
)
async def test_a_failure_comes_after_so_many_tokens(after: int, midstream: bool, expected: str) -> None:
    failure, text = await failing(f"/words=3 /pace=0 /fail={after}")
    assert (failure.code, failure.retryable, failure.midstream, text) == ("connection_lost", True, midstream, expected)


async def test_a_hang_sends_its_tokens_and_ends_when_cancelled() -> None:
    received: asyncio.Queue[ModelEvent] = asyncio.Queue()

    listening = asyncio.create_task(listen(DemoModel(), "/words=3 /pace=0 /hang=2", received))
    assert [await asyncio.wait_for(received.get(), 1) for _ in range(2)] == [TextChunk("word1 "), TextChunk("word2 ")]
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening
    assert received.empty()


async def test_an_uncounted_rate_limit_has_a_wait_and_never_ends() -> None:
    model = DemoModel()
    for _ in range(4):
        failure, text = await failing("/ratelimit=2", model)
        assert (failure.code, failure.retryable, failure.retry_after, text) == ("rate_limited", True, 2.0, "")


async def test_a_counted_rate_limit_ends_in_an_answer_and_starts_over() -> None:
    model = DemoModel()
    for _ in range(2):
        await failing("/ratelimit=1,2 /empty", model)
        await failing("/ratelimit=1,2 /empty", model)
        async with model.stream(prompt("/ratelimit=1,2 /empty")) as events:
            assert isinstance(await anext(events), Completed)


async def test_the_last_message_of_the_user_counts() -> None:
    said_before = (PromptTurn(role="user", text="/empty"), PromptTurn(role="assistant", text="/empty"))
    prompted = Prompt(system="", turns=(*said_before, PromptTurn(role="user", text="/words=1")))
    async with DemoModel().stream(prompted) as events:
        assert text_of([event async for event in events]) == "word1"


@pytest.mark.parametrize("make", [lambda: Prompt(system="", turns=()), lambda: prompt("")])
async def test_an_empty_prompt_is_answered_too(make: Callable[[], Prompt]) -> None:
    async with DemoModel().stream(make()) as events:
        assert isinstance(await anext(events), TextChunk)


def test_scripts_can_be_compared() -> None:
    assert write("/empty") == Script(tokens=())
