"""Limits of what an account may have, with many requests at once in two processes: none is exceeded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from khala.domain import ids
from khala.domain.access import Action
from khala.domain.chat import RunOptions
from khala.domain.errors import Conflict, KhalaError, PayloadTooLarge, RateLimited, Unauthorized
from khala.domain.memories import MemorySpace, NewMemory
from khala.store.accounts import api_tokens, sessions
from khala.store.memories import memories
from khala.store.postgres.database import Database
from khala.store.sharing import invitations, sharing, thread_tokens
from khala.store.threads import sends
from khala.store.threads.sends import SendLimits, SendRequest
from khala.store.tools import user_tools
from khala.store.tools.user_tools import UserToolDefinition
from khala.store.webhooks import endpoints
from khala.store.webhooks.endpoints import EndpointConfig
from tests.support.callers import Person, owned_thread, person

AT_ONCE = 50
MOST = 5
"""The limit in these tests."""
POOL_SIZE = 16
"""Connections of each of the two processes."""
HOUR = timedelta(hours=1)

Create: TypeAlias = Callable[[Database, Person, UUID, int], Awaitable[Any]]
"""Creates something for a person, or in their thread; the number tells it from the others."""

KINDS: dict[str, tuple[Create, Any, str, type[KhalaError], str]] = {
    "webhooks": (
        lambda db, who, _, number: endpoints.create(
            db, who.id, EndpointConfig(url=f"https://example.org/{number}"), caller=who.caller, limit=MOST
        ),
        None,
        "",
        Conflict,
        "SELECT count(*) FROM webhook_endpoints WHERE scope_id = $1",
    ),
    "API tokens": (
        lambda db, who, _, number: api_tokens.create(db, who.caller, f"{number}", ["read"], None),
        api_tokens,
        "MAX_TOKENS",
        Conflict,
        "SELECT count(*) FROM api_tokens WHERE user_id = $1",
    ),
    "tools": (
        lambda db, who, _, number: user_tools.add(
            db, who.id, UserToolDefinition(name=f"t{number}", description="", parameters={}, language="python"), ""
        ),
        user_tools,
        "MAX_USER_TOOLS",
        Conflict,
        "SELECT count(*) FROM user_tools WHERE user_id = $1",
    ),
    "memories": (
        lambda db, who, _, number: memories.add(
            db, MemorySpace(scope="user", owner_id=who.id), NewMemory(text=f"Fact {number}")
        ),
        memories,
        "MAX_MEMORIES",
        PayloadTooLarge,
        "SELECT count(*) FROM memories WHERE owner_id = $1",
    ),
    "links": (
        lambda db, who, thread_id, _: sharing.create_link(db, thread_id, "viewer", None, who.caller),
        sharing,
        "MAX_LINKS",
        Conflict,
        "SELECT count(*) FROM share_links WHERE thread_id = (SELECT id FROM threads WHERE owner_id = $1)",
    ),
    "thread tokens": (
        lambda db, who, thread_id, _: thread_tokens.create(db, thread_id, "viewer", HOUR, who.caller),
        thread_tokens,
        "MAX_TOKENS",
        Conflict,
        "SELECT count(*) FROM share_links WHERE thread_id = (SELECT id FROM threads WHERE owner_id = $1)",
    ),
}
"""How each kind is created, where its limit is, the error at the limit, and how many a person has."""


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[Database]]:
    opened = [Database(database_url, pool_size=POOL_SIZE) for _ in range(2)]
    yield opened
    for one in opened:
        await one.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_of_many_created_at_once_exactly_the_allowed_number_exists(
    processes: list[Database], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, module, name, error, count = KINDS[kind]
    db = processes[0]
    who = await person(db)
    thread_id = await owned_thread(db, who)
    if module is not None:
        monkeypatch.setattr(module, name, MOST)
    creating = [create(processes[number % 2], who, thread_id, number) for number in range(AT_ONCE)]
    outcomes = await asyncio.gather(*creating, return_exceptions=True)
    async with db.driver() as driver:
        assert await driver.fetchval(count, who.id) == MOST
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    had = kind == "API tokens"  # The person has one already.
    assert [type(one) for one in refused] == [error] * (AT_ONCE - MOST + had)


async def test_of_many_invitations_at_once_exactly_the_allowed_number_of_a_day_is_sent(
    processes: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invitations, "MAX_SENT_PER_DAY", MOST)
    db = processes[0]
    sender = await person(db)
    thread_ids = [await owned_thread(db, sender) for _ in range(10)]
    guests = [await person(db) for _ in range(AT_ONCE)]
    inviting = [
        sharing.set_role(processes[number % 2], thread_ids[number % 10], guest.id, "viewer", sender.caller)
        for number, guest in enumerate(guests)
    ]
    outcomes = await asyncio.gather(*inviting, return_exceptions=True)
    refused = [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    assert refused == [RateLimited] * (AT_ONCE - MOST)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM invitations") == MOST


@pytest.mark.parametrize("kind", ["token", "session"])
async def test_a_credential_that_was_revoked_after_its_request_was_authenticated_makes_no_token(
    processes: list[Database], kind: str
) -> None:
    db = processes[0]
    who = await person(db)
    async with db.driver() as driver:
        if kind == "session":
            by = await sessions.find(driver, await sessions.begin(db, who.id, who.caller, user_agent=None))
        else:
            by = await api_tokens.find(driver, who.token)
    assert by is not None
    assert by.credential is not None
    await api_tokens.create(db, by, "before", ["read"], None)
    if kind == "session":
        await sessions.end(db, by.credential, by)
    else:
        await api_tokens.revoke(db, by.credential, by)
    making = [api_tokens.create(processes[number % 2], by, "after", ["read"], None) for number in range(AT_ONCE)]
    outcomes = await asyncio.gather(*making, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unauthorized}


async def test_of_many_sign_ins_at_once_the_allowed_sessions_stay_and_a_revocation_ends_all_before_it(
    processes: list[Database],
) -> None:
    db = processes[0]
    who = await person(db)
    before = [await sessions.begin(db, who.id, who.caller, user_agent=None) for _ in range(3)]

    async def revoke() -> None:
        async with db.transaction() as connection:
            await sessions.end_others(connection, who.id, None)

    async def sign_in(number: int) -> None:
        await sessions.begin(processes[number % 2], who.id, who.caller, user_agent=None)

    few = sessions.MAX_SESSIONS - len(before)
    await asyncio.gather(revoke(), *map(sign_in, range(few)))
    async with db.driver() as driver:
        assert [await sessions.find(driver, secret) for secret in before] == [None] * 3
    await asyncio.gather(*map(sign_in, range(AT_ONCE + 10)))
    async with db.driver() as driver:
        count = await driver.fetchval("SELECT count(*) FROM sessions WHERE user_id = $1", who.id)
    assert count == sessions.MAX_SESSIONS


async def test_sends_at_once_exceed_the_limit_of_the_queue_by_less_than_their_connections(
    processes: list[Database],
) -> None:
    """The bound that docs/configuration.md states: each connection may hold one send that others do not see yet."""
    db = processes[0]
    limits = SendLimits(per_owner=10_000, waiting=MOST)
    places = [(who, await owned_thread(db, who)) for who in [await person(db) for _ in range(AT_ONCE)]]

    async def send(number: int) -> None:
        who, thread_id = places[number]
        question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
        await sends.send(processes[number % 2], question, who.caller, limits)

    outcomes = await asyncio.gather(*map(send, range(AT_ONCE)), return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert {type(error) for error in refused} == {RateLimited}
    connections = sum(one.most - one.most // 2 for one in processes)
    async with db.driver() as driver:
        queued = await driver.fetchval("SELECT count(*) FROM runs WHERE status = 'queued'")
    assert MOST <= queued < MOST + connections
    assert queued == AT_ONCE - len(refused)
    who, thread_id = next(place for place, outcome in zip(places, outcomes, strict=True) if outcome is not None)
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
    with pytest.raises(RateLimited):
        await sends.send(db, question, who.caller, limits)


async def test_the_sends_between_their_checks_and_their_commits_are_all_that_exceeds_the_limit_of_the_queue(
    processes: list[Database],
) -> None:
    db, connections = processes[0], 6
    limits = SendLimits(waiting=1)
    places = [(who, await owned_thread(db, who)) for who in [await person(db) for _ in range(connections + 1)]]
    async with contextlib.AsyncExitStack() as held:
        for who, thread_id in places[:connections]:
            driver = await held.enter_async_context(db.driver())
            await held.enter_async_context(driver.transaction())
            question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
            thread = await sends.open_thread(driver, question, who.caller, Action.SEND_MESSAGE, limits)
            await sends.queue_answer(driver, thread, question, who.caller, limits)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM runs WHERE status = 'queued'") == 1 + connections - 1
    who, thread_id = places[connections]
    question = SendRequest(thread_id=thread_id, message_id=ids.new(), text="?", options=RunOptions())
    with pytest.raises(RateLimited):
        await sends.send(db, question, who.caller, limits)
