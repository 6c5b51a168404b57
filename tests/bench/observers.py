"""The driver: a process of many observers that do nothing but note when which bytes came; reading is for afterwards."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, assert_never

import msgspec
import uvloop
from websockets import Subprotocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.bench.processes import Request, answering
from tests.support.client import View

READY = b'"type":"snapshot"'
"""In the frame after which an observer follows live."""
ENDED = b'"finish"'
"""In the last frame that concerns an observer, and in none before."""
OPENING = 32
"""Connections that are being opened at once."""
STAMP = re.compile(rb'"stamp":(\d+)')


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What one observer watches: `topic` names it, `hello` is sent on connecting."""

    topic: str
    url: str
    hello: str | None = None


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the observers of a topic should have seen."""

    message_id: str
    text: str


class Watch(Request, frozen=True, kw_only=True):
    """Connect one observer per target; answered by `Count` when all of them follow live."""

    targets: Sequence[Target]


class Wait(Request, frozen=True, kw_only=True):
    """Wait until all have seen the end, `seconds` at most; answered by the `Count` of those that have."""

    seconds: float


class Read(Request, frozen=True, kw_only=True):
    """Leave, and read what came as Khala's frames, or as the baseline's if nothing is expected; answered by `Seen`."""

    expected: Mapping[str, Expected] | None = None


class Count(msgspec.Struct, frozen=True):
    """How many observers."""

    observers: int


class Seen(msgspec.Struct, kw_only=True):
    """What the observers saw. Latencies are microseconds; see `report.Khala`, and `sent` is the baseline's."""

    frames: int = 0
    bytes: int = 0
    tokens: list[int] = msgspec.field(default_factory=list)
    newest: list[int] = msgspec.field(default_factory=list)
    written: list[int] = msgspec.field(default_factory=list)
    sent: list[int] = msgspec.field(default_factory=list)
    schedules: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    """By topic, of one of its observers: each frame's time in nanoseconds (monotonic) and size in bytes."""
    problems: list[str] = msgspec.field(default_factory=list)

    def add(self, other: "Seen") -> None:
        """Take in what others saw."""
        self.frames += other.frames
        self.bytes += other.bytes
        self.tokens += other.tokens
        self.newest += other.newest
        self.written += other.written
        self.sent += other.sent
        self.schedules = other.schedules | self.schedules
        self.problems += other.problems


class Observer:
    """One connection. `opening` are the frames up to READY, `frames` those after it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.opening: list[bytes] = []
        self.frames: list[tuple[int, bytes]] = []
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.lost: str | None = None
        self._leave = asyncio.Event()

    async def follow(self, permits: asyncio.Semaphore) -> None:
        """Connect, watch until the end has come, and stay until told to leave."""
        try:
            async with permits:
                socket = await self._connected()
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

    async def _connected(self) -> ClientConnection:
        socket = await connect(
            self.target.url,
            subprotocols=[Subprotocol("khala.v1")] if self.target.hello else None,
            compression=None,
            proxy=None,
            ping_interval=None,
            close_timeout=1,
            max_size=None,
            max_queue=None,
        )
        if self.target.hello:
            await socket.send(self.target.hello)
        while READY not in (frame := await socket.recv(decode=False)):
            self.opening.append(frame)
        self.opening.append(frame)
        self.ready.set()
        return socket

    async def _watch(self, socket: ClientConnection) -> None:
        frames, recv, now = self.frames, socket.recv, time.monotonic_ns
        while True:
            frame = await recv(decode=False)
            frames.append((now(), frame))
            if ENDED in frame:
                self.ended.set()
                return


class Driver:
    """All observers of this process."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def answer(self, request: Watch | Wait | Read) -> Count | Seen:
        """One request of the bench."""
        match request:
            case Watch():
                return await self._start(request.targets)
            case Wait():
                return await self._wait(request.seconds)
            case Read():
                return await self._read(request.expected)
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
        async def all_ended() -> None:
            for observer in self._observers:
                await observer.ended.wait()

        try:
            async with asyncio.timeout(seconds):
                await all_ended()
        except TimeoutError:
            pass
        return Count(sum(observer.ended.is_set() for observer in self._observers))

    async def _read(self, expected: Mapping[str, Expected] | None) -> Seen:
        await self._leave()
        seen = Seen()
        for observer in self._observers:
            if observer.lost:
                seen.problems.append(f"{observer.target.topic}: the connection was lost: {observer.lost}")
            if expected is None:
                _read_baseline(observer, seen)
            else:
                _read_khala(observer, expected[observer.target.topic], seen)
            _note(observer, seen)
        self._observers, self._tasks = [], []
        return seen

    async def _leave(self) -> None:
        for observer, task in zip(self._observers, self._tasks, strict=True):
            if observer.ended.is_set():
                observer.leave()
            else:
                task.cancel()
        await asyncio.wait(self._tasks)


def _note(observer: Observer, seen: Seen) -> None:
    seen.frames += len(observer.frames)
    seen.bytes += sum(len(frame) for _, frame in observer.frames)
    if observer.target.topic not in seen.schedules:
        seen.schedules[observer.target.topic] = [(at, len(frame)) for at, frame in observer.frames]


def _read_baseline(observer: Observer, seen: Seen) -> None:
    for at, frame in observer.frames:
        if found := STAMP.search(frame):
            seen.sent.append((at - int(found[1])) // 1000)


def _read_khala(observer: Observer, expected: Expected, seen: Seen) -> None:
    """Fold every frame as a client would, and compare with what the model sent."""
    view, clocks = View(observer.target.topic), time.time_ns() - time.monotonic_ns()
    try:
        for body in observer.opening:
            view.apply(msgspec.json.decode(body))
        for at, body in observer.frames:
            frame = msgspec.json.decode(body)
            told = len(view.text(expected.message_id))
            view.apply(frame)
            ages = [(at - stamp) // 1000 for stamp in _stamps(view.text(expected.message_id), told)]
            seen.tokens += ages
            seen.newest += ages[-1:]
            seen.written += [(at + clocks - written) // 1000 for written in _written(frame)]
    except AssertionError as error:
        seen.problems.append(f"{observer.target.topic}: {error}")
    if problem := _difference(view, expected):
        seen.problems.append(f"{observer.target.topic}: {problem}")


def _written(frame: Mapping[str, Any]) -> Iterator[int]:
    """The time at which the frame's last part was written, in nanoseconds since 1970."""
    for part in frame.get("parts", ())[-1:]:
        yield int(datetime.fromisoformat(part["createdAt"]).timestamp() * 1e6) * 1000


def _stamps(text: str, told: int) -> Iterator[int]:
    """The times in nanoseconds of the tokens that became whole with what came after the first `told` characters."""
    first, end = text.rfind(" ", 0, told) + 1, text.rfind(" ") + 1
    for word in text[first:end].split():
        if word[0] == "t" and word[1:].isdecimal():
            yield int(word[1:])


def _difference(view: View, expected: Expected) -> str | None:
    text = view.text(expected.message_id)
    if expected.message_id not in view.finished:
        return f"the end was not seen; {len(text)} of {len(expected.text)} characters came"
    if not expected.text:
        return "the model sent nothing"
    if text == expected.text:
        return None
    same = next((at for at, pair in enumerate(zip(text, expected.text, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(text), len(expected.text)) if same is None else same
    return (
        f"{len(text)} characters came, {len(expected.text)} were sent, and from {at} on they differ: {text[at:][:40]!r}"
    )


requests: msgspec.json.Decoder[Watch | Wait | Read] = msgspec.json.Decoder(Watch | Wait | Read)


async def main() -> None:
    """Observe until the input ends."""
    await answering(requests, Driver().answer)


if __name__ == "__main__":
    uvloop.run(main())
