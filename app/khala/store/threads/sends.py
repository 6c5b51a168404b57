"""Sends: a message, the placeholder of its answer and the run that writes it, in one transaction.

The message id makes a send idempotent. Another answer to a stored message is queued in the same way, and the id of the
answer makes that idempotent.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec

from khala.domain import budgets, ids
from khala.domain.access import Action, Caller, presented_key_id
from khala.domain.budgets import BudgetPolicy, ReservationRequest
from khala.domain.chat import RunOptions, SendResult
from khala.domain.errors import Conflict, InvalidInput, RateLimited, RunActive, ThreadNotFound
from khala.domain.fold import Content, FileBlock, TextBlock, text_of
from khala.domain.idempotency import RequestIdentity
from khala.domain.parts import json_text
from khala.signals import traces
from khala.store.blobs import blobs
from khala.store.budgets import ledger
from khala.store.budgets.stripes import refilled
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import content
from khala.store.runs import completion_requests, runs
from khala.store.sharing import access
from khala.store.threads import thread_lists
from khala.store.threads.reset_marks import IS_MESSAGE, last_position

ANSWER_TAKEN = "This answerId is taken."
QUEUE_FULL_RETRY_SECONDS = 5
"""The `retry_after` of a send when the queue is full."""

ANSWERED_BEFORE = f"""
    SELECT messages.parent_id, runs.id AS run_id, runs.revision, {IS_MESSAGE} AS present
    FROM messages LEFT JOIN runs ON runs.message_id = messages.id AND runs.thread_id = messages.thread_id
     AND runs.position >= messages.position - 1
    WHERE messages.id = $1 AND messages.thread_id = $2
"""

OPEN = f"""
    WITH thread AS MATERIALIZED (
        SELECT id, owner_id, anon_key_hash, active_leaf, xmin AS version FROM threads
        WHERE id = $1 AND deleted_at IS NULL FOR UPDATE
    ), facts AS ({access.FACTS_OF_ONE}), before AS (
        SELECT messages.content, messages.revision, runs.id AS run_id, runs.message_id, {IS_MESSAGE} AS present
        FROM messages LEFT JOIN runs
          ON runs.user_message_id = messages.id AND runs.thread_id IS NOT DISTINCT FROM messages.thread_id
         AND runs.position >= messages.position
        WHERE messages.id = $5 AND messages.thread_id = $1 ORDER BY runs.position LIMIT 1
    )
    SELECT facts.*, thread.id, thread.active_leaf,
           thread.version = (SELECT xmin FROM threads WHERE id = $1) AS is_current,
           (SELECT count(*) FROM runs WHERE fairness_key = (SELECT coalesce(owner_id, id) FROM thread)
            AND status IN ('queued', 'running', 'blocked')) AS own,
           (SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT $6) AS queued) AS waiting,
           (SELECT count(*) FROM runs
            WHERE thread_id = $1 AND status IN ('queued', 'running', 'blocked')) AS in_thread,
           {last_position("$1")} AS last,
           before.present, before.content, before.revision, before.run_id, before.message_id
    FROM thread CROSS JOIN facts LEFT JOIN before ON true
"""
"""Locks the thread, and reads all that decides on a send: the caller's access, the message's first answer if it is
stored, the active runs of this owner, the queued runs of all owners (at most $6), the active runs of the thread, and
the position of the thread's last message. Each count has an index, so it reads no other active runs.

`present` is false if a reset has deleted the message, and left its row to the purge; null if it is not stored. Runs at
lower positions answered a message that had the same id before a reset.

Except for the locked row, the statement reads the state before it began. If it had to wait for a lock, and the thread's
row has changed meanwhile, `is_current` is false, and the statement has to be repeated: each change of what it reads of
the thread also updates the row. With `=`, the planner could choose the index of all runs of the thread for the answer.
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
    ){{question}}
    SELECT revision, pg_notify('{THREADS_CHANNEL}', $1::text), pg_notify('{RUNS_CHANNEL}', '') FROM thread
"""
"""Gives the thread its next revision, as `threads.continue_from` does, and stores the rows of that revision."""

QUEUE_STORED = QUEUE.format(question="")

STORE_AND_QUEUE = QUEUE.format(
    question=""", question AS (
        INSERT INTO messages (id, thread_id, parent_id, position, role, status, content, author_id, author_name,
                              revision)
        SELECT $4, $1, $11::uuid, $5 - 1, 'user', 'final', $12::text::jsonb, $13, $14, revision FROM thread
    )"""
)
"""As `QUEUE_STORED`, and stores the message that is answered."""


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


class OpenThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that the transaction has locked for a send, and the load by `OPEN`.

    `before` is what the same message id returned before. `deleted`: a reset has deleted a message with this id.
    """

    id: UUID
    owner_id: UUID | None
    anon_key_hash: bytes | None
    active_leaf: UUID | None
    own: int
    waiting: int
    in_thread: int
    last: int
    before: rows.Record | None
    deleted: bool

    @property
    def fairness_key(self) -> UUID:
        """The queue is fair between the values of this key."""
        key: UUID = self.owner_id or self.id
        return key


@retried
@refilled
async def send(db: Database, question: SendRequest, caller: Caller, limits: SendLimits) -> tuple[SendResult, bool]:
    """Store the message and queue its run. Returns whether it is new: the same message id again changes nothing.

    Raises `Conflict` for a message id that is taken, `RunActive` and `RateLimited`.
    """
    try:
        async with db.driver() as driver, driver.transaction():
            if question.request is not None:
                await completion_requests.record(driver, question.request)
            thread = await open_thread(driver, question, caller, Action.SEND_MESSAGE, limits)
            before = await _sent_before(driver, thread, question)
            if before is not None:
                return before, False
            return await queue_answer(driver, thread, question, caller, limits), True
    except asyncpg.UniqueViolationError as error:
        raise Conflict("This messageId is taken.") from error


@retried
@refilled
async def regenerate(
    db: Database, question: SendRequest, answer_id: UUID, caller: Caller, limits: SendLimits
) -> tuple[SendResult, bool]:
    """Queue another answer to a stored message. Returns whether it is new: the same answer id again changes nothing."""
    try:
        async with db.driver() as driver, driver.transaction():
            thread = await open_thread(driver, question, caller, Action.SEND_MESSAGE, limits)
            await _check_user_message(driver, question)
            before = await _answered_before(driver, question, answer_id)
            if before is not None:
                return before, False
            return await queue_answer(driver, thread, question, caller, limits, stored=True, answer_id=answer_id), True
    except asyncpg.UniqueViolationError as error:
        raise Conflict(ANSWER_TAKEN) from error


async def open_thread(
    driver: Driver, question: SendRequest, caller: Caller, action: Action, limits: SendLimits
) -> OpenThread:
    """Lock the question's thread until the transaction ends. Raises `ThreadNotFound` and `Forbidden`."""
    arguments = (
        *access.request_columns(question.thread_id, caller),
        question.message_id,
        # More than are allowed, because runs that the send interrupts are subtracted.
        limits.waiting + limits.per_owner,
    )
    row = await driver.fetchrow(OPEN, *arguments)
    if row is not None and not row["is_current"]:
        row = await driver.fetchrow(OPEN, *arguments)
    if row is None:
        raise ThreadNotFound("There is no such thread.")
    access.authorization(row, caller).require(action)
    return OpenThread(
        id=row["id"],
        owner_id=row["owner_id"],
        anon_key_hash=row["anon_key_hash"],
        active_leaf=row["active_leaf"],
        own=row["own"],
        waiting=row["waiting"],
        in_thread=row["in_thread"],
        last=row["last"],
        before=row if row["present"] else None,
        deleted=row["present"] is False,
    )


async def queue_answer(
    driver: Driver,
    thread: OpenThread,
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
    now = datetime.now(UTC)
    reservations = _reservation_requests(thread, question, caller, limits.budgets, now)
    to_cancel = await _check_limits(driver, thread, question, limits)
    if stored:
        sent = await _queue(driver, thread, question, caller, answer_id or ids.new())
    else:
        sent = await _store(driver, thread, question, caller)
    # As late as possible: budget windows are shared, and stay locked until the commit. Users' rows are locked last.
    await _interrupt(driver, to_cancel, reservations, sent.revision)
    await ledger.reserve(driver, sent.run_id, reservations, now)
    await thread_lists.mark_changed(driver, [thread.id], unread=True, author_id=caller.user_id)
    return sent


def _reservation_requests(
    thread: OpenThread, question: SendRequest, caller: Caller, policy: BudgetPolicy, now: datetime
) -> list[ReservationRequest]:
    keys = budgets.budget_keys(caller, question.thread_id, thread.owner_id, thread.anon_key_hash)
    return budgets.reservation_requests(policy, keys, question.options.budget, now)


# The thread's own messages only: the primary key refuses an id of another thread when it is stored.
async def _sent_before(driver: Driver, thread: OpenThread, question: SendRequest) -> SendResult | None:
    row = thread.before
    if thread.deleted:
        await _free_id(driver, question.message_id)
    if row is None:
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
    if row is None:
        return None
    if not row["present"]:
        await _free_id(driver, answer_id)
        return None
    if row["parent_id"] != question.message_id or row["run_id"] is None:
        raise Conflict(ANSWER_TAKEN)
    return _sent(question, answer_id, row["run_id"], row["revision"])


async def _free_id(driver: Driver, message_id: UUID) -> None:
    """Delete the row of a message that a reset has deleted, so that another message can have its id."""
    await driver.execute("DELETE FROM messages WHERE id = $1", message_id)


async def _check_user_message(driver: Driver, question: SendRequest) -> None:
    query = f"SELECT role FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"
    if await driver.fetchval(query, question.message_id, question.thread_id) != "user":
        raise InvalidInput("This is not a user's message of this thread.", path="messageId")


async def _check_limits(
    driver: Driver, thread: OpenThread, question: SendRequest, limits: SendLimits
) -> list[rows.Record]:
    """Raise `RunActive` or `RateLimited`. Returns the locked runs to cancel, which don't count."""
    if thread.in_thread and question.options.if_busy == "reject":
        raise RunActive("An answer is being written. Wait for it, cancel it, or send with ifBusy.")
    interrupts = thread.in_thread and question.options.if_busy == "interrupt"
    to_cancel = await runs.lock_active(driver, thread.id) if interrupts else []
    unheld = [run for run in to_cancel if not runs.is_held(run)]
    own = thread.own - sum(run["fairness_key"] == thread.fairness_key for run in unheld)
    waiting = thread.waiting - sum(run["status"] == "queued" for run in unheld)
    if own >= limits.per_owner or waiting >= limits.waiting:
        raise RateLimited(
            "Too many answers are waiting to be written. Try again soon.", retry_after=QUEUE_FULL_RETRY_SECONDS
        )
    return to_cancel


async def _interrupt(
    driver: Driver, to_cancel: Sequence[rows.Record], reservations: Sequence[ReservationRequest], revision: int
) -> None:
    """Cancel these runs, in the revision of the thread that the send has created."""
    if to_cancel:
        # Locks all budget windows at once, before users' rows. Otherwise the ending of the runs would lock their
        # windows and users' rows, and the send would lock its own windows after that.
        await ledger.lock(driver, reservations, run_ids=[run["id"] for run in to_cancel])
        await runs.cancel_runs(driver, to_cancel, revision=revision)


async def _store(driver: Driver, thread: OpenThread, question: SendRequest, caller: Caller) -> SendResult:
    """Store the message behind the thread's last one, and queue its answer."""
    parent_id = await _parent_id(driver, thread, question)
    encoded = json_text(await _content(driver, question))
    message = parent_id, encoded, caller.author_id, caller.name
    return await _queue(driver, thread, question, caller, ids.new(), message)


async def _queue(
    driver: Driver,
    thread: OpenThread,
    question: SendRequest,
    caller: Caller,
    answer_id: UUID,
    message: tuple[object, ...] = (),
) -> SendResult:
    """Store the answer's placeholder, and queue the run that writes it. Before it, store the message, if it is new."""
    run_id = ids.new() if question.request is None else question.request.run_id
    revision = await driver.fetchval(
        STORE_AND_QUEUE if message else QUEUE_STORED,
        question.thread_id,
        run_id,
        answer_id,
        question.message_id,
        thread.last + (2 if message else 1),
        thread.fairness_key,
        json_text(question.options),
        caller.user_id,
        presented_key_id(caller, thread.anon_key_hash),
        traces.traceparent(),
        *message,
    )
    return _sent(question, answer_id, run_id, revision)


async def _content(driver: Driver, question: SendRequest) -> Content:
    text = (TextBlock(text=question.text),) if question.text else ()
    if not question.attachments:
        return text
    attached = await blobs.attach(driver, question.thread_id, question.attachments)
    return (*text, *(FileBlock(blob=blob) for blob in attached))


def _sent(question: SendRequest, answer_id: UUID, run_id: UUID, revision: int) -> SendResult:
    return SendResult(
        thread_id=question.thread_id,
        user_message_id=question.message_id,
        assistant_message_id=answer_id,
        run_id=run_id,
        revision=revision,
    )


async def _parent_id(driver: Driver, thread: OpenThread, question: SendRequest) -> UUID | None:
    if question.parent_id is None:
        return None
    if question.parent_id is msgspec.UNSET:
        return thread.active_leaf
    query = f"SELECT true FROM messages WHERE id = $1 AND thread_id = $2 AND {IS_MESSAGE}"
    if await driver.fetchval(query, question.parent_id, thread.id) is None:
        raise InvalidInput("The parent is not a message of this thread.", path="parentId")
    return question.parent_id
