"""Ten thousand invalid frames: other feeds are not affected, nothing crashes, and no resource leaks."""

import asyncio
import contextlib
import gc
import json
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import websockets
from structlog.testing import capture_logs

from khala.api.threads.socket_session import MAX_FRAME_BYTES
from khala.live.observer import Observer, Subscription
from khala.live.service import LiveService
from khala.main import MAX_SOCKET_FRAME_BYTES
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

FRAMES = 10_000
HUGE = {1: MAX_FRAME_BYTES + 1, 2: 4 * MAX_FRAME_BYTES, 3: MAX_SOCKET_FRAME_BYTES + 1}
"""Bytes of the frames that are too long; the last is over what the socket takes at all."""
EACH_HUGE = 400
"""One frame of so many is huge: they cost milliseconds each, the others microseconds."""
WORKERS = 4
AT_ONCE = 5
"""Frames that are sent before the server has answered: of those that end a connection, few are wasted."""
WORDS = 500
ANSWER = "".join(f"word{at} " for at in range(1, WORDS + 1))
WITHIN = 150.0
CODES = {"invalid_input", "payload_too_large", "rate_limited", "unauthorized", "forbidden", "thread_not_found"}
CLOSES = {1000, 1006, 1008, 1009}
"""How connections end: 1006 is a reset by a server that has closed while more than it reads was on the way."""
SPARE = {"clients": 3, "subscriptions": 3}
"""What may be alive although it has ended: loops that rest still have the last ones in their variables."""

Junk = str | bytes

server = server_fixture()


class FrameFuzzer:
    """Generates invalid frames, and some valid ones, from one seed."""

    def __init__(self, seed: int, own: Thread, foreign: Thread) -> None:
        self._random = random.Random(seed)
        self._own = own
        self._foreign = foreign
        self._kinds: list[Callable[[], Junk]] = [
            self._bytes, self._text, self._cut, self._deep, self._more_fields, self._wrong_types, self._wrong_types,
            self._any_ids, self._binary, self._valid,
        ]  # fmt: skip

    def frame(self, at: int) -> Junk:
        """The frame at this position in the series."""
        if at % EACH_HUGE == 0:
            return self._huge(HUGE[1 + at // EACH_HUGE % len(HUGE)])
        return self._random.choice(self._kinds)()

    def _valid_frame(self) -> dict[str, Any]:
        thread_id = self._random.choice([self._own.id, self._own.id, self._foreign.id])
        choices: list[dict[str, Any]] = [
            {"type": "subscribe", "threadId": thread_id, "anonKey": self._own.key, "after": self._random.randrange(9)},
            {"type": "unsubscribe", "threadId": thread_id},
            {"type": "presence", "threadId": thread_id, "state": {"at": self._random.randrange(9)}},
            {"type": "watch", "after": self._random.randrange(9)},
            {"type": "unwatch"},
            {"type": "authenticate", "token": self._random.choice(["khala_no", "a.b.c", "x"])},
            {"type": "ping"},
        ]
        return self._random.choice(choices)

    def _valid(self) -> str:
        return json.dumps(self._valid_frame())

    def _binary(self) -> bytes:
        return self._valid().encode()

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.randrange(200))

    def _text(self) -> str:
        points = (self._random.choice([self._random.randrange(128), self._random.randrange(0xD800)]) for _ in range(60))
        return "".join(map(chr, points))

    def _cut(self) -> str:
        whole = self._valid()
        return whole[: self._random.randrange(len(whole))]

    def _deep(self) -> str:
        depth = self._random.choice([5, 200, 20_000])
        inner = self._random.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth])
        field = self._random.choice(["state", "padding", "threadId", "type"])
        return f'{{"type":"presence","threadId":"{self._own.id}","{field}":{inner}}}'

    def _more_fields(self) -> str:
        more = {self._text(): self._anything() for _ in range(self._random.randrange(1, 9))}
        return json.dumps(more | self._valid_frame() | {"__proto__": {}, "": 0})

    def _wrong_types(self) -> str:
        frame = self._valid_frame()
        name = self._random.choice(list(frame))
        return json.dumps(frame | {name: self._anything()})

    def _any_ids(self) -> str:
        frame = self._valid_frame()
        return json.dumps(frame | {"threadId": str(uuid.UUID(int=self._random.getrandbits(128)))})

    def _huge(self, size: int) -> Junk:
        text = json.dumps(self._valid_frame() | {"padding": ""})
        choices: list[Junk] = [text[:-2] + "x" * size + '"}', "x" * size, b"\0" * size]
        return self._random.choice(choices)

    def _anything(self) -> Any:
        return self._random.choice([
            None, True, -1, 0, 1.5, 2**53, 2**64, 10**300, 1e308, "", "\0", "\ud800", "x" * 2000, "subscribe",
            self._own.id.upper(), [], [[]], {}, {"type": "ping"}, {"\0": "\0"}, {"a": "\0"}, {"a": "x" * 1100},
        ])  # fmt: skip


class Tally:
    """Counts of the responses to the frames."""

    def __init__(self) -> None:
        self.connections = 0
        self.sent = 0
        self.answers: dict[str, int] = {}
        self.closes: dict[int | None, int] = {}


async def send_frames(server: InProcessServer, fuzz: FrameFuzzer, row: range, tally: Tally) -> None:
    """Send the frames of this range, on as many connections as that needs."""
    left = list(row)
    while left:
        async with socket(server, greeted=False, ping_interval=None, close_timeout=1) as feed:
            tally.connections += 1
            ponged = asyncio.Event()
            hearing = asyncio.create_task(_receive(feed.connection, tally, ponged))
            with contextlib.suppress(websockets.ConnectionClosed):
                while left and not hearing.done():
                    for _ in range(min(AT_ONCE, len(left))):
                        await feed.send(fuzz.frame(left[-1]))
                        left.pop()
                        tally.sent += 1
                    # Ensures that the server reads these frames before a frame that closes the connection.
                    ponged.clear()
                    await feed.send({"type": "ping"})
                    waiting = asyncio.create_task(ponged.wait())
                    await asyncio.wait({waiting, hearing}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
            await feed.connection.close()
            await hearing
            code = feed.connection.close_code
            tally.closes[code] = tally.closes.get(code, 0) + 1


async def _receive(connection: websockets.ClientConnection, tally: Tally, ponged: asyncio.Event) -> None:
    with contextlib.suppress(websockets.ConnectionClosed):
        async for message in connection:
            frame = json.loads(message)
            kind = frame["code"] if frame["type"] == "error" else frame["type"]
            tally.answers[kind] = tally.answers.get(kind, 0) + 1
            if kind == "pong":
                ponged.set()


def held_entries(live: LiveService) -> dict[str, int]:
    """The number of entries that the server holds for its clients, by collection."""
    return {
        "threads": len(live.threads._topics),
        "accounts": len(live.accounts._topics),
        "expiring": len(live.guard._expiring),
        "users": sum(len(subscriptions) for subscriptions in live.guard._users.values()),
        "pending rechecks": len(live.guard._pending),
        "here": len(live.presence._entries),
        "unwritten": len(live.presence._unwritten),
        "watchers": len(live.presence._watchers),
        "told": len(live.presence._lists),
        "unread": len(live.presence._unread),
        "clients": _alive(Observer),
        "subscriptions": _alive(Subscription),
        "tasks": len(asyncio.all_tasks()),
    }


def _alive(kind: type) -> int:
    return sum(type(candidate) is kind for candidate in gc.get_objects())


def live_service() -> LiveService:
    [live] = [candidate for candidate in gc.get_objects() if type(candidate) is LiveService]
    return live


async def until_as_before(live: LiveService, before: dict[str, int]) -> None:
    """Wait until the server holds no more than before."""
    deadline = time.monotonic() + 10
    while True:
        gc.collect()
        now = held_entries(live)
        more = {name: (before[name], count) for name, count in now.items() if count > before[name] + SPARE.get(name, 0)}
        if not more:
            return
        assert time.monotonic() < deadline, f"not released: {more}"
        await asyncio.sleep(0.1)


@pytest.mark.timeout(240)
async def test_ten_thousand_invalid_frames_affect_no_other_observer(
    server: InProcessServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()
    live = live_service()
    thread, own, foreign = [await server.thread() for _ in range(3)]
    async with asyncio.timeout(5):
        await server.http.get("/api/health/live")
    before = held_entries(live)
    tally = Tally()
    with capture_logs() as logs:
        async with server.observer(thread).following() as one, server.observer(thread).following() as other:
            for observer in (one, other):
                await observer.until(lambda view: view.revision is not None)
            sent = await thread.send(f"/words={WORDS} /pace=40")
            rows = [range(at, FRAMES, WORKERS) for at in range(WORKERS)]
            async with asyncio.timeout(WITHIN):
                fuzzes = [FrameFuzzer(seed, own, foreign) for seed in range(WORKERS)]
                await asyncio.gather(*(send_frames(server, *pair, tally) for pair in zip(fuzzes, rows, strict=True)))
            answer_id = sent["assistantMessageId"]
            for observer in (one, other):
                # The view raises where frames don't chain or a part comes twice.
                view = await observer.until(lambda view: answer_id in view.finished)
                assert view.text(answer_id).split() == ANSWER.split()
                assert (observer.connects, view.snapshots, view.gone) == (1, 1, None)
    assert tally.sent == FRAMES
    assert set(tally.closes) <= CLOSES
    assert {1008, 1009} <= set(tally.closes)
    assert tally.closes[1008] > 300, "most connections were closed because of invalid frames"
    errors = set(tally.answers) - {"hello", "pong", "snapshot", "delta", "presence"}
    assert {"invalid_input", "payload_too_large", "unauthorized", "forbidden", "thread_not_found"} <= errors <= CODES
    assert [line for line in logs if line["event"] == "request"], "the test captures the log"
    assert [line for line in logs if line["log_level"] in ("warning", "error", "critical")] == []
    assert [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err
    await until_as_before(live, before)
    snapshot = await thread.snapshot()
    assert "".join(block["text"] for block in snapshot["messages"][-1]["content"]).split() == ANSWER.split()
    async with socket(server) as feed:
        assert (await feed.subscribe(own))["type"] == "snapshot"
        await feed.expect_nothing()
