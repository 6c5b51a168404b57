"""Approvals: tool calls that wait for a person's decision. The first decision is final.

Approvals change under the thread's row lock, as the status of a run does. So a run that blocks and is released by its
executor can't miss a decision.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, and_, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Action, Caller, as_requester
from khala.domain.chat import ACTIVE, WireStruct
from khala.domain.errors import AlreadyDecided, Conflict, Forbidden, InvalidInput, NotFound, RunNotFound
from khala.domain.tools import QUESTION_MARK, ApprovalReach
from khala.domain.webhooks import WebhookEvent
from khala.store.accounts import account_feed
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    notify,
    notify_executors,
)
from khala.store.postgres.retries import retried
from khala.store.runs.leases import Lease
from khala.store.schema.tables import approvals, runs
from khala.store.sharing import access
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_RUN
from khala.store.tools import tool_rules
from khala.store.webhooks import outbox

ApprovalState: TypeAlias = Literal["pending", "approved", "denied", "expired"]

MAX_EXPIRED_THREADS = 100
"""Threads whose approvals expire in one transaction."""

EXPIRED = """
    SELECT id FROM threads WHERE id IN (
        SELECT thread_id FROM approvals WHERE state = 'pending' AND expires_at <= clock_timestamp() LIMIT $1)
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""

ARE_EXPIRED = "SELECT EXISTS (SELECT FROM approvals WHERE state = 'pending' AND expires_at <= clock_timestamp())"

EXPIRE = """
    UPDATE approvals SET state = 'expired', decided_at = clock_timestamp()
    WHERE state = 'pending' AND expires_at <= clock_timestamp() AND thread_id = ANY($1::uuid[])
    RETURNING run_id, thread_id, tool_call_id, tool
"""

OF_RUNS = """
    SELECT approvals.* FROM approvals JOIN unnest($1::uuid[], $2::uuid[]) AS asked (run_id, thread_id)
      ON approvals.run_id = asked.run_id AND approvals.thread_id IS NOT DISTINCT FROM asked.thread_id
    WHERE approvals.run_id = ANY($1::uuid[])
"""

APPROVE_OTHERS = """
    UPDATE approvals SET state = 'approved', decided_by = $4, decided_name = $5, decided_at = clock_timestamp()
    WHERE run_id = $1 AND thread_id = $2 AND tool = $3 AND state = 'pending' AND (NOT asker_only OR $6)
      AND tool_call_id NOT LIKE $7
    RETURNING tool_call_id
"""
WAKE = """
    UPDATE runs SET status = 'queued' FROM (
        SELECT id, thread_id FROM runs WHERE id = ANY($1::uuid[]) AND thread_id = ANY($2::uuid[]) AND status = 'blocked'
        ORDER BY id FOR NO KEY UPDATE
    ) AS due WHERE runs.id = due.id AND runs.thread_id = due.thread_id
"""


NOT_THEIR_CALL = (
    "Only the person who requested this run may change the arguments. You can approve or deny the call as it is."
)
ASKED_BEFORE_CLAIM = (
    "This call was made before the thread was claimed. Only the new owner may approve it; you can deny it."
)


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision. `digest` identifies the call that was shown, if the client sends it."""

    approved: bool
    reason: str | None = None
    edited_args: dict[str, Any] | None = None
    digest: str | None = None
    allow: ApprovalReach = "once"


class Approval(WireStruct, frozen=True, kw_only=True):
    """A call that waits for a decision, and the decision, if there is one."""

    run_id: UUID
    tool_call_id: str
    tool: str
    args: dict[str, Any]
    digest: str
    state: ApprovalState
    reason: str | None = None
    edited_args: dict[str, Any] | None = None
    decided_by: UUID | None = None
    decided_name: str | None = None
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None = None
    allow: ApprovalReach = "once"
    """How far the approval reaches."""
    may_edit: bool = False
    """Whether the reader is the run's requester, who may change the arguments."""


class ApprovalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A pending approval: the tool, and the schema that edited arguments must match."""

    tool: str
    parameters: dict[str, Any]


async def get_question(db: Database, run_id: UUID, tool_call_id: str, caller: Caller) -> ApprovalQuestion:
    """The pending approval. Raises `Forbidden` unless the caller may decide it."""
    async with db.driver() as driver:
        thread_id = await _thread(driver, run_id)
        await access.authorize(driver, thread_id, caller, Action.DECIDE_APPROVAL)
        query = "SELECT tool, parameters FROM approvals WHERE run_id = $1 AND tool_call_id = $2 AND thread_id = $3"
        row = await driver.fetchrow(query, run_id, tool_call_id, thread_id)
    if row is None:
        raise NotFound("This call does not wait for approval.")
    return ApprovalQuestion(tool=row["tool"], parameters=msgspec.json.decode(row["parameters"], type=dict[str, Any]))


@retried
async def decide(db: Database, run_id: UUID, tool_call_id: str, caller: Caller, decision: ApprovalDecision) -> Approval:
    """Decide a pending approval, so that its run continues. Repeating the decision changes nothing.

    Raises `AlreadyDecided` after another decision. Only the requester may change the arguments, because the call acts
    with the requester's rights.
    """
    async with db.driver() as driver:
        thread_id = await _thread(driver, run_id)
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.DECIDE_APPROVAL)
        run = await _run(connection, thread_id, run_id)
        row = await _row(connection, run, tool_call_id)
        if row.state == "pending":
            await _store_decision(connection, run, row, caller, decision)
        elif not _same(row, decision):
            raise AlreadyDecided(f"This call was {row.state} before.")
        return _approval((await _row(connection, run, tool_call_id))._mapping)


async def _store_decision(
    connection: AsyncConnection,
    run: Row[tuple[object, ...]],
    row: Row[tuple[object, ...]],
    caller: Caller,
    decision: ApprovalDecision,
) -> None:
    if run.status not in ACTIVE or run.cancel_requested_at is not None:
        raise Conflict("The run has ended or is being canceled, so there is nothing to decide.")
    if decision.allow != "once" and QUESTION_MARK in row.tool_call_id:
        raise InvalidInput("The answer to a question is for this question only.", path="allow")
    if decision.digest is not None and decision.digest != row.digest:
        raise Conflict("The call has changed since it was shown. Reload it, and decide again.")
    needs_requester = decision.edited_args is not None or decision.allow == "run"
    needs_requester = needs_requester or (decision.approved and row.asker_only)
    if needs_requester and not await _is_requester(await driver_of(connection), run._mapping, caller):
        raise Forbidden(ASKED_BEFORE_CLAIM if decision.edited_args is None else NOT_THEIR_CALL)
    values = {
        "state": "approved" if decision.approved else "denied",
        "reason": decision.reason,
        "edited_args": decision.edited_args if decision.approved else None,
        "decided_by": caller.author_id,
        "decided_name": caller.name,
        "decided_at": func.clock_timestamp(),
        "allowed": None if decision.allow == "once" else decision.allow,
    }
    if decision.allow == "thread":
        await tool_rules.allow_in_thread(connection, run.thread_id, row.tool, caller)
    await connection.execute(update(approvals).where(_this(run, row.tool_call_id)).values(**values))
    decided = {"runId": run.id, "toolCallId": row.tool_call_id, "tool": row.tool, "state": values["state"]}
    decided |= {"decidedBy": caller.author_id, "edited": values["edited_args"] is not None}
    driver = await driver_of(connection)
    await outbox.record_one(driver, "approval.decided", run.thread_id, **decided)
    if decision.allow != "once":
        await _approve_others(driver, run, row, caller, decision)
    if run.status == "blocked":
        its = (runs.c.id == run.id) & (runs.c.thread_id == run.thread_id)
        await connection.execute(update(runs).where(its).values(status="queued"))
        await thread_lists.mark_changed(await driver_of(connection), [run.thread_id])
    await notify(connection, RUNS_CHANNEL, "")


async def _approve_others(
    driver: Driver,
    run: Row[tuple[object, ...]],
    row: Row[tuple[object, ...]],
    caller: Caller,
    decision: ApprovalDecision,
) -> None:
    """Approve the other calls of this tool that wait in the run."""
    by_requester = decision.allow == "run"
    arguments = run.id, run.thread_id, row.tool, caller.author_id, caller.name, by_requester, f"%{QUESTION_MARK}%"
    others = await driver.fetch(APPROVE_OTHERS, *arguments)
    facts = {"runId": run.id, "tool": row.tool, "state": "approved", "decidedBy": caller.author_id, "edited": False}
    events = [facts | {"toolCallId": other["tool_call_id"]} for other in others]
    thread_id: Any = run.thread_id
    await outbox.record(driver, [WebhookEvent(type="approval.decided", thread_id=thread_id, data=d) for d in events])


async def _is_requester(driver: Driver, run: rows.Record, caller: Caller) -> bool:
    """Whether the caller requested the run, by account or key, and may still write with only that credential."""
    requester = as_requester(caller, run["user_id"], run["asker_key_id"])
    if requester is None:
        return False
    if requester.user_id is not None and not (await account_feed.valid_credentials(driver, [caller]))[0]:
        return False
    (found,) = await access.authorizations(driver, [(run["thread_id"], requester)])
    return found is not None and found.allows(Action.SEND_MESSAGE)


async def may_edit(driver: Driver, run_id: UUID, caller: Caller) -> bool:
    """Whether the caller may change the arguments of this run's calls."""
    row = await driver.fetchrow(f"SELECT * FROM runs WHERE id = $1 AND {IS_RUN}", run_id)
    return row is not None and await _is_requester(driver, row, caller)


def _same(row: Row[tuple[object, ...]], decision: ApprovalDecision) -> bool:
    edited = None if row.edited_args is None else msgspec.json.decode(row.edited_args)
    return (row.state, row.allowed or "once", edited) == (
        "approved" if decision.approved else "denied",
        decision.allow,
        decision.edited_args if decision.approved else None,
    )


async def any_decided(connection: AsyncConnection, lease: Lease, tool_call_ids: Sequence[str]) -> bool:
    """Whether one of these calls of the run is decided. The caller holds the thread's lock."""
    query = select(approvals.c.tool_call_id).where(
        approvals.c.run_id == lease.run_id,
        approvals.c.thread_id == lease.thread_id,
        approvals.c.tool_call_id.in_(tool_call_ids),
        approvals.c.state != "pending",
    )
    return (await connection.execute(query.limit(1))).first() is not None


async def of_run(driver: Driver, thread_id: UUID, run_id: UUID) -> dict[str, Approval]:
    """All approvals of a run of this thread, by tool call."""
    return (await of_runs(driver, {run_id: thread_id}))[run_id]


async def of_runs(driver: Driver, thread_ids: Mapping[UUID, UUID]) -> dict[UUID, dict[str, Approval]]:
    """All approvals of these runs, by run and tool call. `thread_ids` maps each run to its thread."""
    found: dict[UUID, dict[str, Approval]] = {run_id: {} for run_id in thread_ids}
    for row in await driver.fetch(OF_RUNS, list(thread_ids), list(thread_ids.values())):
        found[row["run_id"]][row["tool_call_id"]] = _approval(row)
    return found


@retried
async def expire(db: Database) -> int:
    """Expire the approvals whose time is up, which denies the calls. Returns their number."""
    async with db.driver() as driver:
        # Nearly always there is none. Without a transaction, the question takes one round trip.
        if not await driver.fetchval(ARE_EXPIRED):
            return 0
        async with driver.transaction(isolation="read_committed"):
            return await _expire(driver)


async def _expire(driver: Driver) -> int:
    due = [row["id"] for row in await driver.fetch(EXPIRED, MAX_EXPIRED_THREADS)]
    if not due:
        return 0
    expired = await driver.fetch(EXPIRE, due)
    ended = [row["run_id"] for row in expired]
    await outbox.record(driver, [_expired(row) for row in expired])
    await driver.execute(WAKE, ended, due)
    await thread_lists.mark_changed(driver, due)
    await notify_executors(driver)
    return len(ended)


def _expired(row: rows.Record) -> WebhookEvent:
    data = {"runId": row["run_id"], "toolCallId": row["tool_call_id"], "tool": row["tool"], "state": "expired"}
    return WebhookEvent(type="approval.decided", thread_id=row["thread_id"], data=data)


async def _thread(driver: Driver, run_id: UUID) -> UUID:
    thread_id: UUID | None = await driver.fetchval(f"SELECT thread_id FROM runs WHERE id = $1 AND {IS_RUN}", run_id)
    if thread_id is None:
        raise RunNotFound("There is no such run.")
    return thread_id


async def _run(connection: AsyncConnection, thread_id: UUID, run_id: UUID) -> Row[tuple[object, ...]]:
    query = select(runs).where(runs.c.id == run_id, runs.c.thread_id == thread_id, text(IS_RUN))
    row = (await connection.execute(query.with_for_update())).first()
    if row is None:
        raise RunNotFound("There is no such run.")
    return row


async def _row(connection: AsyncConnection, run: Row[tuple[object, ...]], tool_call_id: str) -> Row[tuple[object, ...]]:
    row = (await connection.execute(select(approvals).where(_this(run, tool_call_id)))).first()
    if row is None:
        raise NotFound("This call does not wait for approval.")
    return row


def _this(run: Row[tuple[object, ...]], tool_call_id: str) -> ColumnElement[bool]:
    its = {"run_id": run.id, "thread_id": run.thread_id, "tool_call_id": tool_call_id}
    return and_(*(approvals.c[name] == value for name, value in its.items()))


def _approval(row: rows.Record) -> Approval:
    json = dict[str, Any]
    return Approval(
        run_id=row["run_id"],
        tool_call_id=row["tool_call_id"],
        tool=row["tool"],
        args=msgspec.json.decode(row["args"], type=json),
        digest=row["digest"],
        state=row["state"],
        reason=row["reason"],
        edited_args=rows.decoded(row["edited_args"], json),
        decided_by=row["decided_by"],
        decided_name=row["decided_name"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        decided_at=row["decided_at"],
        allow=row["allowed"] or "once",
    )
