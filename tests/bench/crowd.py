"""The crowd: a process of many observers of one topic, each as cheap as can be, so that the server is what is measured.

An observer is a bare protocol over a TCP connection: it notes when which text frame came, and answers pings. All is
read afterwards.
"""

import asyncio
import re
import struct
import time
from datetime import datetime
from typing import assert_never
from urllib.parse import urlsplit

import msgspec
import uvloop

from tests.bench.processes import Request, answering

REVISION = re.compile(rb'"revision":(\d+)')
BEFORE = re.compile(rb'"from":(\d+)')
WRITTEN = re.compile(rb'"createdAt":"([^"]+)"')
SNAPSHOT = b'"type":"snapshot"'
OPENING = 32
"""Connections that are being opened at once."""
TEXT, PING = 0x81, 0x89
"""First bytes of what a server sends: whole text frames, and pings."""


class Gather(Request, frozen=True, kw_only=True):
    """Have so many observers, all of whom follow live: answered by `Count`. `hello` is what each sends first."""

    url: str
    observers: int
    hello: str


class Wait(Request, frozen=True, kw_only=True):
    """Wait until all have this revision, `seconds` at most; answered by the `Count` of those that have."""

    revision: int
    seconds: float


class Read(Request, frozen=True, kw_only=True):
    """Read what came since the last reading; answered by `Heard`."""


class Count(msgspec.Struct, frozen=True):
    """How many observers."""

    observers: int


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """Frames and their bytes, the ages of the last rows in them in microseconds, and what was wrong with the chains."""

    frames: int
    bytes: int
    ages: list[int]
    sample: str
    problems: list[str]


class Observer(asyncio.Protocol):
    """One connection."""

    def __init__(self, crowd: "Crowd", path: str, hello: str) -> None:
        self._crowd = crowd
        self._path = path
        self._hello = hello
        self._upgraded = False
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = -1
        self.told = -1
        """The revision at the last reading."""
        self.frames: list[tuple[bytes, int]] = []
        self.lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask for a WebSocket."""
        self._transport = transport
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """It should not be."""
        self.lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(f"refused: {self._rest[:200]!r}"))

    def data_received(self, data: bytes) -> None:
        """Take frame by frame."""
        now, rest = time.monotonic_ns(), self._rest + data if self._rest else data
        if not self._upgraded:
            head, end, rest = rest.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._upgrade(head)
        while len(rest) > 1:
            start, size = _measured(rest)
            if len(rest) < start + size:
                break
            self._take(rest[0], rest[start : start + size], now)
            rest = rest[start + size :]
        self._rest = rest

    def say(self, opcode: int, payload: bytes) -> None:
        """Send a frame, masked by zeros as it need not be secret."""
        assert self._transport
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack("!H", len(payload))
        self._transport.write(bytes([opcode]) + size + b"\0\0\0\0" + payload)

    def leave(self) -> None:
        """Hang up."""
        assert self._transport
        self._transport.abort()

    def _upgrade(self, head: bytes) -> None:
        if b" 101 " not in head.split(b"\r\n")[0] + b" ":
            raise ConnectionRefusedError(head.decode())
        self._upgraded = True
        self.say(TEXT, self._hello.encode())

    def _take(self, opcode: int, payload: bytes, now: int) -> None:
        if opcode == PING:
            self.say(0x8A, payload)
        elif opcode == TEXT and (found := REVISION.search(payload)):
            self.revision = int(found[1])
            if not self.ready.done():
                self.told = self.revision
                self.ready.set_result(None)
            else:
                self.frames.append((self._crowd.same(payload), now))
            self._crowd.heard()


def _measured(data: bytes) -> tuple[int, int]:
    """Where a frame's payload begins, and its size; a frame that is not whole is larger than what there is."""
    short = data[1] & 0x7F
    if short < 126:
        return 2, short
    start, code = (4, "!H") if short == 126 else (10, "!Q")
    return (start, struct.unpack(code, data[2:start])[0]) if len(data) >= start else (start, 0)


class Crowd:
    """All observers of this process."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._texts: dict[bytes, bytes] = {}
        self._waited_for = 0
        self._changed = asyncio.Event()

    def same(self, payload: bytes) -> bytes:
        """The first frame that was equal to this one, so that one of each is kept."""
        return self._texts.setdefault(payload, payload)

    def heard(self) -> None:
        """Somebody has heard something."""
        self._changed.set()

    async def answer(self, request: Gather | Wait | Read) -> Count | Heard:
        """One request of the bench."""
        match request:
            case Gather():
                return await self._gather(request)
            case Wait():
                return await self._wait(request)
            case Read():
                return self._read()
            case _:
                assert_never(request)

    async def _gather(self, request: Gather) -> Count:
        permits = asyncio.Semaphore(OPENING)
        split = urlsplit(request.url)
        assert split.hostname
        assert split.port
        host, port = split.hostname, split.port

        async def come() -> None:
            async with permits:
                loop = asyncio.get_running_loop()
                _, observer = await loop.create_connection(
                    lambda: Observer(self, split.path or "/", request.hello), host, port
                )
                self._observers.append(observer)
                await observer.ready

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(request.observers - len(self._observers)):
                group.create_task(come())
        return Count(len(self._observers))

    async def _wait(self, request: Wait) -> Count:
        missing = set(self._observers)
        try:
            async with asyncio.timeout(request.seconds):
                while missing := {one for one in missing if one.revision < request.revision}:
                    self._changed.clear()
                    await self._changed.wait()
                    # Not after each frame: this process is to read and nothing else.
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        return Count(len(self._observers) - len(missing))

    def _read(self) -> Heard:
        wall = time.time_ns() - time.monotonic_ns()
        written = {text: _written(text) for text in self._texts}
        heard = [(text, at) for one in self._observers for text, at in one.frames]
        ages = [(at + wall - written[text]) // 1000 for text, at in heard]
        found = Heard(
            frames=len(heard),
            bytes=sum(len(text) for text, _ in heard),
            ages=ages,
            sample=heard[-1][0].decode() if heard else "",
            problems=[problem for one in self._observers if (problem := _problem(one))],
        )
        for one in self._observers:
            one.told, one.frames = one.revision, []
        self._texts = {}
        return found

    def close(self) -> None:
        """Let all go."""
        for one in self._observers:
            one.leave()


def _written(text: bytes) -> int:
    """When the frame's last row was written, in nanoseconds since 1970."""
    times = WRITTEN.findall(text)
    return int(datetime.fromisoformat(times[-1].decode()).timestamp() * 1e6) * 1000 if times else 0


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    """The number that it finds, -1 for none."""
    found = pattern.search(text)
    return int(found[1]) if found else -1


def _problem(one: Observer) -> str | None:
    """What is wrong with what it heard: frames chain, and each observer has all of them."""
    if one.lost:
        return "an observer was hung up on"
    at = one.told
    for text, _ in one.frames:
        since, to = _number(BEFORE, text), _number(REVISION, text)
        if SNAPSHOT not in text and since != at:
            return f"a frame from {since} came after {at}"
        at = to
    return None


requests: msgspec.json.Decoder[Gather | Wait | Read] = msgspec.json.Decoder(Gather | Wait | Read)


async def main() -> None:
    """Observe until the input ends."""
    crowd = Crowd()
    try:
        await answering(requests, crowd.answer)
    finally:
        crowd.close()


if __name__ == "__main__":
    uvloop.run(main())
