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
from khala.domain.errors import (
    Conflict,
    InvalidInput,
    LimitScope,
    RateLimited,
    ReachedLimit,
    RunActive,
    RunNotFound,
    ThreadNotFound,
)
from khala.domain.fold import Content, FileBlock, TextBlock, text_of
from khala.domain.idempotency import RequestIdentity
from khala.domain.parts import json_text
from khala.signals import traces
from khala.store.blobs import blobs
from khala.store.budgets import account_plans, ledger
from khala.store.budgets.account_plans import AccountLimits
from khala.store.budgets.stripes import refilled
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import content
from khala.store.runs import completion_requests, runs
from khala.store.sharing import access
from khala.store.threads import send_statements, thread_lists
from khala.store.threads.reset_marks import IS_MESSAGE
from khala.store.webhooks import outbox
from khala.store.webhooks.outbox import exhaustion_recorded

ANSWER_TAKEN = "This answerId is taken."
QUEUE_FULL_RETRY_SECONDS = 5
"""The `retry_after` of a send when the queue is full."""


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
    answer_id: UUID | None = None
    """The id of the answer, if the caller chooses it."""


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
    payer: AccountLimits
    """The limits of the account that pays; those of all accounts for a guest."""
    has_webhooks: bool
    """Whether any webhook may want events of the thread."""

    @property
    def fairness_key(self) -> UUID:
        """The queue is fair between the values of this key."""
        key: UUID = self.owner_id or self.id
        return key


@retried
@exhaustion_recorded
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
@exhaustion_recorded
@refilled
async def regenerate(
    db: Database,
    question: SendRequest,
    answer_id: UUID,
    caller: Caller,
    limits: SendLimits,
    *,
    beside: UUID | None = None,
) -> tuple[SendResult, bool]:
    """Queue another answer to a stored message. Returns whether it is new: the same answer id again changes nothing.

    The run has the place of the run `beside` in the thread's queue, so both may be executed at once; by default the
    last place. Raises `RunNotFound` if there is no such run.
    """
    try:
        async with db.driver() as driver, driver.transaction():
            thread = await open_thread(driver, question, caller, Action.SEND_MESSAGE, limits)
            await _check_user_message(driver, question)
            before = await _answered_before(driver, question, answer_id)
            if before is not None:
                return before, False
            position = None if beside is None else await _position(driver, question, beside)
            return (
                await queue_answer(
                    driver, thread, question, caller, limits, stored=True, answer_id=answer_id, position=position
                ),
                True,
            )
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
    row = await driver.fetchrow(send_statements.OPEN, *arguments)
    if row is not None and not row["is_current"]:
        row = await driver.fetchrow(send_statements.OPEN, *arguments)
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
        payer=account_plans.account_limits(row["budget_plan"], row["budget_limits"]),
        has_webhooks=row["has_webhooks"],
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
    position: int | None = None,
) -> SendResult:
    """Queue an answer to the message, in a transaction that holds the thread's lock.

    By default the message is new, and is stored, too. With `stored`, the message is stored already: it is answered once
    more, or it is an answer whose tool calls have returned, which continues. The question's text is ignored then.
    `answer_id` is the id of the answer, if the caller chooses it, and `position` the run's place in the thread's queue.
    """
    now = datetime.now(UTC)
    reservations = _reservation_requests(thread, question, caller, limits.budgets, now)
    to_cancel = await _check_limits(driver, thread, question, limits)
    if stored:
        sent = await _queue(
            driver, thread, question, caller, answer_id or question.answer_id or ids.new(), position=position
        )
    else:
        sent = await _store(driver, thread, question, caller)
        if thread.has_webhooks:
            created = {"messageId": question.message_id, "role": "user", "authorId": caller.author_id}
            await outbox.record_one(driver, "message.created", thread.id, **created, runId=sent.run_id)
    # As late as possible: budget windows are shared, and stay locked until the commit. Users' rows are locked last.
    await _interrupt(driver, to_cancel, reservations, sent.revision)
    await ledger.reserve(driver, sent.run_id, reservations, now)
    active = await thread_lists.mark_changed(
        driver, [thread.id], unread=True, author_id=caller.user_id, owner_id=thread.owner_id
    )
    if active > limits.per_owner:
        # Other sends to threads of this owner were stored since the limits were checked.
        raise _too_many_runs(thread, limits, is_owner=True)
    return sent


def _reservation_requests(
    thread: OpenThread, question: SendRequest, caller: Caller, policy: BudgetPolicy, now: datetime
) -> list[ReservationRequest]:
    keys = budgets.budget_keys(caller, question.thread_id, thread.owner_id, thread.anon_key_hash)
    if "user" in keys:
        policy = thread.payer.applied(policy)
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
    row = await driver.fetchrow(send_statements.ANSWERED_BEFORE, answer_id, question.thread_id)
    if row is None:
        return None
    if not row["present"]:
        await _free_id(driver, answer_id)
        return None
    if row["parent_id"] != question.message_id or row["run_id"] is None:
        raise Conflict(ANSWER_TAKEN)
    return _sent(question, answer_id, row["run_id"], row["revision"])


async def _position(driver: Driver, question: SendRequest, run_id: UUID) -> int:
    position: int | None = await driver.fetchval(send_statements.POSITION, run_id, question.thread_id)
    if position is None:
        raise RunNotFound("There is no such run.")
    return position


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
    active = await runs.lock_active(driver, thread.id) if interrupts else []
    to_cancel = [run for run in active if run["plan_id"] is None]
    unheld = [run for run in to_cancel if not runs.is_held(run)]
    own = thread.own - sum(run["fairness_key"] == thread.fairness_key for run in unheld)
    waiting = thread.waiting - sum(run["status"] == "queued" for run in unheld)
    if own >= limits.per_owner or waiting >= limits.waiting:
        raise _too_many_runs(thread, limits, is_owner=own >= limits.per_owner)
    return to_cancel


def _too_many_runs(thread: OpenThread, limits: SendLimits, *, is_owner: bool) -> RateLimited:
    """The error for too many runs of the thread's owner, or in the whole queue."""
    owner: LimitScope = "thread" if thread.owner_id is None else "account"
    by_owner = ReachedLimit("active_runs", owner, limits.per_owner)
    by_queue = ReachedLimit("queued_runs", "deployment", limits.waiting)
    return RateLimited(
        "Too many answers are waiting to be written. Try again soon.",
        limit=by_owner if is_owner else by_queue,
        retry_after=QUEUE_FULL_RETRY_SECONDS,
    )


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
    return await _queue(driver, thread, question, caller, question.answer_id or ids.new(), message)


async def _queue(
    driver: Driver,
    thread: OpenThread,
    question: SendRequest,
    caller: Caller,
    answer_id: UUID,
    message: tuple[object, ...] = (),
    *,
    position: int | None = None,
) -> SendResult:
    """Store the answer's placeholder, and queue the run that writes it. Before it, store the message, if it is new."""
    run_id = ids.new() if question.request is None else question.request.run_id
    answer_position = thread.last + (2 if message else 1)
    revision = await driver.fetchval(
        send_statements.STORE_AND_QUEUE if message else send_statements.QUEUE_STORED,
        question.thread_id,
        run_id,
        answer_id,
        question.message_id,
        answer_position,
        thread.fairness_key,
        json_text(question.options),
        caller.user_id,
        presented_key_id(caller, thread.anon_key_hash),
        traces.traceparent(),
        answer_position - 1 if position is None else position,
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
