"""A client of NATS JetStream in the benchmark: a process that publishes runs, or one that observes them.

Tokens are made in the publishing process itself, at the pace of a model, and flushed by Khala's policy: the first token
at once, then what is up to 350 ms old. The next flush of a run waits for the acknowledgement of the one before.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec
import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType

from khala.domain.flush_policy import FlushPolicy
from tests.bench.observations import stamps
from tests.bench.processes import Request, serve_requests

STREAM, SUBJECT = "RUNS", "run.{topic}"
END = b"\n"
"""Ends the last message of a run. No token has it."""
PUBLISH_TIMEOUT_SECONDS = 10.0
MAX_CONCURRENT_CONNECTS = 32


class Open(Request, frozen=True, kw_only=True):
    """Connect to this server, and create the stream; answered by `Done`."""

    url: str


class Publish(Request, frozen=True, kw_only=True):
    """Publish the runs of these topics, which start evenly within `ramp` seconds; answered by `Texts` at the end."""

    topics: Sequence[str]
    tokens: int
    rate: float
    ramp: float


class Observe(Request, frozen=True, kw_only=True):
    """Connect one observer for each of these topics, which may repeat; answered by `Done` when all of them follow."""

    url: str
    topics: Sequence[str]


class Collect(Request, frozen=True, kw_only=True):
    """Wait for the end of all runs, `seconds` at most; answered by `Received`."""

    seconds: float


class Done(msgspec.Struct, frozen=True):
    """The request was carried out."""


class Texts(msgspec.Struct, frozen=True):
    """By topic, the text that was published."""

    by_topic: dict[str, str]


class Received(msgspec.Struct, frozen=True):
    """What the observers received: each one's topic and text, the times of all messages, and the tokens' ages in µs.

    Times are nanoseconds of the monotonic clock.
    """

    texts: list[tuple[str, str]]
    arrivals: list[int]
    ages: list[int]


AnyRequest = Open | Publish | Observe | Collect


class Observer:
    """One connection with an ordered consumer, from the beginning of the stream."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.messages: list[tuple[int, bytes]] = []
        self.ended = asyncio.Event()
        self._connection: Client | None = None

    async def follow(self, url: str, permits: asyncio.Semaphore) -> None:
        """Connect and subscribe."""
        async with permits:
            self._connection = connection = await nats.connect(url, allow_reconnect=False)
            config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
            subject = SUBJECT.format(topic=self.topic)
            await connection.jetstream().subscribe(subject, cb=self._receive, ordered_consumer=True, config=config)

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    async def _receive(self, message: Msg) -> None:
        self.messages.append((time.monotonic_ns(), message.data))
        if message.data.endswith(END):
            self.ended.set()


class JetstreamClient:
    """Answers the requests of the benchmark."""

    def __init__(self) -> None:
        self._connection: Client | None = None
        self._observers: list[Observer] = []

    async def answer(self, request: AnyRequest) -> Done | Texts | Received:
        """Answer one request."""
        match request:
            case Open():
                self._connection = await nats.connect(request.url)
                await self._connection.jetstream().add_stream(
                    name=STREAM, subjects=[SUBJECT.format(topic="*")], storage=StorageType.FILE
                )
                return Done()
            case Publish():
                return await self._publish(request)
            case Observe():
                return await self._observe(request)
            case Collect():
                return await self._collect(request.seconds)
            case _:
                assert_never(request)

    async def _publish(self, request: Publish) -> Texts:
        texts = await asyncio.gather(
            *(self._run(topic, request, number) for number, topic in enumerate(request.topics))
        )
        return Texts(dict(zip(request.topics, texts, strict=True)))

    async def _run(self, topic: str, request: Publish, number: int) -> str:
        assert self._connection is not None
        stream, subject = self._connection.jetstream(), SUBJECT.format(topic=topic)
        published: list[str] = []
        pending: list[str] = []
        due, flush_at = time.monotonic() + request.ramp * number / len(request.topics), 0.0
        for _ in range(request.tokens):
            due += 1 / request.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            pending.append(f"t{time.monotonic_ns()} ")
            if due >= flush_at:
                flush_at = due + FlushPolicy().seconds
                published.append("".join(pending))
                pending.clear()
                await stream.publish(subject, published[-1].encode(), timeout=PUBLISH_TIMEOUT_SECONDS)
        published.append("".join(pending))
        await stream.publish(subject, published[-1].encode() + END, timeout=PUBLISH_TIMEOUT_SECONDS)
        return "".join(published)

    async def _observe(self, request: Observe) -> Done:
        permits = asyncio.Semaphore(MAX_CONCURRENT_CONNECTS)
        self._observers = [Observer(topic) for topic in request.topics]
        await asyncio.gather(*(observer.follow(request.url, permits) for observer in self._observers))
        return Done()

    async def _collect(self, seconds: float) -> Received:
        try:
            async with asyncio.timeout(seconds):
                for observer in self._observers:
                    await observer.ended.wait()
        except TimeoutError:
            pass  # the texts show it
        ages: list[int] = []
        texts: list[tuple[str, str]] = []
        for observer in self._observers:
            await observer.close()
            for at, data in observer.messages:
                ages += [(at - stamp) // 1000 for stamp in stamps(data.decode(), 0)]
            texts.append((observer.topic, b"".join(data for _, data in observer.messages).decode().rstrip("\n")))
        arrivals = [at for observer in self._observers for at, _ in observer.messages]
        return Received(texts=texts, arrivals=arrivals, ages=ages)


requests: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


async def main() -> None:
    """Answer requests until the input ends."""
    await serve_requests(requests, JetstreamClient().answer)


def differences(texts: Mapping[str, str], received: Received) -> list[str]:
    """A line for each observer that received another text than was published."""
    return [f"{topic}: another text was published" for topic, text in received.texts if texts[topic] != text]


if __name__ == "__main__":
    uvloop.run(main())
