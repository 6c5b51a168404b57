"""Accounts on a WebSocket: authentication, permitted subscriptions, and their end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from websockets import InvalidStatus

from khala.api.threads import socket_session
from khala.store.accounts import api_tokens
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.threads import threads
from tests.support.callers import Person, owned_thread, person
from tests.support.client import Thread
from tests.support.frames import Socket, events, socket
from tests.support.in_process import InProcessServer, khala
from tests.support.people import make_member


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, with_executor=False) as inside:
        yield inside


@pytest.fixture
async def artanis(db: Database) -> Person:
    return await person(db, "Artanis")


async def subscribe(feed: Socket, thread_id: UUID, **more: Any) -> dict[str, Any]:
    await feed.send({"type": "subscribe", "threadId": str(thread_id), **more})
    return await feed.next()


async def authenticate(feed: Socket, who: Person) -> None:
    await feed.send({"type": "authenticate", "token": who.token})
    assert await feed.next() == {"type": "authenticated", "userId": str(who.id)}


async def assert_refused(feed: Socket, code: str) -> None:
    frame = await feed.next()
    assert (frame["type"], frame["code"]) == ("error", code), frame


async def test_an_account_authenticates_at_the_handshake_or_later(
    server: InProcessServer, db: Database, artanis: Person
) -> None:
    thread_id = await owned_thread(db, artanis)
    async with socket(server, additional_headers=artanis.headers) as feed:
        assert (await subscribe(feed, thread_id))["type"] == "snapshot"
    async with socket(server) as feed:
        assert (await subscribe(feed, thread_id))["code"] == "forbidden"
        await authenticate(feed, artanis)
        assert (await subscribe(feed, thread_id))["type"] == "snapshot"
    with pytest.raises(InvalidStatus):
        async with socket(server, additional_headers={"Authorization": "Bearer nonsense"}):
            pass


@pytest.mark.parametrize("token", ["", "nonsense", "khala_nonsense", "a.b.c", "x" * 20_000, "\0", "ü"])
async def test_an_invalid_token_is_refused_and_changes_nothing(
    server: InProcessServer, db: Database, artanis: Person, token: str
) -> None:
    thread_id = await owned_thread(db, artanis)
    async with socket(server) as feed:
        await authenticate(feed, artanis)
        await feed.send({"type": "authenticate", "token": token})
        await assert_refused(feed, "unauthorized")
        assert (await subscribe(feed, thread_id))["type"] == "snapshot"


async def test_a_share_key_grants_access_to_its_own_thread_only(
    server: InProcessServer, db: Database, artanis: Person
) -> None:
    thread_id, other_id = await owned_thread(db, artanis), await owned_thread(db, artanis)
    _, key = await sharing.create_link(db, thread_id, "viewer", None, artanis.caller)
    async with socket(server) as feed:
        assert (await subscribe(feed, thread_id, shareKey=key))["type"] == "snapshot"
        assert (await subscribe(feed, other_id, shareKey=key))["code"] == "forbidden"


async def test_a_token_without_the_read_scope_cannot_subscribe(server: InProcessServer, db: Database) -> None:
    writer = await person(db, scopes=("write",))
    thread_id = await owned_thread(db, writer)
    async with socket(server) as feed:
        await authenticate(feed, writer)
        assert (await subscribe(feed, thread_id))["code"] == "forbidden"
        await feed.send({"type": "watch"})
        await assert_refused(feed, "forbidden")


async def test_the_list_of_threads_is_followed_by_its_user_only(
    server: InProcessServer, db: Database, artanis: Person
) -> None:
    thread_id = await owned_thread(db, artanis)
    async with socket(server) as feed:
        await feed.send({"type": "watch"})
        await assert_refused(feed, "unauthorized")
        await feed.send({"type": "unwatch"})
        await feed.expect_nothing()
        await authenticate(feed, artanis)
        await feed.send({"type": "watch"})
        whole = await feed.next()
        assert set(whole) == {"type", "revision", "whole", "threads", "hasMore"}
        assert (whole["type"], whole["revision"], whole["whole"], whole["hasMore"]) == ("account", 1, True, False)
        (listed,) = whole["threads"]
        assert set(listed) == {"thread", "role", "unread", "running", "needsApproval", "changedAt"}
        assert (listed["thread"]["id"], listed["role"]) == (str(thread_id), "owner")
        other_id = await owned_thread(db, artanis)
        delta = await feed.next()
        assert set(delta) == {"type", "from", "revision", "threads", "removed"}
        assert (delta["from"], delta["revision"], delta["removed"]) == (1, 2, [])
        assert [entry["thread"]["id"] for entry in delta["threads"]] == [str(other_id)]
        await feed.send({"type": "unwatch"})
        await owned_thread(db, artanis)
        await feed.expect_nothing()
        await feed.send({"type": "watch", "after": 2})
        assert (await feed.next())["from"] == 2


async def test_another_account_watches_its_own_list(server: InProcessServer, db: Database, artanis: Person) -> None:
    raynor = await person(db, "Raynor")
    async with socket(server) as feed:
        for who in (artanis, raynor):
            await authenticate(feed, who)
            await feed.send({"type": "watch"})
            assert (await feed.next())["threads"] == []
        await owned_thread(db, artanis)
        thread_id = await owned_thread(db, raynor)
        assert [entry["thread"]["id"] for entry in (await feed.next())["threads"]] == [str(thread_id)]
        await feed.expect_nothing()


async def test_a_thread_with_the_id_of_its_user_is_not_taken_for_the_thread_list(
    server: InProcessServer, db: Database, artanis: Person
) -> None:
    await threads.create(db, artanis.id, artanis.caller, title=None, welcome="")
    async with socket(server) as feed:
        await authenticate(feed, artanis)
        await feed.send({"type": "watch"})
        assert (await feed.next())["type"] == "account"
        assert (await subscribe(feed, artanis.id))["type"] == "snapshot"
        await feed.send({"type": "unsubscribe", "threadId": str(artanis.id)})
        await owned_thread(db, artanis)
        assert (await feed.next())["type"] == "account"


async def test_a_revoked_token_ends_its_subscriptions_and_those_by_keys_on_the_same_socket_continue(
    server: InProcessServer, database_url: str, db: Database, artanis: Person
) -> None:
    thread_id = await owned_thread(db, artanis)
    keyed = await server.thread()
    mine = Thread(server.http, str(thread_id), "")
    mine.headers = artanis.headers
    gone = {"type": "gone", "threadId": str(thread_id), "code": "forbidden"}
    async with (
        khala(database_url, with_executor=False) as other,
        socket(server) as here,
        socket(other, additional_headers=artanis.headers) as there,
        events(mine) as stream,
    ):
        await authenticate(here, artanis)
        for feed in (here, there):
            assert (await subscribe(feed, thread_id))["type"] == "snapshot"
            assert (await feed.subscribe(keyed))["type"] == "snapshot"
            await feed.send({"type": "watch"})
            assert (await feed.next())["type"] == "account"
        await stream.next()
        await api_tokens.revoke(db, artanis.token_id, artanis.caller)
        for feed in (here, there):
            ends = [await feed.next(), await feed.next()]
            assert gone in ends
            assert "unauthorized" in [frame["code"] for frame in ends]
            await feed.send({"type": "watch"})
            await assert_refused(feed, "unauthorized")
        assert await stream.frame() == gone
        await stream.next()
        assert stream.ended
        await keyed.send("Still there?")
        for feed in (here, there):
            assert (await feed.until("delta"))["threadId"] == keyed.id


async def test_a_removed_member_loses_access_on_sockets_and_streams(
    server: InProcessServer, db: Database, artanis: Person
) -> None:
    thread_id, guest = await owned_thread(db, artanis), await person(db, "Kerrigan")
    await make_member(db, thread_id, guest.id, "viewer", artanis.caller)
    theirs = Thread(server.http, str(thread_id), "")
    theirs.headers = guest.headers
    async with socket(server, additional_headers=guest.headers) as feed, events(theirs) as stream:
        assert (await subscribe(feed, thread_id))["type"] == "snapshot"
        await stream.next()
        await sharing.remove_member(db, thread_id, guest.id, artanis.caller)
        gone = {"type": "gone", "threadId": str(thread_id), "code": "forbidden"}
        assert await feed.next() == gone
        assert await stream.frame() == gone
        await stream.next()
        assert stream.ended


async def test_too_many_frames_are_refused_and_close_in_the_end(
    server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_session, "FRAME_RATE", (20, 0.001))
    async with socket(server) as feed:
        for _ in range(40):
            await feed.send({"type": "ping"})
        answers = [await feed.next() for _ in range(30)]
        assert [frame["type"] for frame in answers] == ["pong"] * 20 + ["error"] * 10
        assert {frame["code"] for frame in answers[20:]} == {"rate_limited"}
        assert (await feed.closed())[0] == 1008


async def test_a_socket_below_the_frame_limit_is_served(server: InProcessServer) -> None:
    async with socket(server) as feed:
        for _ in range(300):
            await feed.send({"type": "ping"})
        async with asyncio.timeout(10):
            assert [await feed.next() for _ in range(300)] == [{"type": "pong"}] * 300
