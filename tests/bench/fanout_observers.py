"""A process of many observers of one topic, which use little CPU, so that the server is the bottleneck.

An observer is a bare protocol over a TCP connection: it records each text frame with its time, and answers pings. The
frames are parsed after the measurement.
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

from tests.bench.processes import Request, serve_requests

REVISION = re.compile(rb'"revision":(\d+)')
SINCE = re.compile(rb'"from":(\d+)')
CREATED_AT = re.compile(rb'"createdAt":"([^"]+)"')
SNAPSHOT = b'"type":"snapshot"'
MAX_CONCURRENT_CONNECTS = 32
TEXT, PING = 0x81, 0x89
"""First bytes of a server's messages: whole text frames, and pings."""


class Connect(Request, frozen=True, kw_only=True):
    """Connect observers up to this number; answered by `ObserverCount` once all follow. Each sends `hello` first."""

    url: str
    observers: int
    hello: str


class Wait(Request, frozen=True, kw_only=True):
    """Wait until all have this revision, `seconds` at most; answered by the `ObserverCount` of those that have it."""

    revision: int
    seconds: float


class Read(Request, frozen=True, kw_only=True):
    """Read the frames since the last `Read`; answered by `Received`."""


class ObserverCount(msgspec.Struct, frozen=True):
    """A number of observers."""

    observers: int


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """Frames and their bytes, the ages of their last rows in microseconds, and the gaps in the chains of revisions."""

    frames: int
    bytes: int
    ages: list[int]
    sample: str
    problems: list[str]


class Observer(asyncio.Protocol):
    """One connection."""

    def __init__(self, group: "ObserverGroup", path: str, hello: str) -> None:
        self._group = group
        self._path = path
        self._hello = hello
        self._upgraded = False
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revision = -1
        self.last_read_revision = -1
        """The revision at the last `Read`."""
        self.frames: list[tuple[bytes, int]] = []
        self.lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Request the upgrade to a WebSocket."""
        self._transport = transport
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the loss; `Received.problems` reports it."""
        self.lost = True
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(f"refused: {self._rest[:200]!r}"))

    def data_received(self, data: bytes) -> None:
        """Parse whole frames; keep the rest for later."""
        now, rest = time.monotonic_ns(), self._rest + data if self._rest else data
        if not self._upgraded:
            head, end, rest = rest.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._upgrade(head)
        while len(rest) > 1:
            start, size = _payload_span(rest)
            if len(rest) < start + size:
                break
            self._receive(rest[0], rest[start : start + size], now)
            rest = rest[start + size :]
        self._rest = rest

    def send(self, opcode: int, payload: bytes) -> None:
        """Send a frame, masked with zeros."""
        assert self._transport
        size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack("!H", len(payload))
        self._transport.write(bytes([opcode]) + size + b"\0\0\0\0" + payload)

    def close(self) -> None:
        """Abort the connection."""
        assert self._transport
        self._transport.abort()

    def _upgrade(self, head: bytes) -> None:
        if b" 101 " not in head.split(b"\r\n")[0] + b" ":
            raise ConnectionRefusedError(head.decode())
        self._upgraded = True
        self.send(TEXT, self._hello.encode())

    def _receive(self, opcode: int, payload: bytes, now: int) -> None:
        if opcode == PING:
            self.send(0x8A, payload)
        elif opcode == TEXT and (found := REVISION.search(payload)):
            self.revision = int(found[1])
            if not self.ready.done():
                self.last_read_revision = self.revision
                self.ready.set_result(None)
            else:
                self.frames.append((self._group.deduplicated(payload), now))
            self._group.notify_received()


def _payload_span(data: bytes) -> tuple[int, int]:
    """The offset of a frame's payload, and its size; the size of an incomplete header is 0."""
    short = data[1] & 0x7F
    if short < 126:
        return 2, short
    start, code = (4, "!H") if short == 126 else (10, "!Q")
    return (start, struct.unpack(code, data[2:start])[0]) if len(data) >= start else (start, 0)


class ObserverGroup:
    """All observers of this process."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._texts: dict[bytes, bytes] = {}
        self._waited_for = 0
        self._changed = asyncio.Event()

    def deduplicated(self, payload: bytes) -> bytes:
        """The first frame that was equal to this one, so that only one copy is stored."""
        return self._texts.setdefault(payload, payload)

    def notify_received(self) -> None:
        """Wake a pending `Wait`."""
        self._changed.set()

    async def answer(self, request: Connect | Wait | Read) -> ObserverCount | Received:
        """Answer one request of the benchmark."""
        match request:
            case Connect():
                return await self._connect(request)
            case Wait():
                return await self._wait(request)
            case Read():
                return self._read()
            case _:
                assert_never(request)

    async def _connect(self, request: Connect) -> ObserverCount:
        permits = asyncio.Semaphore(MAX_CONCURRENT_CONNECTS)
        split = urlsplit(request.url)
        assert split.hostname
        assert split.port
        host, port = split.hostname, split.port

        async def connect() -> None:
            async with permits:
                loop = asyncio.get_running_loop()
                _, observer = await loop.create_connection(
                    lambda: Observer(self, split.path or "/", request.hello), host, port
                )
                self._observers.append(observer)
                await observer.ready

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(request.observers - len(self._observers)):
                group.create_task(connect())
        return ObserverCount(len(self._observers))

    async def _wait(self, request: Wait) -> ObserverCount:
        missing = set(self._observers)
        try:
            async with asyncio.timeout(request.seconds):
                while missing := {one for one in missing if one.revision < request.revision}:
                    self._changed.clear()
                    await self._changed.wait()
                    # Not after each frame, which would take CPU time from the receiving.
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pass
        return ObserverCount(len(self._observers) - len(missing))

    def _read(self) -> Received:
        wall = time.time_ns() - time.monotonic_ns()
        written = {text: _written_at(text) for text in self._texts}
        received = [(text, at) for one in self._observers for text, at in one.frames]
        ages = [(at + wall - written[text]) // 1000 for text, at in received]
        report = Received(
            frames=len(received),
            bytes=sum(len(text) for text, _ in received),
            ages=ages,
            sample=received[-1][0].decode() if received else "",
            problems=[problem for one in self._observers if (problem := _problem(one))],
        )
        for one in self._observers:
            one.last_read_revision, one.frames = one.revision, []
        self._texts = {}
        return report

    def close(self) -> None:
        """Abort all connections."""
        for one in self._observers:
            one.close()


def _written_at(text: bytes) -> int:
    """The time at which the frame's last row was written, in nanoseconds since 1970; 0 if it has none."""
    times = CREATED_AT.findall(text)
    return int(datetime.fromisoformat(times[-1].decode()).timestamp() * 1e6) * 1000 if times else 0


def _number(pattern: re.Pattern[bytes], text: bytes) -> int:
    """The number that the pattern matches, -1 without a match."""
    found = pattern.search(text)
    return int(found[1]) if found else -1


def _problem(observer: Observer) -> str | None:
    """The first gap in the chain of frames that the observer received, or the loss of its connection; None without."""
    if observer.lost:
        return "the connection of an observer was lost"
    at = observer.last_read_revision
    for text, _ in observer.frames:
        since, to = _number(SINCE, text), _number(REVISION, text)
        if SNAPSHOT not in text and since != at:
            return f"a frame from {since} came after {at}"
        at = to
    return None


requests: msgspec.json.Decoder[Connect | Wait | Read] = msgspec.json.Decoder(Connect | Wait | Read)


async def main() -> None:
    """Observe until the input ends."""
    group = ObserverGroup()
    try:
        await serve_requests(requests, group.answer)
    finally:
        group.close()


if __name__ == "__main__":
    uvloop.run(main())
