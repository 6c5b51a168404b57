"""The baseline: as many frames, as large and as often, from a bare `websockets` server to as many observers."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import assert_never

import msgspec
import uvloop
from websockets.asyncio.server import Server, ServerConnection, broadcast, serve

from tests.bench.processes import Address, Listen, Request, answering

SNAPSHOT = '{"type":"snapshot"}'
HEAD_START = 0.1
"""Seconds from the request to the first frame."""

Schedule = list[tuple[int, int]]
"""Frames of one topic: nanoseconds after the beginning, and bytes."""


class Play(Request, frozen=True, kw_only=True):
    """Send every topic's frames when they are due; answered by `Played` after the last."""

    schedules: Mapping[str, Schedule]


class Played(msgspec.Struct, frozen=True):
    """How many broadcasts went out, and the microseconds by which the latest was late."""

    broadcasts: int
    latest: int


class Topics:
    """Who is connected to which path."""

    def __init__(self) -> None:
        self._connections: dict[str, set[ServerConnection]] = defaultdict(set)

    async def join(self, connection: ServerConnection) -> None:
        """Hold a connection for as long as it lasts."""
        assert connection.request
        topic = self._connections[connection.request.path.removeprefix("/")]
        await connection.send(SNAPSHOT)
        topic.add(connection)
        try:
            await connection.wait_closed()
        finally:
            topic.discard(connection)

    async def play(self, schedules: Mapping[str, Schedule]) -> Played:
        """Send what is due, in order."""
        began, latest, due = time.monotonic_ns() + int(HEAD_START * 1e9), 0, _merged(schedules)
        for offset, topic, size, last in due:
            await asyncio.sleep(max(0, began + offset - time.monotonic_ns()) / 1e9)
            latest = max(latest, time.monotonic_ns() - began - offset)
            broadcast(self._connections[topic], frame(size, last=last), text=True)
        return Played(len(due), latest // 1000)


def _merged(schedules: Mapping[str, Schedule]) -> list[tuple[int, str, int, bool]]:
    return sorted(
        (offset, topic, size, index == len(schedule) - 1)
        for topic, schedule in schedules.items()
        for index, (offset, size) in enumerate(schedule)
    )


def frame(size: int, *, last: bool) -> bytes:
    """A text frame of this size in bytes, which says when it was made; the last one says that it is."""
    head = b'{"stamp":%d,%b"pad":"' % (time.monotonic_ns(), b'"finish":1,' if last else b"")
    return head + b"x" * (size - len(head) - 2) + b'"}'


requests: msgspec.json.Decoder[Listen | Play] = msgspec.json.Decoder(Listen | Play)


async def answer(request: Listen | Play, server: Server, topics: Topics) -> Address | Played:
    """One request of the bench."""
    match request:
        case Listen():
            return Address(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        case Play():
            return await topics.play(request.schedules)
        case _:
            assert_never(request)


async def main() -> None:
    """Serve until the input ends."""
    topics = Topics()
    async with serve(topics.join, "127.0.0.1", 0, compression=None, close_timeout=1) as server:
        await answering(requests, lambda request: answer(request, server, topics))


if __name__ == "__main__":
    uvloop.run(main())
