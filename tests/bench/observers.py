"""The driver: a process of many observers that do nothing but note when which bytes came; reading is for afterwards."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec
import uvloop
from websockets import Subprotocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.bench.processes import Request, answering
from tests.bench.reading import Arrival, Dialect, Expected, Seen, beginning

READY = b'"type":"snapshot"'
"""In the frame after which an observer follows live."""
ENDED = b'"finish"'
"""In the last frame that concerns an observer, and in none before."""
OPENING = 32
"""Connections that are being opened at once."""
JOINING = 10.0
"""Seconds that one late observer may take to be caught up."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What one observer watches: `topic` names it, `hello` is sent on connecting."""

    topic: str
    url: str
    hello: str | None = None


class Watch(Request, frozen=True, kw_only=True):
    """Connect one observer per target; answered by `Count` when all of them follow live."""

    targets: Sequence[Target]


class Wait(Request, frozen=True, kw_only=True):
    """Wait until all have seen the end, `seconds` at most; answered by the `Count` of those that have."""

    seconds: float


class Read(Request, frozen=True, kw_only=True):
    """Leave, and read what came as that dialect's frames; answered by `Seen`. The bare server's have no text."""

    dialect: Dialect
    expected: Mapping[str, Expected] = {}


class Leave(Request, frozen=True, kw_only=True):
    """Leave, and read nothing; answered by the `Count` of those that had followed until then."""


class Join(Request, frozen=True, kw_only=True):
    """Join in mid-answer, one after the other, `pause` seconds apart, and leave again; answered by `Joined`.

    By topic, `message_ids` names the answer that is under way.
    """

    targets: Sequence[Target]
    message_ids: Mapping[str, str]
    pause: float


class Count(msgspec.Struct, frozen=True):
    """How many observers."""

    observers: int


class Joined(msgspec.Struct, kw_only=True):
    """Who joined while the answer was under way. Times are microseconds: `connected` from the first packet until the
    handshake was done, `caught_up` from the subscribe frame until the snapshot had come. `texts` are by topic."""  # noqa: D205, D209

    connected: list[int] = msgspec.field(default_factory=list)
    caught_up: list[int] = msgspec.field(default_factory=list)
    texts: list[tuple[str, str]] = msgspec.field(default_factory=list)
    late: int = 0
    """Those who came after the end, or before the beginning; their times are not among these."""


class Observer:
    """One connection. `opening` are the frames up to READY, `frames` those after it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.opening: list[bytes] = []
        self.frames: list[Arrival] = []
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.lost: str | None = None
        self._leave = asyncio.Event()

    async def follow(self, permits: asyncio.Semaphore) -> None:
        """Connect, watch until the end has come, and stay until told to leave."""
        try:
            async with permits:
                socket = await opened(self.target)
                self.opening = await greeted(socket, self.target)
                self.ready.set()
            async with socket:
                await self._watch(socket)
                await self._leave.wait()
        except (OSError, WebSocketException, TimeoutError) as error:
            self.lost = f"{type(error).__name__}: {error}"
        self.ready.set()
        self.ended.set()

    def leave(self) -> None:
        """The end has been seen by all: no need to stay."""
        self._leave.set()

    async def _watch(self, socket: ClientConnection) -> None:
        frames, recv, now = self.frames, socket.recv, time.monotonic_ns
        while True:
            frame = await recv(decode=False)
            frames.append((now(), frame))
            if ENDED in frame:
                self.ended.set()
                return


async def opened(target: Target) -> ClientConnection:
    """A connection, with nothing said yet."""
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


async def greeted(socket: ClientConnection, target: Target) -> list[bytes]:
    """Say hello; the frames up to that after which the observer follows live."""
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

    async def answer(self, request: Watch | Wait | Read | Leave | Join) -> Count | Seen | Joined:
        """One request of the bench."""
        match request:
            case Watch():
                return await self._start(request.targets)
            case Wait():
                return await self._wait(request.seconds)
            case Read():
                return await self._read(request)
            case Leave():
                return await self._leave()
            case Join():
                return await _join(request)
            case _:
                assert_never(request)

    async def _start(self, targets: Sequence[Target]) -> Count:
        permits = asyncio.Semaphore(OPENING)
        self._observers = [Observer(target) for target in targets]
        self._tasks = [asyncio.create_task(observer.follow(permits)) for observer in self._observers]
        for observer in self._observers:
            await observer.ready.wait()
        return Count(sum(observer.lost is None for observer in self._observers))

    async def _wait(self, seconds: float) -> Count:
        try:
            async with asyncio.timeout(seconds):
                for observer in self._observers:
                    await observer.ended.wait()
        except TimeoutError:
            pass  # the count says it
        return Count(sum(observer.ended.is_set() for observer in self._observers))

    async def _read(self, request: Read) -> Seen:
        observers = self._observers
        await self._leave()
        seen = Seen()
        for observer in observers:
            topic = observer.target.topic
            if observer.lost:
                seen.problems.append(f"{topic}: the connection was lost: {observer.lost}")
            seen.take(topic, observer.opening, observer.frames, request.dialect, request.expected.get(topic))
        return seen

    async def _leave(self) -> Count:
        followed = sum(observer.lost is None for observer in self._observers)
        for observer, task in zip(self._observers, self._tasks, strict=True):
            if observer.ended.is_set():
                observer.leave()
            else:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._observers, self._tasks = [], []
        return Count(followed)


async def _join(request: Join) -> Joined:
    joined = Joined()
    for target in request.targets:
        async with asyncio.timeout(JOINING):
            began = time.monotonic_ns()
            async with await opened(target) as socket:
                connected = time.monotonic_ns()
                opening = await greeted(socket, target)
                caught_up = time.monotonic_ns()
        text = beginning(opening, target.topic, request.message_ids[target.topic])
        if text is None:
            joined.late += 1
        else:
            joined.connected.append((connected - began) // 1000)
            joined.caught_up.append((caught_up - connected) // 1000)
            joined.texts.append((target.topic, text))
        await asyncio.sleep(request.pause)
    return joined


requests: msgspec.json.Decoder[Watch | Wait | Read | Leave | Join] = msgspec.json.Decoder(
    Watch | Wait | Read | Leave | Join
)


async def main() -> None:
    """Observe until the input ends."""
    await answering(requests, Driver().answer)


if __name__ == "__main__":
    uvloop.run(main())
