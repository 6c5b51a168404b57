"""Rules for tool calls, set by users for themselves and by owners for threads."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Action, Caller
from khala.domain.errors import Conflict, Unauthorized
from khala.domain.tools import MAX_RULES, ToolRule
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.schema.tables import threads as threads_table
from khala.store.schema.tables import users
from khala.store.sharing import access
from khala.store.threads import threads

RULES = """
    SELECT (SELECT tool_rules FROM users WHERE id = $1) AS of_user, threads.tool_rules AS of_thread,
           ($1::uuid IS NOT NULL AND (threads.owner_id IS DISTINCT FROM $1
                OR (threads.tool_rules IS NOT NULL AND coalesce(threads.tool_rules_by, CASE WHEN NOT EXISTS (
                    SELECT FROM memberships WHERE memberships.thread_id = threads.id AND memberships.role = 'owner'
                ) THEN threads.owner_id END) IS DISTINCT FROM $1))) AS foreign_thread,
           threads.plans_revision IS NOT NULL AS has_plans
    FROM (SELECT $2::uuid AS id) AS asked
    LEFT JOIN threads ON threads.id = asked.id AND threads.deleted_at IS NULL
"""
"""Rules without a recorded author count as the owner's, unless the thread has other owners."""

RULES_OF_THREAD = """
    SELECT NULL::jsonb AS of_user, threads.tool_rules AS of_thread, false AS foreign_thread,
           threads.plans_revision IS NOT NULL AS has_plans
    FROM (SELECT $1::uuid AS id) AS asked
    LEFT JOIN threads ON threads.id = asked.id AND threads.deleted_at IS NULL
"""
"""`RULES` without a user. With NULL for the user, a plan for the given arguments would be so much cheaper than one for
all arguments that Postgres would plan the statement each time, which takes ten times as long as its execution."""


class StoredToolRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for a user in a thread.

    With `foreign`, the thread or its rules belong to another user, so they can't allow calls that the user's own rules
    don't allow. `has_plans`: the thread has a plan, or had one.
    """

    user: tuple[ToolRule, ...] = ()
    thread: tuple[ToolRule, ...] = ()
    foreign: bool = False
    has_plans: bool = False


async def read(driver: Driver, *, thread_id: UUID | None, user_id: UUID | None) -> StoredToolRules:
    """The rules of this user and of this thread."""
    if thread_id is None and user_id is None:
        return StoredToolRules()
    row = await driver.fetchrow(*((RULES_OF_THREAD, thread_id) if user_id is None else (RULES, user_id, thread_id)))
    assert row is not None
    foreign = thread_id is not None and row["foreign_thread"]
    return StoredToolRules(
        user=_rules(row["of_user"]), thread=_rules(row["of_thread"]), foreign=foreign, has_plans=row["has_plans"]
    )


async def of(
    driver: Driver, *, thread_id: UUID | None, user_id: UUID | None
) -> tuple[tuple[ToolRule, ...], tuple[ToolRule, ...]]:
    """The user's rules and the thread's."""
    found = await read(driver, thread_id=thread_id, user_id=user_id)
    return found.user, found.thread


async def of_thread(driver: Driver, thread_id: UUID, caller: Caller) -> tuple[ToolRule, ...]:
    """The thread's rules. Raises `Forbidden` unless the caller may read it."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    return (await read(driver, thread_id=thread_id, user_id=None)).thread


@retried
async def set_user(db: Database, user_id: UUID, rules: Sequence[ToolRule]) -> None:
    """Replace the user's rules."""
    async with db.transaction() as connection:
        command = update(users).where(users.c.id == user_id).values(tool_rules=_stored(rules))
        if (await connection.execute(command.returning(users.c.id))).first() is None:
            raise Unauthorized("This account was deleted.")


@retried
async def set_thread(db: Database, thread_id: UUID, rules: Sequence[ToolRule], caller: Caller) -> None:
    """Replace the thread's rules. Raises `Forbidden` unless the caller owns it."""
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.SET_TOOL_RULES)
        mine = threads_table.c.id == thread_id
        values = {"tool_rules": _stored(rules), "tool_rules_by": caller.author_id}
        await connection.execute(update(threads_table).where(mine).values(**values))


async def allow_in_thread(connection: AsyncConnection, thread_id: UUID, tool: str, caller: Caller) -> None:
    """Allow all calls of this tool in the thread, which the caller has locked, by a further rule.

    Raises `Forbidden` unless the caller owns the thread, and `Conflict` if there are too many rules, or another owner
    has set them: the caller would take over what those allow.
    """
    driver = await driver_of(connection)
    await access.authorize(driver, thread_id, caller, Action.SET_TOOL_RULES)
    row = await driver.fetchrow("SELECT tool_rules, tool_rules_by FROM threads WHERE id = $1", thread_id)
    rules = () if row is None else _rules(row["tool_rules"])
    if rules and row is not None and row["tool_rules_by"] != caller.author_id:
        raise Conflict("Another owner has set the rules of this thread. Set all rules to change them.")
    allowed = ToolRule(pattern=tool, action="allow")
    rules = (*(rule for rule in rules if rule != allowed), allowed)
    if len(rules) > MAX_RULES:
        raise Conflict(f"A thread has at most {MAX_RULES} rules. Remove one first.")
    values = {"tool_rules": _stored(rules), "tool_rules_by": caller.author_id}
    await connection.execute(update(threads_table).where(threads_table.c.id == thread_id).values(**values))


def _stored(rules: Sequence[ToolRule]) -> list[Any]:
    return [msgspec.to_builtins(rule) for rule in rules]


def _rules(stored: str | None) -> tuple[ToolRule, ...]:
    return rows.decoded(stored, tuple[ToolRule, ...]) or ()
