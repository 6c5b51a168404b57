"""Pauses in reading a model's stream: text is read when it is due, and all else is as without pauses."""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp.client_proto import ResponseHandler

from khala.models.port import Completed, ModelEvent, ModelFailed, TextChunk
from khala.models.streaming import paced_reader
from khala.models.streaming.paced_reader import MAX_HOLD_SECONDS, MIN_DELTAS
from tests.support.certificates import certificate
from tests.support.in_process import khala
from tests.support.provider_calls import PROMPT, calling, completed, each_protocol, event_text
from tests.support.providers import Reply, serving
from tests.support.scripted_stream import DONE, HEAD, USAGE, scripted, token
from tests.support.wires import UseTool

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BEFORE_PAUSE = "x" * MIN_DELTAS
"""Text that is read before the first pause, after the first delta."""


class Holder:
    """Records the pauses, and ends them on demand."""

    def __init__(self) -> None:
        self.rates: list[tuple[float, float]] = []
        self._deliver: Callable[[], bool] = lambda: False
        self._held = asyncio.Event()

    def hold(self, deliver: Callable[[], bool], deltas: float, chars: float) -> None:
        self.rates.append((deltas, chars))
        self._deliver = deliver
        self._held.set()

    async def until_held(self) -> None:
        await asyncio.wait_for(self._held.wait(), 5)
        self._held.clear()

    def deliver(self) -> bool:
        return self._deliver()


class Listener:
    """Reads the events of a stream in a task, and times them."""

    def __init__(self, events: Any) -> None:
        self.events: list[ModelEvent] = []
        self.times: list[float] = []
        self._arrived = asyncio.Condition()
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events: Any) -> None:
        async for event in events:
            async with self._arrived:
                self.events.append(event)
                self.times.append(time.monotonic())
                self._arrived.notify_all()

    async def until_text(self, text: str) -> None:
        async with asyncio.timeout(5), self._arrived:
            await self._arrived.wait_for(lambda: event_text(self.events) == text)


def wrapped(data: bytes, *, chunked: bool) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


@pytest.fixture
def without_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only demand ends a pause."""
    monkeypatch.setattr(paced_reader, "PROBE_SECONDS", 60.0)
    monkeypatch.setattr(paced_reader, "MAX_HOLD_SECONDS", 60.0)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """Run a coroutine on each of the event loops."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner.run


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.usefixtures("without_probes")
def test_text_that_arrives_in_a_pause_is_read_at_once_when_it_is_asked_for(
    run: Any, tls: bool, chunked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        context = None
        if tls:
            file = certificate(tmp_path, "localhost")
            monkeypatch.setenv("SSL_CERT_FILE", str(file))
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(file)
        sent, more, end = (asyncio.Event() for _ in range(3))
        words = [f"word{number} " for number in range(40)]
        pieces = [wrapped(token(word), chunked=chunked) for word in words]
        script: tuple[bytes | asyncio.Event, ...] = (
            (CHUNKED if chunked else HEAD) + wrapped(token("a"), chunked=chunked),
            sent,
            wrapped(token("b") * MIN_DELTAS, chunked=chunked),
            more,
            *pieces,
            end,
            wrapped(token("!", '"stop"') + USAGE + DONE, chunked=chunked),
        )
        url = f"http{'s' if tls else ''}://localhost:{{port}}/v1"
        holder = Holder()
        async with (
            scripted(*script, url=url, tls=context, read_timeout=200.0) as (model, server),
            model.stream(PROMPT, holder.hold) as events,
        ):
            listener = Listener(events)
            await listener.until_text("a")
            sent.set()
            await holder.until_held()
            more.set()
            while server.pieces_written < len(script) - 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # gives a reader that does not pause the time to read
            assert event_text(listener.events) == "a" + "b" * MIN_DELTAS
            assert holder.deliver()
            assert not holder.deliver(), "the pause has ended"
            await listener.until_text("a" + "b" * MIN_DELTAS + "".join(words))
            assert listener.events[-1] == TextChunk("".join(words)), "one read for all"
            await holder.until_held()
            assert not holder.deliver(), "nothing has arrived"
            end.set()
            await asyncio.wait_for(listener.task, 5)
            assert completed(listener.events).finish_reason == "stop"

    run(test())


@pytest.mark.usefixtures("without_probes")
async def test_the_tokens_of_a_pause_pass_the_http_client_together(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed, resume = 0, ResponseHandler.resume_reading

    def counted(self: ResponseHandler, resume_parser: bool = True) -> None:
        nonlocal resumed
        resumed += 1
        resume(self, resume_parser)

    sent, more = asyncio.Event(), asyncio.Event()
    first = (CHUNKED + wrapped(token("a"), chunked=True), sent, wrapped(token("b") * MIN_DELTAS, chunked=True), more)
    rest = [wrapped(token(f"word{number} "), chunked=True) for number in range(40)]
    holder = Holder()
    async with (
        scripted(*first, *rest, url="http://localhost:{port}/v1", read_timeout=200.0) as (model, server),
        model.stream(PROMPT, holder.hold) as events,
    ):
        listener = Listener(events)
        await listener.until_text("a")
        sent.set()
        await holder.until_held()
        more.set()
        while server.pieces_written < len(first) + len(rest):
            await asyncio.sleep(0.01)
        monkeypatch.setattr(ResponseHandler, "resume_reading", counted)
        assert holder.deliver()
        await holder.until_held()
        assert len(event_text(listener.events)) == 1 + MIN_DELTAS + sum(len(f"word{n} ") for n in range(40))
        assert 1 <= resumed <= 2, "once for all chunks, and not for each"
        listener.task.cancel()
        await asyncio.wait({listener.task})


@pytest.mark.usefixtures("without_probes")
async def test_the_first_deltas_are_read_as_they_come_and_give_the_rate() -> None:
    reply, holder = Reply(tokens=tuple("abcdefghijklmnopqrstuvwxyz"), pace=100, hang_after=26), Holder()
    async with calling("openai", reply, read_timeout=200.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await holder.until_held()
        assert len(event_text(listener.events)) in range(MIN_DELTAS + 1, MIN_DELTAS + 5)
        deltas, chars = holder.rates[0]
        assert deltas == chars
        assert 20 < deltas < 200
        listener.task.cancel()
        await asyncio.wait({listener.task})


@each_protocol
@pytest.mark.usefixtures("without_probes")
async def test_cancelling_in_a_pause_closes_the_connection_at_once(protocol: str) -> None:
    reply, holder = Reply(tokens=("a",) * 400, pace=100), Holder()
    async with calling(protocol, reply, read_timeout=200.0) as (model, server):
        async with model.stream(PROMPT, holder.hold) as events, aclosing(events):  # type: ignore[type-var]  # a generator
            listener = Listener(events)
            await holder.until_held()
            listener.task.cancel()
            await asyncio.wait({listener.task})
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
    assert not holder.deliver()


@each_protocol
async def test_the_end_of_an_answer_is_noticed_in_a_pause(protocol: str) -> None:
    reply, holder = Reply(tokens=("a",) * 40, pace=100), Holder()
    async with calling(protocol, reply) as (model, server), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 5)
        sent = server.calls[0].began + 0.4
    assert completed(listener.events).usage.output_tokens == 7
    assert event_text(listener.events) == "a" * 40
    assert listener.times[-1] - sent < MAX_HOLD_SECONDS * 0.8, "not only after the longest pause"


@each_protocol
async def test_text_that_nobody_asks_for_is_read_after_a_while(protocol: str) -> None:
    reply, holder = Reply(tokens=tuple(f"{number} " for number in range(150)), pace=100), Holder()
    async with calling(protocol, reply) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 10)
    assert event_text(listener.events) == "".join(reply.tokens)
    assert max(after - before for before, after in pairwise(listener.times)) < 2 * MAX_HOLD_SECONDS
    assert len(listener.events) < 60, "most tokens were read together"


@pytest.mark.usefixtures("without_probes")
async def test_a_model_that_is_silent_after_a_pause_times_out_by_its_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_reader, "MAX_HOLD_SECONDS", 0.3)
    reply, holder = Reply(tokens=("a",) * 40, pace=200, hang_after=20), Holder()
    async with calling("openai", reply, read_timeout=1.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        with pytest.raises(ModelFailed) as caught:
            await asyncio.wait_for(listener.task, 5)
        silent = time.monotonic() - listener.times[-1]
    assert (caught.value.code, caught.value.midstream) == ("timeout", True)
    assert event_text(listener.events) == "a" * 20
    assert 0.9 < silent < 1.5


async def test_bytes_in_the_kernel_are_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_reader, "PROBE_SECONDS", 60.0)
    reply, holder = Reply(tokens=("a",) * 250, pace=100), Holder()
    async with calling("openai", reply, read_timeout=1.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 5)
    assert event_text(listener.events) == "a" * 250
    assert isinstance(listener.events[-1], Completed)


async def test_a_timeout_that_could_end_in_a_pause_forbids_pauses() -> None:
    reply, holder = Reply(tokens=("a",) * 40, pace=100), Holder()
    async with calling("openai", reply, read_timeout=0.9) as (model, _), model.stream(PROMPT, holder.hold) as events:
        await asyncio.wait_for(Listener(events).task, 5)
    assert holder.rates == []


async def test_a_fast_model_ends_the_pause_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced_reader, "MAX_HOLD_SECONDS", 60.0)
    reply, holder = Reply(tokens=("abcd ",) * 2000, pace=1000), Holder()
    async with calling("openai", reply, read_timeout=200.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 10)
    assert event_text(listener.events) == "abcd " * 2000
    assert max(len(event.text) for event in listener.events if isinstance(event, TextChunk)) < 2500
    assert max(deltas for deltas, _ in holder.rates) > 500


@each_protocol
@pytest.mark.usefixtures("without_probes")
async def test_reasoning_and_tool_calls_are_read_as_they_come(protocol: str) -> None:
    call = UseTool(name="echo", args={"text": "x" * 400}, piece=10)
    reply, holder = Reply(reasoning=tuple("abcdefghijkl"), tokens=("a",), pace=200, calls=(call,)), Holder()
    async with calling(protocol, reply, read_timeout=200.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 5)
    assert completed(listener.events).uses[0].args == {"text": "x" * 400}
    assert holder.rates == []


@pytest.mark.usefixtures("without_probes")
async def test_reasoning_between_tags_is_read_as_it_comes() -> None:
    reply = Reply(
        tokens=("<think>", *"abcdefghijkl"),
        pace=200,
        calls=(UseTool(name="echo", args={"text": "x" * 400}, piece=10),),
    )
    holder = Holder()
    async with calling("openai", reply, read_timeout=200.0) as (model, _), model.stream(PROMPT, holder.hold) as events:
        listener = Listener(events)
        await asyncio.wait_for(listener.task, 5)
    assert completed(listener.events).uses[0].args == {"text": "x" * 400}
    assert holder.rates == []


async def test_a_run_is_written_as_without_pauses_with_few_reads(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = paced_reader.PacedReader.read

    async def counted(self: paced_reader.PacedReader) -> bytes:
        nonlocal reads
        reads += 1
        return await read(self)

    monkeypatch.setattr(paced_reader.PacedReader, "read", counted)
    tokens = tuple(f"word{number} " for number in range(180))
    async with serving(Reply(tokens=tokens, pace=60)) as provider:
        settings = {"KHALA_MODEL": "openai:any", "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key"}
        async with khala(database_url, with_executor=True, **settings) as server:
            thread = await server.thread()
            began = time.monotonic()
            sent = await thread.send("Hello?")
            await thread.ended(sent["runId"])
            seconds = time.monotonic() - began
            parts = await thread.parts(sent["runId"])
    texts = [part["data"]["text"] for part in parts if part["kind"] == "text-delta"]
    assert "".join(texts) == "".join(tokens)
    assert len(texts) >= 3, "during the answer, even on a machine that stalls for a second"
    assert len(texts) <= 6 + seconds / 0.3, "about every 350 ms"
    assert reads < 60, "of 180 tokens"
