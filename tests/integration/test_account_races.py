"""Concurrent changes to accounts: no row is left over, and no transaction waits for ever."""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import httpx
import pytest

from khala.domain import ids
from khala.domain.access import Caller
from khala.store.accounts import accounts, sessions
from khala.store.operations import retention
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.threads import threads
from tests.support.callers import owned_thread, person
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.people import make_member
from tests.support.quick_hashes import full_hashes
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD = "en taro adun"

server = server_fixture(with_executor=False)


async def _deadlocks(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


async def test_a_login_with_a_password_that_is_changed_meanwhile_makes_no_session(store: Database) -> None:
    user_id = await accounts.register(store, f"{ids.new()}@example.com", "before", None, Caller())
    await accounts.set_password(store, Caller(user_id=user_id), "after", email=None)
    with pytest.raises(Exception, match="changed just now"):
        await sessions.begin(store, user_id, Caller(), user_agent=None, proof="before")
    assert await sessions.begin(store, user_id, Caller(), user_agent=None, proof="after")


async def test_logins_in_flight_while_the_password_changes_leave_no_session(server: InProcessServer) -> None:
    account = {"email": f"{uuid.uuid4().hex}@example.com", "password": PASSWORD}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as own:
        (await own.post("/api/auth/register", json=account)).raise_for_status()
        clients = [httpx.AsyncClient(base_url=server.url, timeout=60) for _ in range(5)]
        logins = [session.post("/api/auth/login", json=account) for session in clients]
        change = own.post("/api/auth/password", json={"current": PASSWORD, "new": "en taro tassadar"})
        # The password changes while the logins are being hashed.
        with full_hashes():
            answers = await asyncio.gather(*logins, change)
        assert {answer.status_code for answer in answers} <= {200, 204, 401}
        for client in clients:
            assert (await client.get("/api/me")).status_code == 401
            await client.aclose()
        assert (await own.get("/api/me")).status_code == 200


async def test_an_account_deleted_while_it_creates_threads_leaves_no_thread_without_an_owner(store: Database) -> None:
    for _ in range(4):
        owner, other = await person(store), await person(store)
        shared_id, invited_id = [await owned_thread(store, other) for _ in range(2)]
        await sharing.set_role(store, invited_id, owner.id, "editor", other.caller)

        async def make(who: Any = owner) -> None:
            await threads.create(store, ids.new(), who.caller, title=None, welcome="")

        work: list[Any] = [make() for _ in range(6)]
        work.append(sharing.set_role(store, shared_id, owner.id, "editor", other.caller))
        accept = sharing.join(store, invited_id, owner.id, owner.caller)
        accepted, *done = await asyncio.gather(
            accept, *work, accounts.remove(store, owner.caller), return_exceptions=True
        )
        assert done[-1] is None
        assert getattr(accepted, "code", "joined") in ("joined", "unauthorized", "forbidden")
        assert {getattr(error, "code", error) for error in done[:-1] if isinstance(error, BaseException)} <= {
            "unauthorized",
            "not_found",
        }
    async with store.driver() as driver:
        orphans = "SELECT count(*) FROM threads WHERE owner_id IS NOT NULL AND owner_id NOT IN (SELECT id FROM users)"
        assert await driver.fetchval(orphans) == 0
    assert await _deadlocks(store) == 0


async def test_role_changes_and_read_marks_of_one_user_never_deadlock(server: InProcessServer, store: Database) -> None:
    owner, other = await person(store), await person(store)
    thread_id = await owned_thread(store, owner)
    members = f"/api/threads/{thread_id}/members/{other.id}"

    async def give() -> set[int]:
        roles = ("viewer", "editor")
        return {
            (await server.http.put(members, json={"role": roles[n % 2]}, headers=owner.headers)).status_code
            for n in range(30)
        }

    async def read() -> set[int]:
        path = f"/api/threads/{thread_id}/read"
        return {
            (await server.http.put(path, json={"revision": n}, headers=other.headers)).status_code for n in range(40)
        }

    await make_member(store, thread_id, other.id, "viewer", owner.caller)
    answers = await asyncio.gather(give(), read(), give(), read())
    assert list(answers) == [{200}, {204}, {200}, {204}]
    assert await _deadlocks(store) == 0


async def test_a_reset_updates_the_list_so_that_no_answer_seems_to_be_written(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    thread_id = await owned_thread(store, owner)
    async with socket(server, additional_headers=owner.headers) as feed:
        await feed.send({"type": "watch"})
        await feed.until("account")
        await server.http.post(f"/api/threads/{thread_id}/send", json={"text": "?"}, headers=owner.headers)
        assert (await feed.until("account"))["threads"][0]["running"]
        await server.http.post(f"/api/threads/{thread_id}/reset", headers=owner.headers)
        assert not (await feed.until("account"))["threads"][0]["running"]


async def test_an_account_with_very_many_threads_can_be_deleted(store: Database) -> None:
    owner = await person(store)
    async with store.driver() as driver:
        many = "INSERT INTO threads (id, owner_id) SELECT gen_random_uuid(), $1 FROM generate_series(1, 33000)"
        await driver.execute(many, owner.id)
    await accounts.remove(store, owner.caller)
    done = await retention.purge(store, retention.RetentionPolicy(idle=timedelta(0)))
    assert done["accounts"] == 1
    async with store.driver() as driver:
        left = "SELECT count(*) FROM threads WHERE owner_id = $1 AND deleted_at IS NULL"
        assert await driver.fetchval(left, owner.id) == 0


async def test_purging_removed_list_entries_raises_the_floor_of_each_user(store: Database) -> None:
    owner = await person(store)
    thread_id = await owned_thread(store, owner)
    await threads.remove(store, thread_id, owner.caller)
    async with store.driver() as driver:
        await driver.execute("UPDATE listings SET changed_at = now() - interval '8 days' WHERE user_id = $1", owner.id)
        await retention.purge(store, retention.RetentionPolicy(idle=timedelta(0)))
        left = await driver.fetchval("SELECT count(*) FROM listings WHERE user_id = $1", owner.id)
        row = await driver.fetchrow("SELECT revision, floor_revision FROM users WHERE id = $1", owner.id)
    assert left == 0, "purged here, or by the server's own job"
    assert row["floor_revision"] == row["revision"] == 2
