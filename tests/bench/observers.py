"""The driver: a process of many observers that record each frame with its time. Frames are parsed afterwards."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec
import uvloop
from websockets import Subprotocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.bench.observations import Arrival, Dialect, Expected, Observations, partial_text
from tests.bench.processes import Request, serve_requests

READY = b'"type":"snapshot"'
"""Is in the frame after which an observer follows live."""
ENDED = b'"finish"'
"""Is in the last frame that concerns an observer, and in none before."""
MAX_CONCURRENT_CONNECTS = 32
JOIN_TIMEOUT_SECONDS = 10.0
"""For one late observer to catch up."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The topic that one observer follows, the URL, and `hello`, its first frame."""

    topic: str
    url: str
    hello: str | None = None


class Watch(Request, frozen=True, kw_only=True):
    """Connect one observer per target; answered by `ObserverCount` when all of them follow live."""

    targets: Sequence[Target]


class Wait(Request, frozen=True, kw_only=True):
    """Wait until all have received the end, `seconds` at most; answered by the `ObserverCount` of those that have."""

    seconds: float


class Read(Request, frozen=True, kw_only=True):
    """Disconnect, and parse the frames of this dialect; answered by `Observations`. Bare frames have no text."""

    dialect: Dialect
    expected: Mapping[str, Expected] = {}


class Disconnect(Request, frozen=True, kw_only=True):
    """Disconnect, and discard the frames; answered by the `ObserverCount` of those still connected."""


class JoinLate(Request, frozen=True, kw_only=True):
    """JoinLate in mid-answer, one after the other, `pause` seconds apart, and leave again; answered by `JoinResult`.

    By topic, `message_ids` names the answer that is under way.
    """

    targets: Sequence[Target]
    message_ids: Mapping[str, str]
    pause: float


class ObserverCount(msgspec.Struct, frozen=True):
    """A number of observers."""

    observers: int


class JoinResult(msgspec.Struct, kw_only=True):
    """The observers that joined during an answer; times are microseconds.

    `connected` is the time from the first packet to the end of the handshake, `caught_up` that from the subscribe frame
    to the snapshot. `texts` are pairs of topic and text.
    """

    connected: list[int] = msgspec.field(default_factory=list)
    caught_up: list[int] = msgspec.field(default_factory=list)
    texts: list[tuple[str, str]] = msgspec.field(default_factory=list)
    late: int = 0
    """Observers that joined after the end or before the beginning; their times are not included."""


class Observer:
    """One connection. `opening` has the frames up to READY, `frames` those after it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.opening: list[bytes] = []
        self.frames: list[Arrival] = []
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.lost: str | None = None
        self._leave = asyncio.Event()

    async def follow(self, permits: asyncio.Semaphore) -> None:
        """Connect, receive until the end, and stay connected until `leave`."""
        try:
            async with permits:
                socket = await open_connection(self.target)
                self.opening = await subscribe(socket, self.target)
                self.ready.set()
            async with socket:
                await self._watch(socket)
                await self._leave.wait()
        except (OSError, WebSocketException, TimeoutError) as error:
            self.lost = f"{type(error).__name__}: {error}"
        self.ready.set()
        self.ended.set()

    def leave(self) -> None:
        """Disconnect: all observers have received the end."""
        self._leave.set()

    async def _watch(self, socket: ClientConnection) -> None:
        frames, recv, now = self.frames, socket.recv, time.monotonic_ns
        while True:
            frame = await recv(decode=False)
            frames.append((now(), frame))
            if ENDED in frame:
                self.ended.set()
                return


async def open_connection(target: Target) -> ClientConnection:
    """A new connection; nothing has been sent yet."""
    return await connect(
        target.url,
        subprotocols=[Subprotocol("khala.v1")] if target.hello else None,
        compression=None,
        proxy=None,
        ping_interval=None,
        close_timeout=1,
        max_size=None,
        max_queue=None,
    )


async def subscribe(socket: ClientConnection, target: Target) -> list[bytes]:
    """Send `hello`; returns the frames up to READY."""
    if target.hello:
        await socket.send(target.hello)
    opening = [await socket.recv(decode=False)]
    while READY not in opening[-1]:
        opening.append(await socket.recv(decode=False))
    return opening


class Driver:
    """All observers of this process."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def answer(
        self, request: Watch | Wait | Read | Disconnect | JoinLate
    ) -> ObserverCount | Observations | JoinResult:
        """Answer one request of the benchmark."""
        match request:
            case Watch():
                return await self._start(request.targets)
            case Wait():
                return await self._wait(request.seconds)
            case Read():
                return await self._read(request)
            case Disconnect():
                return await self._disconnect()
            case JoinLate():
                return await _join(request)
            case _:
                assert_never(request)

    async def _start(self, targets: Sequence[Target]) -> ObserverCount:
        permits = asyncio.Semaphore(MAX_CONCURRENT_CONNECTS)
        self._observers = [Observer(target) for target in targets]
        self._tasks = [asyncio.create_task(observer.follow(permits)) for observer in self._observers]
        for observer in self._observers:
            await observer.ready.wait()
        return ObserverCount(sum(observer.lost is None for observer in self._observers))

    async def _wait(self, seconds: float) -> ObserverCount:
        try:
            async with asyncio.timeout(seconds):
                for observer in self._observers:
                    await observer.ended.wait()
        except TimeoutError:
            pass  # the count shows it
        return ObserverCount(sum(observer.ended.is_set() for observer in self._observers))

    async def _read(self, request: Read) -> Observations:
        observers = self._observers
        await self._disconnect()
        observations = Observations()
        for observer in observers:
            topic = observer.target.topic
            if observer.lost:
                observations.problems.append(f"{topic}: the connection was lost: {observer.lost}")
            observations.take(topic, observer.opening, observer.frames, request.dialect, request.expected.get(topic))
        return observations

    async def _disconnect(self) -> ObserverCount:
        connected = sum(observer.lost is None for observer in self._observers)
        for observer, task in zip(self._observers, self._tasks, strict=True):
            if observer.ended.is_set():
                observer.leave()
            else:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._observers, self._tasks = [], []
        return ObserverCount(connected)


async def _join(request: JoinLate) -> JoinResult:
    joined = JoinResult()
    for target in request.targets:
        async with asyncio.timeout(JOIN_TIMEOUT_SECONDS):
            began = time.monotonic_ns()
            async with await open_connection(target) as socket:
                connected = time.monotonic_ns()
                opening = await subscribe(socket, target)
                caught_up = time.monotonic_ns()
        text = partial_text(opening, target.topic, request.message_ids[target.topic])
        if text is None:
            joined.late += 1
        else:
            joined.connected.append((connected - began) // 1000)
            joined.caught_up.append((caught_up - connected) // 1000)
            joined.texts.append((target.topic, text))
        await asyncio.sleep(request.pause)
    return joined


requests: msgspec.json.Decoder[Watch | Wait | Read | Disconnect | JoinLate] = msgspec.json.Decoder(
    Watch | Wait | Read | Disconnect | JoinLate
)


async def main() -> None:
    """Observe until the input ends."""
    await serve_requests(requests, Driver().answer)


if __name__ == "__main__":
    uvloop.run(main())
