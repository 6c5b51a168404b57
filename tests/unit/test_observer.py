"""Observers: frames go directly to the connection, or through the outbox, in order and without a gap."""

import asyncio
import random
from uuid import UUID, uuid4

import pytest

from khala.domain.access import Authorization, Caller
from khala.live.encoded_frame import EncodedFrame
from khala.live.observer import MAX_OUTBOX_BYTES, CatchUpRead, Observer, OutgoingFrame, Subscription
from tests.support.live import payload

ACCESS = UUID(int=1)
VIEWER = Authorization(caller=Caller(), role="viewer", access_id=ACCESS)


class Connection:
    """A connection that takes so many messages, and then none until the test makes room."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.room = 0
        self._roomy = asyncio.Event()

    def make_room(self, messages: int) -> None:
        self.room = messages
        self._roomy.set()

    def write(self, message: bytes) -> bool:
        if self.room == 0:
            self._roomy.clear()
            return False
        self.room -= 1
        self.taken.append(payload(message))
        return True

    async def deliver(self, out: OutgoingFrame) -> None:
        while not self.write(out.body.websocket_message):
            await self._roomy.wait()


class FakeTopic:
    """A topic that consists of its revisions, and notifies its observers of each."""

    def __init__(self) -> None:
        self.revision = 0
        self.observers: list[Subscription] = []
        self.reads = 0

    def follow(self, client: Observer) -> Subscription:
        subscription = Subscription(self, client, uuid4(), self.revision, VIEWER)
        subscription.behind = False
        client.subscriptions[self, subscription.topic_id] = subscription
        self.observers.append(subscription)
        return subscription

    def append(self, size: int = 0) -> None:
        since, self.revision = self.revision, self.revision + 1
        body = frame(since, self.revision, size)
        for observer in self.observers:
            observer.offer(body, since, self.revision)

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        self.reads += 1
        await asyncio.sleep(0)
        now = self.revision
        return CatchUpRead(frame(after, now) if now > after else None, now, ACCESS)

    async def authorizations(self, subscriptions: list[Subscription]) -> list[Authorization | None]:
        return [VIEWER for _ in subscriptions]

    def is_caught_up(self, subscription: Subscription) -> bool:
        return subscription.cursor >= self.revision

    def recheck(self, subscription: Subscription) -> None:
        subscription.suspend()

    def revoke(self, subscription: Subscription, code: str) -> None:
        subscription.end()


def frame(since: int, to: int, size: int = 0) -> EncodedFrame:
    return EncodedFrame(b"%d %d %s" % (since, to, b"x" * size))


def spans(taken: list[bytes]) -> list[tuple[int, int]]:
    return [(int(text.split()[0]), int(text.split()[1])) for text in taken]


def is_chained(taken: list[bytes]) -> bool:
    """Whether each frame begins where the one before it ends, starting at 0."""
    ends = [0, *(to for _, to in spans(taken))]
    return [since for since, _ in spans(taken)] == ends[:-1]


async def settle() -> None:
    """Let all tasks run until each waits for something outside of them."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_frames_that_fit_the_connection_are_sent_at_once_without_the_pump() -> None:
    connection, log = Connection(), FakeTopic()
    connection.make_room(100)
    log.follow(Observer(write=connection.write))
    for _ in range(3):
        log.append()
    assert spans(connection.taken) == [(0, 1), (1, 2), (2, 3)]


async def test_queued_frames_are_not_overtaken_when_there_is_room_again() -> None:
    connection, log = Connection(), FakeTopic()
    client = Observer(write=connection.write)
    log.follow(client)
    pump = asyncio.create_task(client.pump(connection.deliver))
    log.append()
    log.append()
    await settle()
    # The pump waits with the first frame; the connection gets room before the pump runs again.
    connection.make_room(100)
    log.append()
    assert connection.taken == []
    await settle()
    assert spans(connection.taken) == [(0, 1), (1, 2), (2, 3)]
    log.append()
    assert spans(connection.taken)[-1] == (3, 4)
    pump.cancel()


async def test_a_revocation_drops_queued_frames_and_the_last_frame_is_the_reason() -> None:
    connection, log = Connection(), FakeTopic()
    client = Observer(write=connection.write)
    subscription = log.follow(client)
    pump = asyncio.create_task(client.pump(connection.deliver))
    for _ in range(3):
        log.append()
    subscription.end()
    client.send(OutgoingFrame(EncodedFrame(b"7 7 gone")))
    log.append()
    connection.make_room(100)
    await settle()
    assert connection.taken == [b"7 7 gone"]
    pump.cancel()


async def test_a_suspended_observer_gets_no_frames_and_catches_up_when_resumed() -> None:
    connection, log = Connection(), FakeTopic()
    connection.make_room(100)
    client = Observer(write=connection.write)
    subscription = log.follow(client)
    pump = asyncio.create_task(client.pump(connection.deliver))
    log.append()
    subscription.suspend()
    log.append()
    log.append()
    await settle()
    assert spans(connection.taken) == [(0, 1)]
    subscription.confirm(VIEWER)
    await settle()
    assert spans(connection.taken) == [(0, 1), (1, 3)]
    pump.cancel()


@pytest.mark.parametrize("seed", range(50))
async def test_every_observer_gets_all_frames_in_order_on_any_slow_connection(seed: int) -> None:
    dice, log = random.Random(seed), FakeTopic()
    connections = [Connection() for _ in range(4)]
    clients = [Observer(write=connection.write) for connection in connections]
    for client in clients:
        log.follow(client)
    pumps = [
        asyncio.create_task(client.pump(connection.deliver))
        for client, connection in zip(clients, connections, strict=True)
    ]
    for _ in range(300):
        match dice.randrange(4):
            case 0:
                dice.choice(connections).make_room(dice.randrange(1, 9))
            case 1:
                await asyncio.sleep(0)
            case _:
                log.append(dice.choice((0, 100, MAX_OUTBOX_BYTES // 8)))
        assert all(client._bytes <= MAX_OUTBOX_BYTES for client in clients)
    for connection in connections:
        connection.make_room(1000)
    await settle()
    for connection in connections:
        assert is_chained(connection.taken)
        assert spans(connection.taken)[-1][1] == log.revision
    for pump in pumps:
        pump.cancel()


class SlowTopic(FakeTopic):
    """A topic whose reads wait until the test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self, topic_id: UUID, after: int) -> CatchUpRead | None:
        read = await super().read(topic_id, after)
        self.reading.set()
        await self.may_end.wait()
        return read


@pytest.mark.parametrize("what", ["ended", "doubted"])
async def test_a_read_for_an_observer_that_has_lost_access_is_not_sent(what: str) -> None:
    connection, log = Connection(), SlowTopic()
    connection.make_room(100)
    client = Observer(write=connection.write)
    subscription = log.follow(client)
    log.revision = 3
    subscription.fall_back(0)
    pump = asyncio.create_task(client.pump(connection.deliver))
    await log.reading.wait()
    if what == "ended":
        subscription.end()
    else:
        subscription.suspend()
    log.may_end.set()
    await settle()
    assert connection.taken == []
    subscription.confirm(VIEWER)
    await settle()
    assert spans(connection.taken) == ([] if what == "ended" else [(0, 3)])
    pump.cancel()


async def test_an_observer_that_keeps_reading_never_falls_back() -> None:
    connection, log = Connection(), FakeTopic()
    client = Observer()
    log.follow(client)
    connection.make_room(1000)
    pump = asyncio.create_task(client.pump(connection.deliver))
    for _ in range(20):
        log.append(MAX_OUTBOX_BYTES // 4)
        await settle()
    assert log.reads == 0
    assert spans(connection.taken) == [(at, at + 1) for at in range(20)]
    pump.cancel()


async def test_presence_is_not_sent_to_suspended_observers() -> None:
    connection, log = Connection(), FakeTopic()
    connection.make_room(100)
    client = Observer(write=connection.write)
    subscription = log.follow(client)
    pump = asyncio.create_task(client.pump(connection.deliver))
    subscription.suspend()
    client.set_presence(subscription, EncodedFrame(b"who is here"))
    await settle()
    assert connection.taken == []
    subscription.confirm(VIEWER)
    await settle()
    assert connection.taken == [b"who is here"]
    pump.cancel()


async def test_the_queued_frames_of_a_suspended_observer_are_dropped_and_read_again() -> None:
    connection, log = Connection(), FakeTopic()
    client = Observer(write=connection.write)
    subscription = log.follow(client)
    for _ in range(3):
        log.append()
    subscription.suspend()
    connection.make_room(100)
    pump = asyncio.create_task(client.pump(connection.deliver))
    await settle()
    assert connection.taken == []
    subscription.confirm(VIEWER)
    await settle()
    assert spans(connection.taken) == [(0, 3)]
    pump.cancel()
