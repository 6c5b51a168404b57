"""Bare WebSocket server that replays recorded frame times and sizes: the `bare` baseline of a workload."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import assert_never

import msgspec
import uvloop
from websockets.asyncio.server import Server, ServerConnection, broadcast, serve

from tests.bench.processes import Address, Listen, Request, serve_requests

SNAPSHOT = '{"type":"snapshot"}'
START_DELAY_SECONDS = 0.1
"""Seconds from the request to the first frame."""

Schedule = list[tuple[int, int]]
"""Frames of one topic: time in nanoseconds since the start, and size in bytes."""


class Replay(Request, frozen=True, kw_only=True):
    """Send the frames of every topic when they are due; answered by `ReplayResult` after the last frame."""

    schedules: Mapping[str, Schedule]


class ReplayResult(msgspec.Struct, frozen=True):
    """The number of broadcasts, and the largest delay of one in microseconds."""

    broadcasts: int
    max_delay: int


class Topics:
    """The connections of each topic; the path of a connection names its topic."""

    def __init__(self) -> None:
        self._connections: dict[str, set[ServerConnection]] = defaultdict(set)

    async def join(self, connection: ServerConnection) -> None:
        """Add a connection to its topic until it closes."""
        assert connection.request
        topic = self._connections[connection.request.path.removeprefix("/")]
        await connection.send(SNAPSHOT)
        topic.add(connection)
        try:
            await connection.wait_closed()
        finally:
            topic.discard(connection)

    async def play(self, schedules: Mapping[str, Schedule]) -> ReplayResult:
        """Send all frames in order, each when it is due."""
        began, max_delay, due = time.monotonic_ns() + int(START_DELAY_SECONDS * 1e9), 0, _merged(schedules)
        for offset, topic, size, last in due:
            await asyncio.sleep(max(0, began + offset - time.monotonic_ns()) / 1e9)
            max_delay = max(max_delay, time.monotonic_ns() - began - offset)
            broadcast(self._connections[topic], frame(size, last=last), text=True)
        return ReplayResult(len(due), max_delay // 1000)


def _merged(schedules: Mapping[str, Schedule]) -> list[tuple[int, str, int, bool]]:
    return sorted(
        (offset, topic, size, index == len(schedule) - 1)
        for topic, schedule in schedules.items()
        for index, (offset, size) in enumerate(schedule)
    )


def frame(size: int, *, last: bool) -> bytes:
    """A text frame of this size in bytes, with the time of its creation; the last one is marked as such."""
    head = b'{"stamp":%d,%b"pad":"' % (time.monotonic_ns(), b'"finish":1,' if last else b"")
    return head + b"x" * (size - len(head) - 2) + b'"}'


requests: msgspec.json.Decoder[Listen | Replay] = msgspec.json.Decoder(Listen | Replay)


async def answer(request: Listen | Replay, server: Server, topics: Topics) -> Address | ReplayResult:
    """Answer one request of the benchmark."""
    match request:
        case Listen():
            return Address(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        case Replay():
            return await topics.play(request.schedules)
        case _:
            assert_never(request)


async def main() -> None:
    """Serve until the input ends."""
    topics = Topics()
    async with serve(topics.join, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        await serve_requests(requests, lambda request: answer(request, server, topics))


if __name__ == "__main__":
    uvloop.run(main())
