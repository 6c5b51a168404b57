"""Access decisions of the store for callers whose session, token or link has ended."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.access import SCOPES, Authorization, Caller, key_hash
from khala.domain.errors import Conflict, Forbidden, NotFound
from khala.store.accounts import account_feed, api_tokens, sessions
from khala.store.postgres.database import Database
from khala.store.runs import detail_tokens
from khala.store.sharing import access
from khala.store.threads import thread_pages, threads
from tests.integration.test_leases import CALL, request_approval
from tests.support.callers import person
from tests.support.in_process import khala
from tests.support.people import add_link, add_member, new_user, signed_in
from tests.support.store import CALLER, lease_of, new_thread


async def role_of(db: Database, thread_id: UUID, caller: Caller) -> str | None:
    """The caller's role in the thread; None if there is none."""
    async with db.driver() as driver:
        (found,) = await access.authorizations(driver, [(thread_id, caller)])
    assert isinstance(found, Authorization)
    return found.role


async def is_valid(db: Database, caller: Caller) -> bool:
    async with db.driver() as driver:
        (stands,) = await account_feed.valid_credentials(driver, [caller])
    return stands


async def caller_with_token(db: Database, user_id: UUID, *, lasts: float) -> Caller:
    """A caller for this user with a new token."""
    token, secret = await api_tokens.create(db, Caller(user_id=user_id), "test", SCOPES, None)
    async with db.driver() as driver:
        found = await api_tokens.find(driver, secret)
        assert found is not None
        assert found.credential == token.id
        ends = datetime.now(UTC) + timedelta(seconds=lasts)
        await driver.execute("UPDATE api_tokens SET expires_at = $2 WHERE id = $1", token.id, ends)
        assert (await api_tokens.find(driver, secret) is not None) == (lasts > 0)
    return found


@pytest.mark.parametrize("kind", ["session", "token"])
async def test_an_account_has_access_for_as_long_as_its_credential_is_valid(db: Database, kind: str) -> None:
    thread_id, user_id = await new_thread(db), await new_user(db)
    await add_member(db, thread_id, user_id, "editor")
    show = signed_in if kind == "session" else caller_with_token
    good, ended = await show(db, user_id, lasts=60), await show(db, user_id, lasts=-1)
    assert [await role_of(db, thread_id, caller) for caller in (good, ended)] == ["editor", None]
    assert [await is_valid(db, caller) for caller in (good, ended)] == [True, False]


async def test_a_signed_token_of_a_deleted_account_grants_no_access(db: Database) -> None:
    thread_id, user_id = await new_thread(db), await new_user(db)
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET owner_id = $2 WHERE id = $1", thread_id, user_id)
    signed = Caller(user_id=user_id)
    stranger = Caller(user_id=ids.new())
    assert [await role_of(db, thread_id, caller) for caller in (signed, stranger)] == ["owner", None]
    async with db.driver() as driver:  # as for a moment while another process deletes the account
        await driver.execute("ALTER TABLE threads DROP CONSTRAINT IF EXISTS threads_owner_id_fkey")
        await driver.execute("DELETE FROM users WHERE id = $1", user_id)
        await driver.execute("UPDATE threads SET owner_id = $2 WHERE id = $1", thread_id, user_id)
    assert await role_of(db, thread_id, signed) is None
    assert not await is_valid(db, signed)


async def test_a_link_grants_access_to_its_own_thread_until_it_expires(db: Database) -> None:
    thread_id, other_id = await new_thread(db), await new_thread(db)
    good, ended = await add_link(db, thread_id, lasts=60), await add_link(db, thread_id, lasts=-1)
    assert [await role_of(db, thread_id, caller) for caller in (good, ended)] == ["viewer", None]
    assert [await role_of(db, other_id, caller) for caller in (good, ended)] == [None, None]


async def test_a_link_lists_its_thread_until_it_expires(db: Database) -> None:
    thread_id = await new_thread(db)
    callers = [
        await add_link(db, thread_id),
        await add_link(db, thread_id, lasts=60),
        await add_link(db, thread_id, lasts=-1),
    ]
    found = [await thread_pages.list_page(db, caller, before=None, limit=10) for caller in callers]
    assert [[thread.id for thread in page] for page in found] == [[thread_id], [thread_id], []]


async def test_a_detail_token_works_until_it_expires_for_readers_of_the_thread(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    place: dict[str, Any] = {"thread_id": lease.thread_id, "run_id": lease.run_id, "calls": [CALL]}
    async with db.driver() as driver:
        good, ended = [
            (await detail_tokens.create(driver, **place, lifetime=timedelta(seconds=lasts)))[CALL] for lasts in (60, -1)
        ]
        assert (await detail_tokens.find(driver, good, CALLER)).tool_call_id == CALL
        with pytest.raises(NotFound):
            await detail_tokens.find(driver, ended, CALLER)
        with pytest.raises(Forbidden):
            await detail_tokens.find(driver, good, Caller())


async def test_a_deleted_thread_is_not_found(db: Database) -> None:
    thread_id = await new_thread(db)
    assert await role_of(db, thread_id, CALLER) == "owner"
    await threads.remove(db, thread_id, CALLER)
    async with db.driver() as driver:
        assert await access.authorizations(driver, [(thread_id, CALLER)]) == [None]


@pytest.mark.parametrize("lasts", [60, -1])
async def test_a_cookie_signs_in_for_as_long_as_its_session_lasts(db: Database, lasts: float) -> None:
    user_id = await new_user(db)
    secret = await sessions.begin(db, user_id, Caller(), user_agent=None)
    async with db.driver() as driver:
        ends = datetime.now(UTC) + timedelta(seconds=lasts)
        await driver.execute("UPDATE sessions SET expires_at = $2 WHERE secret_hash = $1", key_hash(secret), ends)
        found = await sessions.find(driver, secret)
    assert (found is not None) == (lasts > 0)


async def test_with_more_than_fifty_sessions_the_oldest_ends(db: Database) -> None:
    user_id = await new_user(db)
    secrets = [await sessions.begin(db, user_id, Caller(), user_agent=None) for _ in range(sessions.MAX_SESSIONS + 2)]
    async with db.driver() as driver:
        found = [await sessions.find(driver, secret) for secret in secrets]
    assert [result is not None for result in found] == [False] * 2 + [True] * sessions.MAX_SESSIONS


async def test_an_account_has_a_hundred_tokens_and_not_one_more(db: Database) -> None:
    caller = Caller(user_id=await new_user(db))
    for _ in range(api_tokens.MAX_TOKENS):
        await api_tokens.create(db, caller, "test", ["read"], None)
    with pytest.raises(Conflict):
        await api_tokens.create(db, caller, "test", ["read"], None)


async def test_a_token_without_all_scopes_cannot_set_a_password(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server:
        for scopes, status in ((("account",), 403), (("write", "account"), 403), (SCOPES, 204)):
            somebody = await person(db, scopes=scopes)
            body = {"new": "en taro adun", "email": f"{ids.new()}@example.com"}
            answer = await server.http.post("/api/auth/password", json=body, headers=somebody.headers)
            assert answer.status_code == status
    await db.close()


async def test_an_invalid_token_is_refused_also_where_no_credential_is_needed(database_url: str) -> None:
    async with khala(database_url, with_executor=False) as server:
        assert (await server.http.get("/api/tools")).status_code == 200
        for token in ("khala_" + "x" * 43, "x" * 43):
            answer = await server.http.get("/api/tools", headers={"Authorization": f"Bearer {token}"})
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
