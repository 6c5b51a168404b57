"""A process of many clients that read streams of events, which use little CPU, so that the server is the bottleneck.

A client is a bare protocol over a TCP connection: it sends one request, and looks for the number of the last delta in
what it receives. The texts of deltas contain their numbers as `#7#`.
"""

import asyncio
import re
from typing import assert_never

import msgspec
import uvloop

from tests.bench.processes import Request, serve_requests

NUMBER = re.compile(rb"#(\d+)#")
MAX_MARKER_BYTES = 16
MAX_PROBLEM_BYTES = 1_000
MAX_CONCURRENT_CONNECTS = 16
CONNECT_TIMEOUT_SECONDS = 15.0


class Attach(Request, frozen=True, kw_only=True):
    """Close all connections, and send each of these requests on a connection of its own.

    Answered by `Reached` once every response has the delta `number`.
    """

    host: str
    port: int
    requests: tuple[str, ...]
    number: int


class Await(Request, frozen=True, kw_only=True):
    """Wait until all clients have the delta of this number, `seconds` at most; answered by `Reached`."""

    number: int
    seconds: float


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """The clients that have the delta, and the bytes that all have received since the last answer."""

    clients: int
    bytes: int
    problem: str = ""
    """The beginning of the response of a client that does not have the delta."""


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, group: "ClientGroup", request: bytes) -> None:
        self._group = group
        self._request = request
        self._tail = b""
        self._transport: asyncio.Transport | None = None
        self.head = b""
        self.number = -1
        self.lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the request."""
        self._transport = transport
        transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the loss, which no wait survives."""
        self.lost = True
        self._group.notify_received(0)

    def data_received(self, data: bytes) -> None:
        """Note the number of the last delta."""
        self.head = self.head or data[:MAX_PROBLEM_BYTES]
        found = NUMBER.findall(self._tail + data)
        self._tail = data[-MAX_MARKER_BYTES:]
        if found:
            self.number = max(self.number, int(found[-1]))
        self._group.notify_received(len(data))

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()


class ClientGroup:
    """All clients of this process."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._changed = asyncio.Event()
        self._bytes = 0

    def notify_received(self, count: int) -> None:
        """Count the bytes, and wake a pending wait."""
        self._bytes += count
        self._changed.set()

    async def answer(self, request: Attach | Await) -> Reached:
        """Answer one request of the benchmark."""
        match request:
            case Attach():
                await self._attach(request)
                return await self._wait(request.number, CONNECT_TIMEOUT_SECONDS)
            case Await():
                return await self._wait(request.number, request.seconds)
            case _:
                assert_never(request)

    async def _attach(self, request: Attach) -> None:
        self.close()
        permits = asyncio.Semaphore(MAX_CONCURRENT_CONNECTS)

        async def connect(text: str) -> None:
            async with permits:
                loop = asyncio.get_running_loop()
                _, client = await loop.create_connection(
                    lambda: Client(self, text.encode()), request.host, request.port
                )
                self._clients.append(client)

        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
            for text in request.requests:
                group.create_task(connect(text))

    async def _wait(self, number: int, seconds: float) -> Reached:
        missing = list(self._clients)
        try:
            async with asyncio.timeout(seconds):
                while missing := [one for one in missing if one.number < number and not one.lost]:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        received, self._bytes = self._bytes, 0
        behind = [one.head.decode(errors="replace") for one in self._clients if one.number < number]
        clients = len(self._clients) - len(behind)
        return Reached(clients=clients, bytes=received, problem=behind[0] if behind else "")

    def close(self) -> None:
        """Abort all connections."""
        for one in self._clients:
            one.close()
        self._clients = []


requests: msgspec.json.Decoder[Attach | Await] = msgspec.json.Decoder(Attach | Await)


async def main() -> None:
    """Read until the input ends."""
    group = ClientGroup()
    try:
        await serve_requests(requests, group.answer)
    finally:
        group.close()


if __name__ == "__main__":
    uvloop.run(main())
