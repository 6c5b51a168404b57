"""The console's accounts: a list with search by id and by the beginning of a name or address, and one account."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.accounts import LinkedIdentity
from khala.domain.errors import NotFound
from khala.store.accounts.account_marks import IS_PRESENT
from khala.store.console.pages import LAST_ID, MAX_EXAMINED, ConsoleStruct, Statement, as_uuid, joined
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record

AccountStateFilter: TypeAlias = Literal["blocked", "admin"]

MAX_COUNTED = 1_000
"""Rows of an account that are counted."""
COLUMNS = f"""
    users.id, users.name, users.email, users.created_at, users.blocked_at, users.admin, users.budget_plan,
    NOT {IS_PRESENT.format("users.id")} AS deleting
"""
STATES: dict[AccountStateFilter, str] = {"blocked": "blocked_at IS NOT NULL", "admin": "admin"}
BEGINS = "lower({0}) OPERATOR(pg_catalog.~>=~) {1} AND lower({0}) OPERATOR(pg_catalog.~<~) {2}"
"""SQL: whether a text begins with another one, by an index in the order of bytes. `LIKE` has special characters."""
AFTER_ALL = "\U0010ffff"
SOME = f"(SELECT count(*) FROM (SELECT FROM {{0}} = $1 LIMIT {MAX_COUNTED}) AS counted)"
COUNTS = f"""
    SELECT {SOME.format("sessions WHERE user_id")} AS sessions,
           {SOME.format("api_tokens WHERE user_id")} AS api_tokens,
           {SOME.format("threads WHERE deleted_at IS NULL AND owner_id")} AS threads,
           (SELECT count(*) FROM runs WHERE status IN ('queued', 'running', 'blocked') AND user_id = $1) AS active_runs
"""
IDENTITIES = "SELECT issuer, email FROM identities WHERE user_id = $1 ORDER BY created_at LIMIT 100"


class ConsoleAccount(ConsoleStruct, frozen=True, kw_only=True):
    """An account. `admin`: by the command; settings and claims make administrators, too."""

    id: UUID
    name: str | None
    email: str | None
    created_at: datetime
    blocked_at: datetime | None
    admin: bool
    plan: str | None
    deleting: bool


class ConsoleAccountDetails(ConsoleAccount, frozen=True, kw_only=True):
    """An account with its identities, and how much it has; numbers are at most 1,000."""

    identities: list[LinkedIdentity]
    sessions: int
    api_tokens: int
    threads: int
    active_runs: int


async def read_page(
    driver: Driver, q: str | None, state: AccountStateFilter | None, before: UUID | None, limit: int
) -> list[ConsoleAccount]:
    """Return accounts before this id, the newest first."""
    statement = Statement()
    conditions = [f"id < {statement.add(before or LAST_ID, 'uuid')}"]
    if state is not None:
        conditions.append(STATES[state])
    # Found before they are sorted: the planner must not look for them in the order of all accounts.
    source = f"(SELECT * FROM users WHERE {_matches(statement, q)} OFFSET 0) AS users" if q else "users"
    query = f"""
        SELECT {COLUMNS} FROM (
            SELECT * FROM {source} WHERE {joined(conditions)} ORDER BY id DESC LIMIT {statement.add(limit, "int")}
        ) AS users ORDER BY id DESC
    """
    return [_account(row) for row in await driver.fetch(query, *statement.arguments)]


def _matches(statement: Statement, q: str) -> str:
    named = as_uuid(q)
    if named is not None:
        return f"id = {statement.add(named, 'uuid')}"
    text = q.strip().lower()
    first, last = statement.add(text, "text"), statement.add(text + AFTER_ALL, "text")

    def begins(table: str, column: str, user_id: str) -> str:
        return f"(SELECT {user_id} FROM {table} WHERE {BEGINS.format(column, first, last)} LIMIT {MAX_EXAMINED})"

    found = [begins("users", "name", "id"), begins("users", "email", "id"), begins("identities", "email", "user_id")]
    return f"id = ANY(ARRAY({' UNION '.join(found)}))"


async def read(driver: Driver, user_id: UUID) -> ConsoleAccountDetails:
    """Return the account. Raises `NotFound`."""
    row = await driver.fetchrow(f"SELECT {COLUMNS} FROM users WHERE id = $1", user_id)
    if row is None:
        raise NotFound("There is no such account.")
    counts = await driver.fetchrow(COUNTS, user_id)
    assert counts is not None
    linked: Sequence[Record] = await driver.fetch(IDENTITIES, user_id)
    identities = [LinkedIdentity(issuer=each["issuer"], email=each["email"]) for each in linked]
    return ConsoleAccountDetails(**msgspec.structs.asdict(_account(row)), identities=identities, **counts)


def _account(row: Record) -> ConsoleAccount:
    fields = {name: row[name] for name in ("id", "name", "email", "created_at", "blocked_at", "admin", "deleting")}
    return ConsoleAccount(plan=row["budget_plan"], **fields)
