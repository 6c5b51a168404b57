"""The real providers' clients against a local server that speaks their protocols and breaks off, stalls and babbles."""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from app.domain.parts import Usage
from app.models.port import Completed, Event, Model, ModelFailed, Prompt, Reasoning, Text, Turn
from app.models.providers import Access, Providers, ProviderSettings
from tests.support.providers import Reply, Server, serving

PROTOCOLS = ("openai", "anthropic", "google")
PROMPT = Prompt(
    system="Be brief.",
    turns=(
        Turn(role="user", text="One?"),
        Turn(role="assistant", text="Two."),
        Turn(role="user", text="Three?"),
        Turn(role="user", text="And four?"),
    ),
)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def settings(url: str, read_timeout: float = 5.0) -> ProviderSettings:
    return ProviderSettings(
        openai=Access(url=f"{url}/v1"),
        anthropic=Access(key="key", url=url),
        google=Access(key="key", url=url),
        read_timeout=read_timeout,
        connect_timeout=2.0,
    )


@asynccontextmanager
async def calling(protocol: str, *replies: Reply, read_timeout: float = 5.0) -> AsyncIterator[tuple[Model, Server]]:
    async with serving(*replies) as server:
        providers = Providers(settings(server.url, read_timeout))
        try:
            yield providers.open(f"{protocol}:local-model"), server
        finally:
            await providers.aclose()


async def ask(model: Model, prompt: Prompt = PROMPT) -> list[Event]:
    async with model.stream(prompt) as events:
        return [event async for event in events]


async def failing(model: Model) -> tuple[ModelFailed, str]:
    """The failure of a call, and the text that came before it."""
    text: list[str] = []
    with pytest.raises(ModelFailed) as caught:
        async with model.stream(PROMPT) as events:
            async for event in events:
                assert isinstance(event, Text)
                text.append(event.text)
    return caught.value, "".join(text)


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def completed(events: list[Event]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]


@each_protocol
async def test_the_text_and_the_usage_arrive_exactly(protocol: str) -> None:
    tokens = ("\n  Hello", ", ", "wor", "ld!", " <think>", " \n")
    async with calling(protocol, Reply(tokens=tokens, usage=(11, 7))) as (model, _):
        events = await ask(model)
    assert said(events) == "".join(tokens)
    assert completed(events) == Completed(usage=Usage(input_tokens=11, output_tokens=7), finish_reason="stop")
    assert (model.provider, model.name) == (protocol, "local-model")


@each_protocol
async def test_each_token_is_an_event_of_its_own(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"))) as (model, _):
        assert (await ask(model))[:-1] == [Text("a"), Text("b"), Text("c")]


@each_protocol
async def test_a_token_is_handed_on_before_the_next_is_sent(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b"), hang_after=1)) as (model, _):
        async with asyncio.timeout(3), model.stream(PROMPT) as events:
            assert await anext(events) == Text("a")


@each_protocol
async def test_reasoning_comes_apart_from_the_answer(protocol: str) -> None:
    async with calling(protocol, Reply(reasoning=("let me ", "see"), tokens=("42",))) as (model, _):
        events = await ask(model)
    assert "".join(event.text for event in events if isinstance(event, Reasoning)) == "let me see"
    assert said(events) == "42"


@each_protocol
@pytest.mark.parametrize("cut", [1, 2, 3, 7])
async def test_text_survives_cuts_through_the_midst_of_characters_and_lines(protocol: str, cut: int) -> None:
    tokens = ("žluťoučký ", "कि", "👩‍👩‍👧‍👦", "\u2028 line", "\x85end")
    async with calling(protocol, Reply(tokens=tokens, cut=cut)) as (model, _):
        assert said(await ask(model)) == "".join(tokens)


@each_protocol
async def test_an_empty_answer_completes(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=(), usage=(5, 0))) as (model, _):
        assert await ask(model) == [Completed(usage=Usage(input_tokens=5), finish_reason="stop")]


@each_protocol
async def test_an_answer_cut_by_its_limit_says_length(protocol: str) -> None:
    async with calling(protocol, Reply(finish="length")) as (model, server):
        prompt = Prompt(system="", turns=PROMPT.turns, max_output_tokens=9)
        assert completed(await ask(model, prompt)).finish_reason == "length"
        assert ": 9" in str(server.calls[0].body)


@each_protocol
async def test_usage_is_estimated_where_the_provider_tells_none(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("12345678",), usage=None)) as (model, _):
        end = completed(await ask(model))
    assert end.estimated
    assert end.usage == Usage(input_tokens=3 + 1 + 1 + 2 + 3, output_tokens=2)


@each_protocol
async def test_the_conversation_is_told_in_order_and_in_turns(protocol: str) -> None:
    async with calling(protocol) as (model, server):
        await ask(model)
    body = str(server.calls[0].body)
    places = [body.index(text) for text in ("One?", "Two.", "Three?", "And four?")]
    assert places == sorted(places)
    assert "Be brief." in body


@each_protocol
async def test_an_interrupted_answer_is_told_and_asked_to_go_on(protocol: str) -> None:
    async with calling(protocol) as (model, server):
        await ask(model, Prompt(system="", turns=PROMPT.turns, said="The answer is fo"))
    body = str(server.calls[0].body)
    assert body.index("And four?") < body.index("The answer is fo") < body.index("Go on from exactly where it ends")


@each_protocol
@pytest.mark.parametrize(
    ("status", "message", "code", "retryable"),
    [
        (500, "oops", "unavailable", True),
        (503, "gone for a moment", "unavailable", True),
        (529, "Overloaded", "overloaded", True),
        (429, "slow down", "rate_limited", True),
        (408, "too slow", "timeout", True),
        (400, "bad parameter", "refused", False),
        (401, "bad key", "refused", False),
        (404, "no such model", "refused", False),
        (413, "too large", "context_exceeded", False),
        (418, "teapot", "refused", False),
    ],
)
async def test_an_error_status_becomes_its_code(
    protocol: str, status: int, message: str, code: str, retryable: bool
) -> None:
    async with calling(protocol, Reply(status=status, message=message)) as (model, server):
        failure, _ = await failing(model)
    assert (failure.code, failure.retryable, failure.midstream) == (code, retryable, False)
    assert failure.__cause__ is not None
    assert len(server.calls) == 1, "the SDK retried on its own"


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ("openai", "This model's maximum context length is 8192 tokens."),
        ("anthropic", "prompt is too long: 210000 tokens > 200000 maximum"),
        ("google", "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    ],
)
async def test_a_prompt_that_is_too_long_is_told_as_such(protocol: str, message: str) -> None:
    async with calling(protocol, Reply(status=400, message=message)) as (model, _):
        failure, _ = await failing(model)
    assert (failure.code, failure.retryable) == ("context_exceeded", False)


async def test_a_used_up_quota_is_no_rate_limit() -> None:
    async with calling("openai", Reply(status=429, message="You exceeded your current quota.")) as (model, _):
        failure, _ = await failing(model)
    assert (failure.code, failure.retryable) == ("refused", False)


async def test_openai_is_asked_for_the_usage() -> None:
    async with calling("openai") as (model, server):
        await ask(model)
    assert server.calls[0].body["stream_options"] == {"include_usage": True}


async def test_google_is_not_told_to_stop_after_the_longest_silence() -> None:
    async with calling("google") as (model, server):
        await ask(model)
    assert server.calls[0].headers["x-server-timeout"] == "1200"


def date_in(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@each_protocol
@pytest.mark.parametrize(
    ("header", "least", "most"),
    [(lambda: "7", 7, 7), (lambda: date_in(30), 25, 31), (lambda: date_in(-30), 0, 0)],
    ids=["seconds", "date", "past date"],
)
async def test_the_wait_a_provider_asks_for_is_passed_on(
    protocol: str, header: Callable[[], str], least: float, most: float
) -> None:
    async with calling(protocol, Reply(status=429, headers={"retry-after": header()})) as (model, _):
        failure, _ = await failing(model)
    assert failure.code == "rate_limited"
    assert failure.retry_after is not None
    assert least <= failure.retry_after <= most


@each_protocol
@pytest.mark.parametrize("reset", [False, True])
async def test_a_socket_dropped_before_the_first_token_can_be_tried_again(protocol: str, reset: bool) -> None:
    async with calling(protocol, Reply(drop_after=0, reset=reset)) as (model, _):
        failure, text = await failing(model)
    assert (failure.code, failure.retryable, failure.midstream, text) == ("connection_lost", True, False, "")


@each_protocol
async def test_a_socket_dropped_in_the_midst_is_no_quiet_success(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), drop_after=2)) as (model, _):
        failure, text = await failing(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "ab")
    assert failure.__cause__ is not None


@each_protocol
async def test_a_stream_that_ends_politely_but_too_early_is_no_quiet_success(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), end_after=2)) as (model, _):
        failure, text = await failing(model)
    assert (failure.code, failure.midstream, text) == ("connection_lost", True, "ab")


@each_protocol
async def test_a_server_that_is_not_there_is_connection_lost(protocol: str) -> None:
    async with serving() as server:
        url = server.url
    providers = Providers(settings(url))
    failure, _ = await failing(providers.open(f"{protocol}:local-model"))
    await providers.aclose()
    assert (failure.code, failure.retryable, failure.midstream) == ("connection_lost", True, False)


@each_protocol
@pytest.mark.parametrize(("spoken", "text"), [(0, ""), (2, "ab")])
async def test_silence_ends_in_a_timeout(protocol: str, spoken: int, text: str) -> None:
    reply = Reply(tokens=("a", "b", "c"), hang_after=spoken)
    async with calling(protocol, reply, read_timeout=0.3) as (model, server):
        failure, heard = await failing(model)
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
    assert (failure.code, failure.retryable, failure.midstream, heard) == ("timeout", True, spoken > 0, text)


@each_protocol
async def test_a_long_answer_is_no_silence(protocol: str) -> None:
    reply = Reply(tokens=("a",) * 12, pace=10)
    async with calling(protocol, reply, read_timeout=0.6) as (model, _):
        assert said(await ask(model)) == "a" * 12


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_garbage_is_an_invalid_response(protocol: str, spoken: int) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), garbage_after=spoken)) as (model, _):
        failure, text = await failing(model)
    assert (failure.code, failure.midstream, text) == ("invalid_response", spoken > 0, "ab"[:spoken])
    assert failure.__cause__ is not None


@each_protocol
async def test_a_web_page_in_place_of_an_answer_is_an_invalid_response(protocol: str) -> None:
    async with calling(protocol, Reply(raw=b"<!doctype html>\n<p>Sign in to the guest network.</p>\n")) as (model, _):
        failure, _ = await failing(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("invalid_response", True, False)


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_an_error_inside_the_stream_keeps_its_code(protocol: str, spoken: int) -> None:
    reply = Reply(tokens=("a", "b", "c"), fail_after=spoken, fail_status=429)
    async with calling(protocol, reply) as (model, _):
        failure, text = await failing(model)
    assert (failure.code, failure.midstream, text) == ("rate_limited", spoken > 0, "ab"[:spoken])


@pytest.mark.parametrize(
    ("protocol", "finish"), [("openai", "content_filter"), ("anthropic", "refusal"), ("google", "SAFETY")]
)
async def test_an_answer_the_provider_stopped_is_refused(protocol: str, finish: str) -> None:
    async with calling(protocol, Reply(finish=finish)) as (model, _):
        failure, _ = await failing(model)
    assert (failure.code, failure.retryable, failure.midstream) == ("refused", False, True)


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_cancelling_closes_the_connection_at_once(protocol: str, spoken: int) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), hang_after=spoken)) as (model, server):
        heard: asyncio.Queue[Event] = asyncio.Queue()
        listening = asyncio.create_task(listen(model, heard))
        call = await server.call(0)
        for _ in range(spoken):
            await asyncio.wait_for(heard.get(), 3)
        began = time.monotonic()
        listening.cancel()
        await asyncio.wait_for(call.gone.wait(), 1)
        assert call.left is not None
        assert call.left - began < 1
        with pytest.raises(asyncio.CancelledError):
            await listening


async def listen(model: Model, heard: asyncio.Queue[Event]) -> None:
    async with model.stream(PROMPT) as events:
        async for event in events:
            heard.put_nowait(event)


@each_protocol
async def test_leaving_the_stream_early_closes_the_connection(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    async with calling(protocol, Reply(tokens=("a", "b"), hang_after=1)) as (model, server):
        async with model.stream(PROMPT) as events:
            await anext(events)
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
    gc.collect()
    await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@each_protocol
async def test_an_error_of_the_reader_passes_unchanged(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("a", "b"), hang_after=1)) as (model, _):
        with pytest.raises(KeyError):
            async with model.stream(PROMPT) as events:
                await anext(events)
                raise KeyError("the reader's own")


@each_protocol
async def test_many_calls_at_once_do_not_mix(protocol: str) -> None:
    replies = [Reply(tokens=tuple(f"{number}." for _ in range(20)), cut=11) for number in range(20)]
    async with calling(protocol, *replies) as (model, _):
        answers = await asyncio.gather(*(ask(model) for _ in replies))
    assert sorted(said(events) for events in answers) == sorted(f"{number}." * 20 for number in range(20))


async def test_models_of_one_provider_share_a_connection() -> None:
    async with serving() as server:
        providers = Providers(settings(server.url))
        for name in ("one", "two"):
            await ask(providers.open(f"openai:{name}"))
        assert [call.body["model"] for call in server.calls] == ["one", "two"]
        assert server.connections == 1
        await providers.aclose()


async def test_the_server_runs_as_a_process_and_obeys_words() -> None:
    program = (sys.executable, "-m", "tests.support.providers", "--pace", "0")
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        providers = Providers(settings(url))
        stamped = Prompt(system="", turns=(Turn(role="user", text="/words=5 /stamp"),))
        times = [int(word[1:]) for word in said(await ask(providers.open("openai:any"), stamped)).split()]
        await providers.aclose()
    finally:
        process.terminate()
        await process.wait()
    assert len(times) == 5
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns()
