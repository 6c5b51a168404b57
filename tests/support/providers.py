"""A local server with the three protocols of real model providers, which can fail on demand.

In a test:

    async with serving(Reply(tokens=("Hel", "lo"), drop_after=1)) as server:
        ...                                     # call a model at server.url
        call = await server.call(0)             # the request, and the time at which the client disconnected

Each call uses one of the given replies, in order; after those, `server.default` chooses the reply.
`Reply(calls=(UseTool(name="echo"),))` calls tools, and `serving(default=in_steps(Reply(calls=…), Reply(…)))` does so
for every question. As a process, `python -m tests.support.providers --port 0` prints its URL, and chooses replies by
flags and by directives in the user's message: `/words=300` tokens, `/pace=200` tokens a second (0: at full speed),
`/stamp` makes each token `t<time.monotonic_ns()> `.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.support import wires
from tests.support.wires import UseTool, Wire

STATUS_TEXT = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 429: b"Too Many Requests", 529: b"Overloaded"}
HEAD = b"HTTP/1.1 %d %s\r\nconnection: keep-alive\r\n"


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The reply to one call. `…_after` counts tokens: 0 is before the first, None is never."""

    tokens: tuple[str, ...] = ("Hello", ", ", "world", "!")
    reasoning: tuple[str, ...] = ()
    pace: float = 0.0
    """Tokens a second; 0 is as fast as possible."""
    calls: tuple[UseTool, ...] = ()
    """Tool calls after the tokens."""
    finish: str | None = None
    """By default `tool_calls` if there are some, else `stop`."""
    usage: tuple[int, int] | None = (11, 7)
    status: int = 200
    message: str = "scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    """Close the socket within the HTTP body."""
    reset: bool = False
    """`drop_after` resets the socket instead; the client loses what it has not read yet."""
    end_after: int | None = None
    """End the HTTP body regularly, but without the final event of the protocol."""
    hang_after: int | None = None
    """Send nothing more until the client disconnects."""
    garbage_after: int | None = None
    fail_after: int | None = None
    """Send the protocol's error event inside the stream, for the status `fail_status`."""
    fail_status: int = 529
    raw: bytes | None = None
    """Send this body with status 200 as an HTML page instead."""
    chunk_bytes: int | None = None
    """Send the body in chunks of this size, which split characters and lines."""
    stamp: bool = False
    """Send the current time as each token."""


@dataclass
class Call:
    """One request to the server; times are `time.monotonic()`."""

    wire: Wire
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    began: float
    sent: int = 0
    """Number of sent tokens."""
    completed: bool = False
    """Whether the whole answer was sent."""
    left: float | None = None
    """The time at which the client closed the connection before that."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    """Answers calls by a script, and records them."""

    def __init__(self, *replies: Reply, default: Callable[[Call], Reply] | None = None) -> None:
        self.script: deque[Reply] = deque(replies)
        self.default: Callable[[Call], Reply] = default or (lambda call: Reply())
        self.calls: list[Call] = []
        self.keep_calls = True
        self.connections = 0
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()

    async def call(self, index: int, timeout: float = 5.0) -> Call:
        """Wait for the call with this index; returns it."""
        async with asyncio.timeout(timeout), self._arrived:
            await self._arrived.wait_for(lambda: len(self.calls) > index)
        return self.calls[index]

    async def accept(self, call: Call) -> Reply:
        """Record the call, and choose its reply."""
        if self.keep_calls:
            self.calls.append(call)
            async with self._arrived:
                self._arrived.notify_all()
        return self.script.popleft() if self.script else self.default(call)


class _Connection(asyncio.Protocol):
    """One client. A lost connection cancels the answer at once, and its time is recorded."""

    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received = bytearray()
        self.answering: asyncio.Task[None] | None = None
        self.call: Call | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.server.connections += 1
        self.transport = transport  # type: ignore[assignment]  # a TCP server's; uvloop's inherits from none of them

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self.received = bytearray(rest[length:])
        self.answering = asyncio.create_task(self._answer(first.split(" ")[1], headers, bytes(rest[:length])))
        self.server.tasks.add(self.answering)
        self.answering.add_done_callback(self.server.tasks.discard)

    def connection_lost(self, error: Exception | None) -> None:
        if self.call is not None and not self.call.completed:
            self.call.left = time.monotonic()
            self.call.gone.set()
        if self.answering is not None:
            self.answering.cancel()

    async def _answer(self, target: str, headers: Mapping[str, str], body: bytes) -> None:
        path = target.partition("?")[0]
        wire = wires.of(path)
        if wire is None:
            self.transport.write(HEAD % (404, STATUS_TEXT[404]) + b"content-length: 0\r\n\r\n")
            return
        self.call = call = Call(wire, path, headers, msgspec.json.decode(body), time.monotonic())
        reply = await self.server.accept(call)
        if reply.status == 200 and reply.raw is None:
            await self._stream(call, reply)
        else:
            self._refuse(wire, reply)
            call.completed = True

    def _refuse(self, wire: Wire, reply: Reply) -> None:
        body = reply.raw or msgspec.json.encode(wire.failure(reply.status, reply.message))
        kind = b"text/html" if reply.raw else b"application/json"
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items()).encode()
        head = HEAD % (reply.status, STATUS_TEXT.get(reply.status, b"Error")) + extra
        self.transport.write(head + b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)) + body)

    async def _stream(self, call: Call, reply: Reply) -> None:
        self.transport.write(
            HEAD % (200, b"OK") + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        async for piece in _body(call, reply):
            if not self.writable.is_set():
                await self.writable.wait()
            self._write(piece, reply.chunk_bytes)
        if reply.drop_after is not None:
            self.transport.abort() if reply.reset else self.transport.close()
            return
        self.transport.write(b"0\r\n\r\n")
        call.completed = True

    def _write(self, piece: bytes, chunk_bytes: int | None) -> None:
        step = chunk_bytes or len(piece)
        for start in range(0, len(piece), step or 1):
            part = piece[start : start + step]
            self.transport.write(b"%x\r\n%b\r\n" % (len(part), part))


async def _body(call: Call, reply: Reply) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer when they are due."""
    wire = call.wire
    yield wire.opening(str(call.body.get("model", "local")))
    if reply.reasoning:
        yield wire.reasoning_begins + b"".join(map(wire.reasoning, reply.reasoning))
    yield wire.text_begins
    due, interval = time.monotonic(), 1 / reply.pace if reply.pace else 0.0
    failure_points = {reply.drop_after, reply.end_after, reply.hang_after, reply.garbage_after, reply.fail_after}
    for index, token in enumerate(reply.tokens):
        if index in failure_points and (failure := await _failure(wire, reply, index)) is not None:
            yield failure
            return
        due += interval
        if due > (now := time.monotonic()) and interval:
            await asyncio.sleep(due - now)
        yield wire.token(f"t{time.monotonic_ns()} " if reply.stamp else token)
        call.sent += 1
    failure = await _failure(wire, reply, len(reply.tokens))
    if failure is not None:
        yield failure
        return
    yield wire.calls(reply.calls)
    yield wire.closing(reply.finish or ("tool_calls" if reply.calls else "stop"), reply.usage)


async def _failure(wire: Wire, reply: Reply, index: int) -> bytes | None:
    """The scripted failure after `index` tokens: the last bytes of the stream, or None without a failure."""
    if reply.hang_after == index:
        await asyncio.Event().wait()
    if reply.garbage_after == index:
        return wire.garbage
    if reply.fail_after == index:
        return wire.failure_event(wire.failure(reply.fail_status, reply.message))
    return b"" if index in (reply.drop_after, reply.end_after) else None


@asynccontextmanager
async def serving(
    *replies: Reply, default: Callable[[Call], Reply] | None = None, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[Server]:
    """A server that listens for as long as this is open."""
    server = Server(*replies, default=default)
    listener = await asyncio.get_running_loop().create_server(lambda: _Connection(server), host, port)
    server.url = f"http://{host}:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()


def by_words(tokens: int, pace: float, stamp: bool) -> Callable[[Call], Reply]:
    """Replies by directives in the user's message, with these defaults."""

    def choose(call: Call) -> Reply:
        words = [word for word in call.wire.prompt(call.body).split() if word.startswith("/")]
        directives = dict(word[1:].split("=", 1) for word in words if "=" in word)
        count = int(directives.get("words", tokens))
        words_of_answer = tuple(f"word{number} " for number in range(1, count + 1))
        return Reply(
            tokens=words_of_answer,
            pace=float(directives.get("pace", pace)),
            stamp=stamp or "/stamp" in words,
            usage=(10, count),
        )

    return choose


def in_steps(*replies: Reply) -> Callable[[Call], Reply]:
    """Answer every question with these replies, one for each step; the last one for all further steps."""
    return lambda call: replies[min(call.wire.steps(call.body), len(replies) - 1)]


if __name__ == "__main__":
    from tests.support.provider_process import main

    main()
