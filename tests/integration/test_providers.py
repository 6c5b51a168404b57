"""The real providers' clients against a local server with their protocols: successful answers, and cancellation."""

import asyncio
import gc
import sys
import time

import pytest

from khala.domain.parts import TokenUsage
from khala.models.port import Completed, LanguageModel, ModelEvent, Prompt, PromptTurn, ReasoningChunk, TextChunk
from khala.models.providers import Providers
from tests.support.provider_calls import (
    PROMPT,
    ask,
    calling,
    collect_events,
    completed,
    config,
    each_protocol,
    event_text,
)
from tests.support.providers import Reply, serving
from tests.support.wires import ANTHROPIC, GOOGLE, OPENAI, Wire


async def test_the_server_timeout_for_google_is_longer_than_the_silence_timeout() -> None:
    async with calling("google") as (model, server):
        await ask(model)
    assert server.calls[0].headers["x-server-timeout"] == "1200"


async def test_the_usage_is_requested_from_openai() -> None:
    async with calling("openai") as (model, server):
        await ask(model)
    assert server.calls[0].body["stream_options"] == {"include_usage": True}


@each_protocol
async def test_the_text_and_the_usage_arrive_exactly(protocol: str) -> None:
    tokens = ("\n  Hello", ", ", "wor", "ld!", " <think>", " \n")
    async with calling(protocol, Reply(tokens=tokens, usage=(11, 7))) as (model, _):
        events = await ask(model)
    assert event_text(events) == "".join(tokens)
    assert completed(events) == Completed(usage=TokenUsage(input_tokens=11, output_tokens=7), finish_reason="stop")
    assert (model.provider, model.name) == (protocol, "local-model")


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC, GOOGLE], ids=lambda wire: wire.name)
async def test_tokens_that_arrive_together_are_one_event(wire: Wire) -> None:
    tokens = b"".join(map(wire.token, "abc"))
    raw = wire.opening("local-model") + wire.text_begins + tokens + wire.closing("stop", (1, 1))
    async with calling(wire.name, Reply(raw=raw)) as (model, _):
        assert (await ask(model))[:-1] == [TextChunk("abc")]


@each_protocol
async def test_a_token_is_passed_on_before_the_next_is_sent(protocol: str) -> None:
    reply = Reply(tokens=("a", "b"), hang_after=1)
    async with calling(protocol, reply) as (model, _), asyncio.timeout(3), model.stream(PROMPT) as events:
        assert await anext(events) == TextChunk("a")


@each_protocol
async def test_reasoning_is_separate_from_the_answer(protocol: str) -> None:
    async with calling(protocol, Reply(reasoning=("let me ", "see"), tokens=("42",))) as (model, _):
        events = await ask(model)
    assert "".join(event.text for event in events if isinstance(event, ReasoningChunk)) == "let me see"
    assert event_text(events) == "42"


@each_protocol
@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7])
async def test_text_survives_chunk_boundaries_within_characters_and_lines(protocol: str, chunk_bytes: int) -> None:
    tokens = ("žluťoučký ", "कि", "👩‍👩‍👧‍👦", "\u2028 line", "\x85end")
    async with calling(protocol, Reply(tokens=tokens, chunk_bytes=chunk_bytes)) as (model, _):
        assert event_text(await ask(model)) == "".join(tokens)


@each_protocol
async def test_an_empty_answer_completes(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=(), usage=(5, 0))) as (model, _):
        assert await ask(model) == [Completed(usage=TokenUsage(input_tokens=5), finish_reason="stop")]


@each_protocol
async def test_an_answer_truncated_by_its_limit_ends_with_length(protocol: str) -> None:
    async with calling(protocol, Reply(finish="length")) as (model, server):
        prompt = Prompt(system="", turns=PROMPT.turns, max_output_tokens=9)
        assert completed(await ask(model, prompt)).finish_reason == "length"
        assert ": 9" in str(server.calls[0].body)


@each_protocol
async def test_usage_is_estimated_if_the_provider_reports_none(protocol: str) -> None:
    async with calling(protocol, Reply(tokens=("12345678",), usage=None)) as (model, _):
        end = completed(await ask(model))
    assert end.estimated
    assert end.usage == TokenUsage(input_tokens=3 + 1 + 1 + 2 + 3, output_tokens=2)


@each_protocol
async def test_the_conversation_is_sent_in_order_with_alternating_turns(protocol: str) -> None:
    async with calling(protocol) as (model, server):
        await ask(model)
    body = str(server.calls[0].body)
    places = [body.index(text) for text in ("One?", "Two.", "Three?", "And four?")]
    assert places == sorted(places)
    assert "Be brief." in body


@each_protocol
async def test_an_interrupted_answer_is_sent_with_a_request_to_continue(protocol: str) -> None:
    async with calling(protocol) as (model, server):
        await ask(model, Prompt(system="", turns=PROMPT.turns, partial_answer="The answer is fo"))
    body = str(server.calls[0].body)
    assert body.index("And four?") < body.index("The answer is fo") < body.index("Go on from exactly where it ends")


@each_protocol
@pytest.mark.parametrize("spoken", [0, 2])
async def test_cancelling_closes_the_connection_at_once(protocol: str, spoken: int) -> None:
    async with calling(protocol, Reply(tokens=("a", "b", "c"), hang_after=spoken)) as (model, server):
        events: asyncio.Queue[ModelEvent] = asyncio.Queue()
        listening = asyncio.create_task(collect_events(model, events))
        call = await server.call(0)
        text = ""
        while len(text) < spoken:
            text += event_text([await asyncio.wait_for(events.get(), 3)])
        began = time.monotonic()
        listening.cancel()
        await asyncio.wait_for(call.gone.wait(), 1)
        assert call.left is not None
        assert call.left - began < 1
        with pytest.raises(asyncio.CancelledError):
            await listening


async def collect_garbage() -> None:
    """Collect what is unreachable, let it close, and log the errors of that."""
    for _ in range(2):
        gc.collect()
        await asyncio.sleep(0)


@each_protocol
async def test_leaving_the_stream_early_closes_the_connection(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    await collect_garbage()  # Clients that earlier tests left open.
    caplog.clear()
    async with calling(protocol, Reply(tokens=("a", "b"), hang_after=1)) as (model, server):
        async with model.stream(PROMPT) as events:
            await anext(events)
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
    await collect_garbage()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@each_protocol
async def test_an_error_of_the_reader_passes_unchanged(protocol: str) -> None:
    async def stumble(model: LanguageModel) -> None:
        async with model.stream(PROMPT) as events:
            await anext(events)
            raise KeyError("the reader's own")

    async with calling(protocol, Reply(tokens=("a", "b"), hang_after=1)) as (model, _):
        with pytest.raises(KeyError):
            await stumble(model)


@each_protocol
async def test_many_calls_at_once_do_not_mix(protocol: str) -> None:
    replies = [Reply(tokens=tuple(f"{number}." for _ in range(20)), chunk_bytes=11) for number in range(20)]
    async with calling(protocol, *replies) as (model, _):
        answers = await asyncio.gather(*(ask(model) for _ in replies))
    assert sorted(event_text(events) for events in answers) == sorted(f"{number}." * 20 for number in range(20))


async def test_models_of_one_provider_share_a_connection() -> None:
    async with serving() as server:
        providers = Providers(config(server.url))
        for name in ("one", "two"):
            await ask(providers.open(f"openai:{name}"))
        assert [call.body["model"] for call in server.calls] == ["one", "two"]
        assert server.connections == 1
        await providers.aclose()


async def test_the_provider_server_runs_as_a_process_and_obeys_directives() -> None:
    program = (sys.executable, "-m", "tests.support.providers", "--pace", "0")
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()
        providers = Providers(config(url))
        stamped = Prompt(system="", turns=(PromptTurn(role="user", text="/words=5 /stamp"),))
        times = [int(word[1:]) for word in event_text(await ask(providers.open("openai:any"), stamped)).split()]
        await providers.aclose()
    finally:
        process.terminate()
        await process.wait()
    assert len(times) == 5
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns()
