"""The console's list of runs: all runs of the deployment, the newest first, each page by an index.

A filter without an index is applied to at most `MAX_EXAMINED` rows, which an index gives in order. So no page depends
on the size of the deployment, and a page may have fewer items than were asked for.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.chat import ACTIVE, RunStatus
from khala.domain.parts import Finish
from khala.store.console.pages import (
    LAST_ID,
    MAX_EXAMINED,
    MAX_PAGE,
    AccountRef,
    ConsoleStruct,
    Statement,
    account_columns,
    account_ref,
    as_uuid,
    joined,
)
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record, decoded
from khala.store.threads.reset_marks import IS_RUN

RunStateFilter: TypeAlias = Literal["queued", "running", "blocked", "final", "error", "canceled", "active"]

IS_ACTIVE = "status IN ('queued', 'running', 'blocked')"
IS_ENDED = "status IN ('final', 'error', 'canceled')"
FAILED = ("error", "canceled")
"""States of ended runs that have indexes of their own."""
FINISH = """CASE WHEN runs.finished_at IS NOT NULL THEN coalesce(runs.finish, (
    SELECT finish FROM messages WHERE messages.id = runs.message_id AND messages.thread_id = runs.thread_id)) END"""
"""A run whose parts are packed has its finish in its message. An active run has none."""
COLUMNS = f"""
    runs.id, runs.thread_id, runs.message_id, runs.status, runs.options, runs.plan_id, runs.remote_owner_id, runs.epoch,
    runs.lost, runs.steps, runs.lease_owner, runs.lease_expires_at, runs.cancel_requested_at, runs.created_at,
    runs.started_at, runs.finished_at, {FINISH} AS finish,
    {account_columns("runs.user_id", "account")}
"""
OF_ID = """
    SELECT id FROM runs WHERE id = {0}
    UNION SELECT id FROM runs WHERE user_message_id = {0}
    UNION SELECT run_id FROM messages WHERE id = {0} AND run_id IS NOT NULL
"""
"""The run with an id, those that answer a message, and the one that wrote it."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list: those that match all fields that are set."""

    state: RunStateFilter | None = None
    agent: str | None = None
    model: str | None = None
    account: UUID | None = None
    thread: UUID | None = None
    q: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether an id names the runs, which are few."""
        return self.q is not None and as_uuid(self.q) is not None

    @property
    def is_indexed(self) -> bool:
        """Whether an index gives exactly the matching runs, so that none is examined in vain."""
        if self.model is not None or (self.q is not None and not self.is_named):
            return False
        sources = sum(source is not None for source in (self.agent, self.account, self.thread, self.q))
        if self.state is None or sources == 0:
            return sources <= 1 and self.state != "final"
        return sources == 1 and self.account is not None and self.state in FAILED


class ConsoleRun(ConsoleStruct, frozen=True, kw_only=True):
    """One run of any account, without texts. `usd` is a decimal text."""

    id: UUID
    thread_id: UUID
    message_id: UUID
    state: RunStatus
    agent: str | None
    provider: str | None
    model: str | None
    account: AccountRef | None
    plan_id: UUID | None
    remote: bool
    attempt: int
    lost: int
    steps: int
    executor: str | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    total_ms: int | None
    reason: str | None
    usd: str | None
    input_tokens: int | None
    output_tokens: int | None


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `next` is the id before which the next page begins. `examined`: filters without an index applied."""

    items: list[ConsoleRun]
    next: UUID | None
    examined: bool

    @property
    def examined_until(self) -> datetime | None:
        """All matches that are newer are in this page or an earlier one."""
        return None if self.next is None or not self.examined else ids.created_at(self.next)


class _ShownOptions(msgspec.Struct, frozen=True):
    agent: str | None = None
    model: str | None = None


async def read_page(driver: Driver, wanted: RunFilter, before: UUID | None, limit: int) -> RunPage:
    """Return the runs that match, before this id, the newest first."""
    window = MAX_PAGE + 1 if wanted.is_indexed else MAX_EXAMINED
    statement = Statement()
    candidates = _candidates(statement, wanted, before or LAST_ID, window)
    # Filters come before the conditions that read other tables for each row. All levels have the order of the index,
    # so that the query ends with the last row of the page.
    query = f"""
        SELECT {COLUMNS}, candidates FROM (
            SELECT * FROM (
                SELECT *, {"count(*) OVER ()" if wanted.is_indexed else window} AS candidates
                FROM ({candidates}) AS runs WHERE {joined(_conditions(statement, wanted))} ORDER BY id DESC OFFSET 0
            ) AS runs WHERE {IS_RUN} ORDER BY id DESC LIMIT {statement.add(limit + 1, "int")}
        ) AS runs ORDER BY runs.id DESC
    """
    found = await driver.fetch(query, *statement.arguments)
    items = [console_run(row) for row in found[:limit]]
    if len(found) > limit:
        return RunPage(items=items, next=items[-1].id, examined=not wanted.is_indexed)
    is_whole = found[0]["candidates"] < window if found else wanted.is_named
    if is_whole:
        return RunPage(items=items, next=None, examined=False)
    last = await _last_examined(driver, wanted, before or LAST_ID, window)
    return RunPage(items=items, next=last, examined=not wanted.is_indexed)


async def _last_examined(driver: Driver, wanted: RunFilter, before: UUID, window: int) -> UUID | None:
    """The last run that was examined, if there may be more behind it."""
    statement = Statement()
    candidates = _candidates(statement, wanted, before, window, columns="id")
    row = await driver.fetchrow(
        f"SELECT id FROM ({candidates}) AS runs ORDER BY id DESC OFFSET {window - 1} LIMIT 1", *statement.arguments
    )
    return None if row is None else row["id"]


def _candidates(statement: Statement, wanted: RunFilter, before: UUID, window: int, columns: str = "*") -> str:
    """SQL: up to `window` runs in order, by the index of the most selective filter."""
    older = f"id < {statement.add(before, 'uuid')}"

    def newest(*conditions: str) -> str:
        return f"(SELECT {columns} FROM runs WHERE {joined([older, *conditions])} ORDER BY id DESC LIMIT {window})"

    def chosen(condition: str) -> str:
        """Sorted by the id only after they were found: the planner must not look for them in the order of all ids."""
        rows = f"SELECT {columns} FROM runs WHERE {condition} OFFSET 0"
        return f"(SELECT * FROM ({rows}) AS chosen WHERE {older} ORDER BY id DESC LIMIT {window})"

    def of_state(condition: str) -> str:
        active, ended = chosen(joined([IS_ACTIVE, condition])), newest(IS_ENDED, condition)
        if wanted.state is not None:
            return ended if wanted.state in ("final", *FAILED) else active
        return f"SELECT * FROM ({active} UNION ALL {ended}) AS both_states ORDER BY id DESC LIMIT {window}"

    named = None if wanted.q is None else as_uuid(wanted.q)
    if named is not None:
        return chosen(_named(statement, named, older, window))
    if wanted.thread is not None:
        return newest(f"thread_id = {statement.add(wanted.thread, 'uuid')}")
    if wanted.account is not None:
        is_theirs = f"user_id = {statement.add(wanted.account, 'uuid')}"
        return newest(f"status = '{wanted.state}'", is_theirs) if wanted.state in FAILED else of_state(is_theirs)
    if wanted.agent is not None:
        return of_state(f"options ->> 'agent' = {statement.add(wanted.agent, 'text')}")
    return _by_state(wanted.state, newest, window)


def _by_state(state: RunStateFilter | None, newest: Callable[..., str], window: int) -> str:
    match state:
        case None | "final":
            query = newest()
        case "active":
            each = " UNION ALL ".join(newest(IS_ACTIVE, f"status = '{status}'") for status in ACTIVE)
            query = f"SELECT * FROM ({each}) AS active ORDER BY id DESC LIMIT {window}"
        case "queued" | "running" | "blocked":
            query = newest(IS_ACTIVE, f"status = '{state}'")
        case "error" | "canceled":
            query = newest(f"status = '{state}'")
    return query


def _named(statement: Statement, named: UUID, older: str, window: int) -> str:
    """SQL: runs that an id names, by the index of each kind of id: up to `window` of each, the newest first."""
    placeholder = statement.add(named, "uuid")

    def newest(condition: str) -> str:
        return f"(SELECT id FROM runs WHERE {older} AND {condition} ORDER BY id DESC LIMIT {window})"

    found = (
        OF_ID.format(placeholder),
        newest(f"thread_id = {placeholder}"),
        newest(f"thread_id = (SELECT thread_id FROM plans WHERE id = {placeholder}) AND plan_id = {placeholder}"),
        newest(f"user_id = {placeholder} AND {IS_ENDED}"),
        f"SELECT id FROM runs WHERE {IS_ACTIVE} AND user_id = {placeholder}",
    )
    return f"id = ANY(ARRAY({' UNION '.join(found)}))"


def _conditions(statement: Statement, wanted: RunFilter) -> list[str]:
    """SQL: the conditions of all filters, on a row of `runs`."""
    conditions = []
    if wanted.state is not None:
        states: Sequence[str] = ACTIVE if wanted.state == "active" else (wanted.state,)
        conditions.append(f"status = ANY({statement.add(list(states), 'text[]')})")
    if wanted.agent is not None:
        conditions.append(f"options ->> 'agent' = {statement.add(wanted.agent, 'text')}")
    if wanted.account is not None:
        conditions.append(f"user_id = {statement.add(wanted.account, 'uuid')}")
    if wanted.thread is not None:
        conditions.append(f"thread_id = {statement.add(wanted.thread, 'uuid')}")
    if wanted.model is not None:
        conditions.append(_is_model(statement, wanted.model))
    if wanted.q is not None and as_uuid(wanted.q) is None:
        conditions.append(_has_text(statement, wanted.q))
    return conditions


def _is_model(statement: Statement, model: str) -> str:
    provider, _, name = model.rpartition(":")
    placeholder = statement.add(name, "text")
    if not provider:
        return (
            f"coalesce(({FINISH}) ->> 'model', options ->> 'model') = {placeholder}"
            f" OR split_part(options ->> 'model', ':', 2) = {placeholder} AND finished_at IS NULL"
        )
    of = statement.add(provider, "text")
    whole = statement.add(model, "text")
    return (
        f"(({FINISH}) ->> 'model' = {placeholder} AND ({FINISH}) ->> 'provider' = {of})"
        f" OR (options ->> 'model' = {whole} AND ({FINISH}) ->> 'model' IS NULL)"
    )


def _has_text(statement: Statement, text: str) -> str:
    """SQL: whether one of the shown texts has this one in it. No character has a special meaning."""
    wanted = statement.add(text.strip().lower(), "text")
    shown = ("options ->> 'agent'", "options ->> 'model'", *(f"({FINISH}) ->> '{name}'" for name in _SEARCHED))
    texts = ", ".join(shown)
    return f"strpos(lower(concat_ws(' ', {texts})), {wanted}) > 0"


_SEARCHED = ("model", "provider", "reason")
"""The fields of a finish that `q` looks at."""


async def read_run(driver: Driver, run_id: UUID) -> ConsoleRun | None:
    """Return the run; None if there is none."""
    query = f"SELECT {COLUMNS} FROM runs WHERE runs.id = $1 AND {IS_RUN}"
    row = await driver.fetchrow(query, run_id)
    return None if row is None else console_run(row)


def console_run(row: Record) -> ConsoleRun:
    """A row with `COLUMNS`."""
    options = msgspec.json.decode(row["options"], type=_ShownOptions)
    finish = decoded(row["finish"], Finish)
    provider, model = _asked_model(options.model) if finish is None else (finish.provider, finish.model)
    return ConsoleRun(
        id=row["id"],
        thread_id=row["thread_id"],
        message_id=row["message_id"],
        state=row["status"],
        agent=options.agent,
        provider=provider,
        model=model,
        account=account_ref(row, "account"),
        plan_id=row["plan_id"],
        remote=row["remote_owner_id"] is not None,
        attempt=row["epoch"],
        lost=row["lost"],
        steps=row["steps"],
        executor=row["lease_owner"],
        lease_expires_at=row["lease_expires_at"],
        cancel_requested_at=row["cancel_requested_at"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        total_ms=None if finish is None else finish.total_ms,
        reason=None if finish is None else finish.reason,
        usd=None if finish is None else finish.cost_usd,
        input_tokens=None if finish is None else finish.usage.input_tokens,
        output_tokens=None if finish is None else finish.usage.output_tokens,
    )


def _asked_model(model: str | None) -> tuple[str | None, str | None]:
    if model is None:
        return None, None
    provider, _, name = model.rpartition(":")
    return provider or None, name
