"""Sends: a message, the placeholder of its answer and the run that writes it, in one transaction.

The message id makes a send idempotent. Another answer to a stored message is queued in the same way, and the id of the
answer makes that idempotent.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import budgets, ids
from khala.domain.access import Action, Caller, presented_key_id
from khala.domain.budgets import BudgetPolicy, ReservationRequest
from khala.domain.chat import RunOptions, SendResult
from khala.domain.errors import Conflict, InvalidInput, RateLimited, RunActive
from khala.domain.fold import Content, FileBlock, TextBlock, text_of
from khala.domain.idempotency import RequestIdentity
from khala.domain.parts import json_text
from khala.signals import traces
from khala.store.blobs import blobs
from khala.store.budgets import ledger
from khala.store.budgets.stripes import refilled
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record, content
from khala.store.runs import completion_requests, runs
from khala.store.threads import thread_lists, threads
from khala.store.threads.reset_marks import IS_MESSAGE, last_position

ANSWER_TAKEN = "This answerId is taken."
QUEUE_FULL_RETRY_SECONDS = 5
"""The `retry_after` of a send when the queue is full."""

SENT_BEFORE = f"""
    SELECT messages.content, messages.revision, runs.id AS run_id, runs.message_id, {IS_MESSAGE} AS present
    FROM messages LEFT JOIN runs
      ON runs.user_message_id = messages.id AND runs.thread_id IS NOT DISTINCT FROM messages.thread_id
     AND runs.position >= messages.position
    WHERE messages.id = $1 AND messages.thread_id = $2 ORDER BY runs.position LIMIT 1
"""
"""The message's first answer, and whether the message is present: a reset may have deleted it, and left its row to the
purge. Runs at lower positions answered a message that had the same id before a reset. With `=`, the planner could
choose the index of all runs of the thread."""

ANSWERED_BEFORE = f"""
    SELECT messages.parent_id, runs.id AS run_id, runs.revision, {IS_MESSAGE} AS present
    FROM messages LEFT JOIN runs ON runs.message_id = messages.id AND runs.thread_id = messages.thread_id
     AND runs.position >= messages.position - 1
    WHERE messages.id = $1 AND messages.thread_id = $2
"""

LOAD = f"""
    SELECT (SELECT count(*) FROM runs
            WHERE fairness_key = $2 AND status IN ('queued', 'running', 'blocked')) AS own,
           (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT $3) AS queued) AS waiting,
           (SELECT count(*) FROM runs
            WHERE thread_id = $1 AND status IN ('queued', 'running', 'blocked')) AS in_thread,
           {last_position("$1")} AS last
"""
"""The active runs of this owner, the queued runs of all owners (at most $3), the active runs of the thread, and the
position of the thread's last message. Each count has an index, so it reads no other active runs.
"""

INSERT_MESSAGE = """
    INSERT INTO messages (id, thread_id, parent_id, position, role, status, content, author_id, author_name, revision)
    VALUES ($1, $2, $3, $4, 'user', 'final', $5::text::jsonb, $6, $7, $8)
"""

QUEUE = f"""
    WITH thread AS (
        UPDATE threads SET revision = revision + 1, meta_revision = revision + 1, active_leaf = $3,
               updated_at = clock_timestamp()
        WHERE id = $1 RETURNING revision
    ), answer AS (
        INSERT INTO messages (id, thread_id, parent_id, position, role, status, run_id, revision)
        SELECT $3, $1, $4, $5, 'assistant', 'streaming', $2, revision FROM thread
    ), run AS (
        INSERT INTO runs (id, thread_id, message_id, user_message_id, position, revision, fairness_key, status, options,
                          user_id, asker_key_id, traceparent)
        SELECT $2, $1, $3, $4, $5 - 1, revision, $6, 'queued', $7::text::jsonb, $8, $9, $10 FROM thread
    )
    SELECT revision, pg_notify('{THREADS_CHANNEL}', $1::text), pg_notify('{RUNS_CHANNEL}', '') FROM thread
"""
"""Gives the thread its next revision, as `threads.continue_from` does, and stores the rows of that revision."""


class SendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of sends: active runs of one owner, queued runs of all owners, and budgets."""

    per_owner: int = 20
    waiting: int = 1000
    budgets: BudgetPolicy = BudgetPolicy()


class SendRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be answered. It follows `parent_id`: by default the active leaf, None for no message.

    `attachments` are blobs that were uploaded to the thread and belong to no message yet.
    """

    thread_id: UUID
    message_id: UUID
    text: str
    attachments: tuple[UUID, ...] = ()
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    options: RunOptions
    request: RequestIdentity | None = None
    """The identity of a completion request, which the client may send again."""


@retried
@refilled
async def send(db: Database, question: SendRequest, caller: Caller, limits: SendLimits) -> tuple[SendResult, bool]:
    """Store the message and queue its run. Returns whether it is new: the same message id again changes nothing.

    Raises `Conflict` for a message id that is taken, `RunActive` and `RateLimited`.
    """
    try:
        async with db.transaction() as connection:
            if question.request is not None:
                await completion_requests.record(connection, question.request)
            thread = await threads.lock_authorized(connection, question.thread_id, caller, Action.SEND_MESSAGE)
            before = await _sent_before(await driver_of(connection), question)
            if before is not None:
                return before, False
            return await queue_answer(connection, thread, question, caller, limits), True
    except asyncpg.UniqueViolationError as error:
        raise Conflict("This messageId is taken.") from error


@retried
@refilled
async def regenerate(
    db: Database, question: SendRequest, answer_id: UUID, caller: Caller, limits: SendLimits
) -> tuple[SendResult, bool]:
    """Queue another answer to a stored message. Returns whether it is new: the same answer id again changes nothing."""
    try:
        async with db.transaction() as connection:
            thread = await threads.lock_authorized(connection, question.thread_id, caller, Action.SEND_MESSAGE)
            driver = await driver_of(connection)
            await _check_user_message(driver, question)
            before = await _answered_before(driver, question, answer_id)
            if before is not None:
                return before, False
            return await queue_answer(
                connection, thread, question, caller, limits, stored=True, answer_id=answer_id
            ), True
    except asyncpg.UniqueViolationError as error:
        raise Conflict(ANSWER_TAKEN) from error


async def queue_answer(
    connection: AsyncConnection,
    thread: Row[tuple[object, ...]],
    question: SendRequest,
    caller: Caller,
    limits: SendLimits,
    *,
    stored: bool = False,
    answer_id: UUID | None = None,
) -> SendResult:
    """Queue an answer to the message, in a transaction that holds the thread's lock.

    By default the message is new, and is stored, too. With `stored`, the message is stored already: it is answered once
    more, or it is an answer whose tool calls have returned, which continues. The question's text is ignored then.
    `answer_id` is the id of the answer, if the caller chooses it.
    """
    driver = await driver_of(connection)
    now = datetime.now(UTC)
    reservations = _reservation_requests(thread, question, caller, limits.budgets, now)
    last, to_cancel = await _check_limits(connection, thread, question, limits)
    if stored:
        sent = await _queue(driver, thread, question, caller, last + 1, answer_id or ids.new())
    else:
        sent = await _store(connection, thread, question, caller, last + 1)
    # As late as possible: budget windows are shared, and stay locked until the commit. Users' rows are locked last.
    await _interrupt(connection, to_cancel, reservations, sent.revision)
    await ledger.reserve(driver, sent.run_id, reservations, now)
    await thread_lists.mark_changed(driver, [thread.id], unread=True, author_id=caller.user_id)
    return sent


def _reservation_requests(
    thread: Row[tuple[object, ...]], question: SendRequest, caller: Caller, policy: BudgetPolicy, now: datetime
) -> list[ReservationRequest]:
    keys = budgets.budget_keys(caller, question.thread_id, thread.owner_id, thread.anon_key_hash)
    return budgets.reservation_requests(policy, keys, question.options.budget, now)


# Both queries read this thread only: the primary key refuses an id of another thread when it is stored.
async def _sent_before(driver: Driver, question: SendRequest) -> SendResult | None:
    row = await driver.fetchrow(SENT_BEFORE, question.message_id, question.thread_id)
    if row is None or not row["present"]:
        await _free_id(driver, question.message_id, row)
        return None
    if row["run_id"] is None:
        raise Conflict("This messageId is taken.")
    before = content(row["content"]) or ()
    files = tuple(block.blob.blob_id for block in before if isinstance(block, FileBlock))
    if text_of(before) != question.text or files != question.attachments:
        raise Conflict("This messageId was sent before with another text or other attachments.")
    return _sent(question, row["message_id"], row["run_id"], row["revision"])


async def _answered_before(driver: Driver, question: SendRequest, answer_id: UUID) -> SendResult | None:
    row = await driver.fetchrow(ANSWERED_BEFORE, answer_id, question.thread_id)
    if row is None or not row["present"]:
        await _free_id(driver, answer_id, row)
        return None
    if row["parent_id"] != question.message_id or row["run_id"] is None:
        raise Conflict(ANSWER_TAKEN)
    return _sent(question, answer_id, row["run_id"], row["revision"])


async def _free_id(driver: Driver, message_id: UUID, deleted: Record | None) -> None:
    """Delete the row of a message that a reset has deleted, so that another message can have its id."""
    if deleted is not None:
        await driver.execute("DELETE FROM messages WHERE id = $1", message_id)


async def _check_user_message(driver: Driver, question: SendRequest) -> None:
    query = f"SELECT role FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"
    if await driver.fetchval(query, question.message_id, question.thread_id) != "user":
        raise InvalidInput("This is not a user's message of this thread.", path="messageId")


async def _check_limits(
    connection: AsyncConnection, thread: Row[tuple[object, ...]], question: SendRequest, limits: SendLimits
) -> tuple[int, Sequence[Row[tuple[object, ...]]]]:
    """Raise `RunActive` or `RateLimited`. Returns the position of the last message, and the locked runs to cancel.

    Runs that this transaction will end don't count.
    """
    driver = await driver_of(connection)
    # More than are allowed, because runs that the send interrupts are subtracted below.
    max_counted = limits.waiting + limits.per_owner
    load = await driver.fetchrow(LOAD, question.thread_id, _fairness_key(thread), max_counted)
    if load["in_thread"] and question.options.if_busy == "reject":
        raise RunActive("An answer is being written. Wait for it, cancel it, or send with ifBusy.")
    interrupts = load["in_thread"] and question.options.if_busy == "interrupt"
    to_cancel = await runs.lock_active(connection, question.thread_id) if interrupts else []
    unheld = [run for run in to_cancel if not runs.is_held(run)]
    own = load["own"] - sum(run.fairness_key == _fairness_key(thread) for run in unheld)
    waiting = load["waiting"] - sum(run.status == "queued" for run in unheld)
    if own >= limits.per_owner or waiting >= limits.waiting:
        raise RateLimited(
            "Too many answers are waiting to be written. Try again soon.", retry_after=QUEUE_FULL_RETRY_SECONDS
        )
    return load["last"], to_cancel


async def _interrupt(
    connection: AsyncConnection,
    to_cancel: Sequence[Row[tuple[object, ...]]],
    reservations: Sequence[ReservationRequest],
    revision: int,
) -> None:
    """Cancel these runs, in the revision of the thread that the send has created."""
    if to_cancel:
        # Locks all budget windows at once, before users' rows. Otherwise the ending of the runs would lock their
        # windows and users' rows, and the send would lock its own windows after that.
        await ledger.lock(await driver_of(connection), reservations, run_ids=[run.id for run in to_cancel])
        await runs.cancel_runs(connection, to_cancel, revision=revision)


def _fairness_key(thread: Row[tuple[object, ...]]) -> UUID:
    key: UUID = thread.owner_id or thread.id
    return key


async def _store(
    connection: AsyncConnection, thread: Row[tuple[object, ...]], question: SendRequest, caller: Caller, position: int
) -> SendResult:
    """Store the message at this position, and queue its answer."""
    driver = await driver_of(connection)
    parent_id = await _parent_id(driver, thread, question)
    encoded = json_text(await _content(connection, question))
    sent = await _queue(driver, thread, question, caller, position + 1, ids.new())
    await driver.execute(
        INSERT_MESSAGE,
        question.message_id,
        question.thread_id,
        parent_id,
        position,
        encoded,
        caller.author_id,
        caller.name,
        sent.revision,
    )
    return sent


async def _queue(
    driver: Driver,
    thread: Row[tuple[object, ...]],
    question: SendRequest,
    caller: Caller,
    position: int,
    answer_id: UUID,
) -> SendResult:
    """Store the answer's placeholder at this position, and queue the run that writes it."""
    run_id = ids.new() if question.request is None else question.request.run_id
    revision = await driver.fetchval(
        QUEUE,
        question.thread_id,
        run_id,
        answer_id,
        question.message_id,
        position,
        _fairness_key(thread),
        json_text(question.options),
        caller.user_id,
        presented_key_id(caller, thread.anon_key_hash),
        traces.traceparent(),
    )
    return _sent(question, answer_id, run_id, revision)


async def _content(connection: AsyncConnection, question: SendRequest) -> Content:
    text = (TextBlock(text=question.text),) if question.text else ()
    if not question.attachments:
        return text
    attached = await blobs.attach(connection, question.thread_id, question.attachments)
    return (*text, *(FileBlock(blob=blob) for blob in attached))


def _sent(question: SendRequest, answer_id: UUID, run_id: UUID, revision: int) -> SendResult:
    return SendResult(
        thread_id=question.thread_id,
        user_message_id=question.message_id,
        assistant_message_id=answer_id,
        run_id=run_id,
        revision=revision,
    )


async def _parent_id(driver: Driver, thread: Row[tuple[object, ...]], question: SendRequest) -> UUID | None:
    if question.parent_id is None:
        return None
    if question.parent_id is msgspec.UNSET:
        leaf: UUID | None = thread.active_leaf
        return leaf
    query = f"SELECT true FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"
    if await driver.fetchval(query, question.parent_id, thread.id) is None:
        raise InvalidInput("The parent is not a message of this thread.", path="parentId")
    return question.parent_id
