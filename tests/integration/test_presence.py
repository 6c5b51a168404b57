"""Presence: the people who have a thread open, in every process, for exactly as long as their sockets live."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from khala.domain import ids
from khala.live import fallback_poll, presence
from khala.live.heartbeat import Heartbeat
from khala.live.observer import MAX_OUTBOX_BYTES, Subscription
from khala.live.service import LiveService
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    PRESENCE_CHANNEL,
)
from khala.store.threads import presence as stored
from tests.support.callers import person
from tests.support.frames import Socket, events, socket
from tests.support.in_process import InProcessServer, khala
from tests.support.live import FrameRecorder, follow, process
from tests.support.people import REMOVE_LINKS, add_link, add_member, change_access, new_user, sign_out, signed_in
from tests.support.store import CALLER, batch, lease_of, new_thread, write


@pytest.fixture
async def pair(database_url: str) -> AsyncIterator[tuple[InProcessServer, InProcessServer]]:
    """Two servers on one database."""
    async with khala(database_url, with_executor=False) as one, khala(database_url, with_executor=False) as other:
        yield one, other


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, with_executor=False) as inside:
        yield inside


def canonical(state: Any) -> str:
    """The state as text, equal for equal states."""
    return json.dumps(state, sort_keys=True)


async def announce(feed: Socket, thread_id: str, state: Any) -> None:
    await feed.send({"type": "presence", "threadId": thread_id, "state": state})


async def wait_for_presence(feed: Socket, *states: Any) -> list[dict[str, Any]]:
    """Wait for the presence list with exactly these states, in any order; earlier lists are dropped."""
    wanted = sorted(map(canonical, states))
    async with asyncio.timeout(15):
        while True:
            frame = json.loads(await feed.connection.recv())
            assert frame["type"] == "presence", frame
            if sorted(canonical(participant["state"]) for participant in frame["participants"]) == wanted:
                return list(frame["participants"])


async def test_presence_reaches_both_processes_with_the_name_of_the_account(
    pair: tuple[InProcessServer, InProcessServer], db: Database
) -> None:
    one, other = pair
    thread = await one.thread()
    artanis = await person(db, "Artanis")
    async with socket(one) as here, socket(other) as there, socket(other) as third:
        await here.send({"type": "authenticate", "token": artanis.token})
        assert await here.next() == {"type": "authenticated", "userId": str(artanis.id)}
        for feed in (here, there):
            assert (await feed.subscribe(thread))["type"] == "snapshot"
        await announce(here, thread.id, {"typing": True, "name": "Somebody else"})
        for feed in (here, there):
            frame = await feed.next()
            (participant,) = frame["participants"]
            UUID(participant.pop("id"))
            assert frame == {"type": "presence", "threadId": thread.id, "participants": [participant]}
            assert participant == {
                "userId": str(artanis.id),
                "name": "Artanis",
                "anonymous": False,
                "state": {"name": "Somebody else", "typing": True},
            }
        await announce(there, thread.id, {})
        both = await wait_for_presence(here, {"typing": True, "name": "Somebody else"}, {})
        assert set(both[0]) == {"id", "anonymous", "state"}, "the newest change comes first"
        assert both[0]["anonymous"] is True
        assert await wait_for_presence(there, {"typing": True, "name": "Somebody else"}, {}) == both
        assert (await third.subscribe(thread))["type"] == "snapshot"
        assert (await third.next())["participants"] == both
        await announce(here, thread.id, None)
        for feed in (here, there, third):
            assert await wait_for_presence(feed, {}) == both[:1]
        await there.send({"type": "unsubscribe", "threadId": thread.id})
        for feed in (here, third):
            assert await wait_for_presence(feed) == []


async def test_without_participants_no_presence_is_sent(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as first, socket(server) as second, events(thread) as stream:
        await first.subscribe(thread)
        await second.subscribe(thread)
        await stream.next()
        await announce(first, thread.id, None)
        await announce(second, thread.id, {"n": 1})
        for feed in (first, second):
            assert [participant["state"] for participant in (await feed.next())["participants"]] == [{"n": 1}]
        await thread.send("Hello")
        assert (await stream.frame())["type"] == "delta", "an event stream has no presence frames"


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"x": "x" * 1024}, id="over 1 KiB"),
        pytest.param({"x": "é" * 510}, id="over 1 KiB in UTF-8"),
        pytest.param({"x": "\0"}, id="a NUL"),
        pytest.param({"\0": 1}, id="a NUL in a name"),
        pytest.param({"x": "\\\0"}, id="a NUL after a backslash"),
        pytest.param([1], id="an array"),
        pytest.param("typing", id="a text"),
        pytest.param(7, id="a number"),
        pytest.param({"x": 10**500}, id="a huge number"),
        pytest.param({"x": 10**2000}, id="too huge a number"),
    ],
)
async def test_a_presence_state_that_cannot_be_stored_is_refused(server: InProcessServer, state: Any) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        await announce(feed, thread.id, state)
        if state == {"x": 10**500}:
            assert await wait_for_presence(feed, state)
            return
        answer = await feed.next()
        assert (answer["type"], answer["code"], answer["threadId"]) == ("error", "invalid_input", thread.id)
        good = {"x": "\\u0000", "deep": {"er": [None, 1.5, "ü\ud83d\ude00"]}}
        await announce(feed, thread.id, good)
        assert await wait_for_presence(feed, good)


async def test_presence_needs_a_subscription(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await announce(feed, thread.id, {})
        assert (await feed.next())["code"] == "invalid_input"
        await feed.subscribe(thread)
        await feed.send({"type": "unsubscribe", "threadId": thread.id})
        await announce(feed, thread.id, {})
        assert (await feed.next())["code"] == "invalid_input"


async def test_a_second_subscribe_keeps_the_presence(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed, socket(server) as witness:
        await feed.subscribe(thread)
        await witness.subscribe(thread)
        await announce(feed, thread.id, {"a": 1})
        (mine,) = await wait_for_presence(witness, {"a": 1})
        await wait_for_presence(feed, {"a": 1})
        assert (await feed.subscribe(thread))["type"] == "snapshot"
        assert await wait_for_presence(feed, {"a": 1}) == [mine]
        await announce(feed, thread.id, {"a": 2})
        assert (await wait_for_presence(witness, {"a": 2}))[0]["id"] == mine["id"]


async def test_a_lost_socket_is_not_present_any_more_at_once(pair: tuple[InProcessServer, InProcessServer]) -> None:
    one, other = pair
    thread = await one.thread()
    async with socket(one) as lost, socket(other) as witness:
        await lost.subscribe(thread)
        await witness.subscribe(thread)
        await announce(lost, thread.id, {})
        await wait_for_presence(witness, {})
        began = time.monotonic()
        lost.connection.transport.abort()
        assert await wait_for_presence(witness) == []
        assert time.monotonic() - began < 3


async def test_a_half_open_socket_is_absent_within_ten_seconds_and_present_when_it_responds_again(
    pair: tuple[InProcessServer, InProcessServer],
) -> None:
    one, other = pair
    thread = await one.thread()
    async with socket(one) as quiet, socket(one) as lively, socket(other) as witness:
        for feed in (quiet, lively, witness):
            await feed.subscribe(thread)
        await announce(quiet, thread.id, {"quiet": True})
        await announce(lively, thread.id, {"quiet": False})
        await wait_for_presence(witness, {"quiet": True}, {"quiet": False})
        began = time.monotonic()
        transport: Any = quiet.connection.transport
        transport.pause_reading()
        await wait_for_presence(witness, {"quiet": False})
        assert 5 < time.monotonic() - began < 10
        transport.resume_reading()
        await wait_for_presence(witness, {"quiet": True}, {"quiet": False})
        await quiet.send({"type": "ping"})
        await quiet.until("pong")


async def test_the_participants_of_a_process_without_heartbeats_are_removed(
    server: InProcessServer, db: Database
) -> None:
    thread = await server.thread()
    dead, silent = uuid4(), uuid4()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        async with db.driver() as driver:
            for process_id, state in ((dead, '{"dead": true}'), (silent, '{"silent": true}')):
                row = stored.PresenceRow(
                    thread_id=UUID(thread.id), participant_id=ids.new(), user_id=None, name=None, state=state
                )
                await stored.write(driver, process_id, [row], [])
        await wait_for_presence(feed, {"dead": True}, {"silent": True})
        async with db.driver() as driver:
            await driver.execute("UPDATE processes SET beat_at = now() - interval '9 s' WHERE id = $1", dead)
        began = time.monotonic()
        await wait_for_presence(feed, {"silent": True})
        assert time.monotonic() - began < 3
        assert await wait_for_presence(feed) == []
        assert 4 < time.monotonic() - began < 11
        async with db.driver() as driver:
            assert await driver.fetchval("SELECT count(*) FROM presences") == 0
            assert not await driver.fetchval("SELECT count(*) FROM processes WHERE id IN ($1, $2)", dead, silent)


async def test_after_a_crash_of_the_database_all_presence_is_written_again(
    server: InProcessServer, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT_INTERVAL_SECONDS", 0.2)
    thread = await server.thread()
    async with socket(server) as feed, socket(server) as witness:
        await feed.subscribe(thread)
        await witness.subscribe(thread)
        await announce(feed, thread.id, {"here": "still"})
        (before,) = await wait_for_presence(witness, {"here": "still"})
        async with db.driver() as driver:
            await driver.execute("TRUNCATE processes, presences")  # as after a crash: the tables are unlogged
            await driver.execute("SELECT pg_notify($1, '*')", PRESENCE_CHANNEL)
        while (frame := await witness.next())["participants"] != [before]:
            assert frame["participants"] == []


async def test_a_server_that_stops_removes_its_participants(database_url: str, db: Database) -> None:
    async with khala(database_url, with_executor=False) as staying:
        thread = await staying.thread()
        async with socket(staying) as witness:
            await witness.subscribe(thread)
            async with contextlib.AsyncExitStack() as stack:
                leaving = await stack.enter_async_context(khala(database_url, with_executor=False))
                feed = await stack.enter_async_context(socket(leaving))
                await feed.subscribe(thread)
                await announce(feed, thread.id, {})
                await wait_for_presence(witness, {})
            assert await wait_for_presence(witness) == []
            async with db.driver() as driver:
                assert await driver.fetchval("SELECT count(*) FROM processes") <= 1


async def test_presence_over_the_rate_limit_is_refused_and_the_socket_stays_open(server: InProcessServer) -> None:
    thread = await server.thread()
    async with socket(server) as feed:
        await feed.subscribe(thread)
        for number in range(40):
            await announce(feed, thread.id, {"n": number})
        await feed.send({"type": "ping"})
        answers = []
        while (frame := await feed.next())["type"] != "pong":
            answers.append(frame)
        refused = [frame for frame in answers if frame["type"] == "error"]
        assert 15 <= len(refused) <= 20
        assert {(frame["code"], frame["threadId"]) for frame in refused} == {("rate_limited", thread.id)}
        assert len(answers) - len(refused) <= 3
        async with asyncio.timeout(10):
            while True:
                await announce(feed, thread.id, {"n": "last"})
                frame = await feed.next()
                if frame["type"] == "presence" and frame["participants"][0]["state"] == {"n": "last"}:
                    break
                await asyncio.sleep(0.2)  # refills the rate limit by one


# The tests below run without a server.


def set_state(live: LiveService, subscription: Subscription, state: Any) -> None:
    live.presence.update(subscription, json.dumps(state))


async def join(
    live: LiveService, db: Database, recorder: FrameRecorder, thread_id: UUID, caller: Any = CALLER
) -> Subscription:
    subscription = await follow(live.threads, db, recorder.client, thread_id, caller)
    live.presence.add_watcher(subscription)
    return subscription


def has_states(*states: Any) -> Any:
    wanted = sorted(map(canonical, states))

    def found(frame: dict[str, Any]) -> bool:
        participants = frame.get("participants", [None])
        return (
            None not in participants
            and sorted(canonical(participant["state"]) for participant in participants) == wanted
        )

    return found


async def test_an_unchanged_state_is_not_sent(db: Database) -> None:
    thread_id = await new_thread(db)
    async with process(db, 2) as (live, (recorder, other)):
        mine, theirs = await join(live, db, recorder, thread_id), await join(live, db, other, thread_id)
        set_state(live, mine, {"a": 1})
        await other.wait_for(has_states({"a": 1}))
        for _ in range(10):
            set_state(live, mine, {"a": 1})
        assert not live.presence._unwritten
        set_state(live, theirs, {"b": 1})
        await other.wait_for(has_states({"a": 1}, {"b": 1}))
    assert len([frame for frame in other.frames if frame["type"] == "presence"]) == 2


async def test_quick_changes_are_sent_together_and_the_last_one_is_never_lost(db: Database) -> None:
    thread_id = await new_thread(db)
    async with process(db, 2) as (live, (recorder, other)):
        mine, _ = await join(live, db, recorder, thread_id), await join(live, db, other, thread_id)
        began = time.monotonic()
        for number in range(100):
            set_state(live, mine, {"n": number})
            await asyncio.sleep(0.005)
        await other.wait_for(has_states({"n": 99}))
        rounds = (time.monotonic() - began) / presence.UPDATE_INTERVAL_SECONDS
    assert len([frame for frame in other.frames if frame["type"] == "presence"]) <= rounds + 2


async def test_only_the_newest_fifty_participants_are_listed_with_the_number_of_others(db: Database) -> None:
    thread_id = await new_thread(db)
    async with process(db, 54) as (live, recorders):
        for number, recorder in enumerate(recorders[:53]):
            set_state(live, await join(live, db, recorder, thread_id), {"n": number})
        await join(live, db, recorders[53], thread_id)
        async with asyncio.timeout(10):
            while live.presence._unwritten or live.presence._unread:
                await asyncio.sleep(0.01)
        frame = await recorders[53].wait_for(lambda frame: frame.get("more") == 3)
    assert len(frame["participants"]) == 50
    assert len({participant["id"] for participant in frame["participants"]}) == 50


async def test_a_thread_without_changes_costs_no_query(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "HEARTBEAT_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(fallback_poll, "POLL_INTERVAL_SECONDS", 60)
    thread_id = await new_thread(db)
    reads: list[Any] = []
    company_of, beat = stored.read_lists, stored.record_heartbeat

    async def counted(driver: Any, thread_ids: Any) -> Any:
        reads.append(thread_ids)
        return await company_of(driver, thread_ids)

    async def counted_beat(driver: Any, process_id: Any) -> Any:
        reads.append(process_id)
        return await beat(driver, process_id)

    monkeypatch.setattr(stored, "read_lists", counted)
    monkeypatch.setattr(stored, "record_heartbeat", counted_beat)
    async with process(db, 30) as (live, recorders):
        for recorder in recorders[:29]:
            await join(live, db, recorder, thread_id)
        async with asyncio.timeout(5):
            while thread_id not in live.presence._lists or live.presence._unread:
                await asyncio.sleep(0.01)
        await asyncio.sleep(2 * presence.UPDATE_INTERVAL_SECONDS)  # lets a read that has begun end
        known = len(reads)
        await join(live, db, recorders[29], thread_id)
        await asyncio.sleep(0.5)  # twenty heartbeats
        assert len(reads) == known
    assert known <= 3


async def test_a_slow_observer_gets_only_the_newest_presence(db: Database) -> None:
    thread_id = await new_thread(db)
    async with process(db, 3) as (live, (recorder, quick, stuck)):
        mine = await join(live, db, recorder, thread_id)
        for other in (quick, stuck):
            await join(live, db, other, thread_id)
        await asyncio.gather(*(each_ear.until(1) for each_ear in (recorder, quick, stuck)))
        stuck.open.clear()
        for number in range(5):
            set_state(live, mine, {"n": number, "x": "x" * 900})
            await quick.wait_for(has_states({"n": number, "x": "x" * 900}))
        assert stuck.client._bytes < MAX_OUTBOX_BYTES / 2
        stuck.open.set()
        await stuck.wait_for(has_states({"n": 4, "x": "x" * 900}))
    assert len([frame for frame in stuck.frames if frame["type"] == "presence"]) <= 2


async def test_a_participant_who_loses_access_is_removed_and_gets_no_more_presence(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    guest = await add_link(db, thread_id)
    async with process(db, 2) as (live, (owner, stranger)):
        host = await join(live, db, owner, thread_id)
        visitor = await join(live, db, stranger, thread_id, guest)
        set_state(live, host, {"who": "host"})
        set_state(live, visitor, {"who": "guest"})
        await stranger.wait_for(has_states({"who": "host"}, {"who": "guest"}))
        await change_access(db, thread_id, REMOVE_LINKS, notified=False)
        set_state(live, host, {"who": "host", "typing": True})
        await stranger.wait_gone()
        await owner.wait_for(has_states({"who": "host", "typing": True}))
        await write(db, batch(lease, 0, "x"))
    texts = [json.dumps(frame) for frame in stranger.frames]
    assert not any("typing" in result for result in texts), "no state that was sent after the revocation"


async def test_a_participant_who_signs_out_stays_present_without_the_name(db: Database) -> None:
    thread_id = await new_thread(db)
    user_id = await new_user(db)
    await add_member(db, thread_id, user_id)
    user = await signed_in(db, user_id, name="Raynor")
    both = type(user)(user_id=user_id, name="Raynor", credential=user.credential, anon_key_hash=CALLER.anon_key_hash)
    async with process(db, 2) as (live, (recorder, other)):
        await join(live, db, other, thread_id)
        set_state(live, await join(live, db, recorder, thread_id, both), {})
        named = await other.wait_for(has_states({}))
        assert named["participants"][0]["name"] == "Raynor"
        await sign_out(db, user)
        anonymous = await other.wait_for(lambda frame: frame.get("participants", [{"name": 1}])[0].get("name") is None)
    assert anonymous["participants"][0]["anonymous"] is True


async def test_pings_are_not_sent_more_often_than_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pings: list[float] = []
    heartbeat = Heartbeat(lambda: pings.append(now))
    for _ in range(40):
        now += 0.5
        heartbeat.ping_if_silent(3.0)
        if now == 110.0:
            heartbeat.record()
    assert pings == [103.0, 106.0, 109.0, 113.0, 116.0, 119.0]
