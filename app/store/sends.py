"""The send: a question, its answer-to-be and the run that writes it, in one transaction and once per message id.

Another answer to a question that was sent before is made the same way, once per the answer's id.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import Row, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.domain import budgets, ids
from app.domain.access import Caller
from app.domain.budgets import Ask, Policy
from app.domain.chat import RunOptions, Sent
from app.domain.errors import Conflict, InvalidInput, RateLimited, RunActive
from app.domain.fold import Content, FileBlock, TextBlock, text_of
from app.signals import traces
from app.store import blobs, ledger, listings, runs, threads
from app.store.db import RUNS_CHANNEL, Database, driver_of, notify
from app.store.rows import content
from app.store.tables import messages
from app.store.tables import runs as runs_table

ANSWER_TAKEN = "This answerId is taken."
RETRY_AFTER = 5
"""Seconds after which a full queue is worth another try."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs may be under way: for one owner, and how many may wait in all; and what they may use."""

    per_owner: int = 20
    waiting: int = 1000
    budgets: Policy = Policy()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller sends; `parent_id` is the message that it follows, None for none, by default the active leaf.

    `attachments` are blobs that were uploaded to the thread and belong to no message yet.
    """

    thread_id: UUID
    message_id: UUID
    text: str
    attachments: tuple[UUID, ...] = ()
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    options: RunOptions


async def send(db: Database, question: Question, caller: Caller, limits: Limits) -> tuple[Sent, bool]:
    """Store the question and queue its run, and whether that is new: the same message id again changes nothing."""
    try:
        async with db.transaction() as connection:
            thread = await threads.lock(connection, question.thread_id, caller, "editor")
            before = await _sent_before(connection, question)
            if before is not None:
                return before, False
            return await ask(connection, thread, question, caller, limits), True
    except IntegrityError as error:
        raise Conflict("This messageId is taken.") from error


async def regenerate(
    db: Database, question: Question, answer_id: UUID, caller: Caller, limits: Limits
) -> tuple[Sent, bool]:
    """Queue another answer to a question that is stored, and whether it is new: the same answer id changes nothing."""
    try:
        async with db.transaction() as connection:
            thread = await threads.lock(connection, question.thread_id, caller, "editor")
            await _check_asked(connection, question)
            before = await _answered_before(connection, question, answer_id)
            if before is not None:
                return before, False
            return await ask(connection, thread, question, caller, limits, stored=True, answer_id=answer_id), True
    except IntegrityError as error:
        raise Conflict(ANSWER_TAKEN) from error


async def ask(
    connection: AsyncConnection,
    thread: Row[tuple[object, ...]],
    question: Question,
    caller: Caller,
    limits: Limits,
    *,
    stored: bool = False,
    answer_id: UUID | None = None,
) -> Sent:
    """A send within a transaction that holds the thread's lock, for a message id that is new.

    Of a message that is `stored` already the text says nothing: it is answered once more, or an answer whose tools have
    come back goes on. `answer_id` is the id of the answer-to-be, if it has one.
    """
    now = datetime.now(UTC)
    asks = _asks(thread, question, caller, limits.budgets, now)
    await _make_room(connection, thread, question, limits, asks)
    if stored:
        position = await _next_position(connection, question.thread_id)
        sent = await _queue(connection, thread, question, caller, position, answer_id or ids.new())
    else:
        sent = await _store(connection, thread, question, caller)
    # As late as can be: windows are shared, and locked from here to the commit.
    await ledger.reserve(connection, sent.run_id, asks, now)
    await listings.stamp(await driver_of(connection), [thread.id], said=True, by=caller.user_id)
    return sent


def _asks(
    thread: Row[tuple[object, ...]], question: Question, caller: Caller, policy: Policy, now: datetime
) -> list[Ask]:
    keys = budgets.payers(caller, question.thread_id, thread.owner_id, thread.anon_key_hash)
    return budgets.asks(policy, keys, question.options.budget, now)


# Both look into the thread alone: an id that another thread has is refused by the key when it is stored.
async def _sent_before(connection: AsyncConnection, question: Question) -> Sent | None:
    query = (
        select(messages, runs_table.c.id.label("run"), runs_table.c.message_id)
        .outerjoin(
            runs_table,
            (runs_table.c.user_message_id == messages.c.id)
            # Not by `=`, which could lead to the index of all runs of the thread.
            & runs_table.c.thread_id.is_not_distinct_from(messages.c.thread_id),
        )
        .where(messages.c.id == question.message_id, messages.c.thread_id == question.thread_id)
        # Its own answer comes before all others.
        .order_by(runs_table.c.position)
        .limit(1)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    if row.run is None:
        raise Conflict("This messageId is taken.")
    before = content(row.content) or ()
    files = tuple(block.blob.blob_id for block in before if isinstance(block, FileBlock))
    if text_of(before) != question.text or files != question.attachments:
        raise Conflict("This messageId was sent before with another text or other attachments.")
    return _sent(question, row.message_id, row.run, row.revision)


async def _check_asked(connection: AsyncConnection, question: Question) -> None:
    query = select(messages.c.role).where(
        messages.c.id == question.message_id, messages.c.thread_id == question.thread_id
    )
    if (await connection.execute(query)).scalar_one_or_none() != "user":
        raise InvalidInput("This is no user's message of this thread.", path="messageId")


async def _answered_before(connection: AsyncConnection, question: Question, answer_id: UUID) -> Sent | None:
    query = (
        select(messages.c.parent_id, runs_table.c.id.label("run"), runs_table.c.revision)
        .outerjoin(
            runs_table, (runs_table.c.message_id == messages.c.id) & (runs_table.c.thread_id == messages.c.thread_id)
        )
        .where(messages.c.id == answer_id, messages.c.thread_id == question.thread_id)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    if row.parent_id != question.message_id or row.run is None:
        raise Conflict(ANSWER_TAKEN)
    return _sent(question, answer_id, row.run, row.revision)


async def _make_room(
    connection: AsyncConnection,
    thread: Row[tuple[object, ...]],
    question: Question,
    limits: Limits,
    asks: Sequence[Ask],
) -> None:
    busy = await runs.active(connection, question.thread_id)
    if busy and question.options.if_busy == "reject":
        raise RunActive("An answer is being written. Wait for it, cancel it, or send with ifBusy.")
    if busy and question.options.if_busy == "interrupt":
        await ledger.lock(await driver_of(connection), asks, run_ids=[run.id for run in busy])
        for run in busy:
            await runs.call_off(connection, run)
    own, waiting = await runs.waiting(connection, _fairness_key(thread))
    if own >= limits.per_owner or waiting >= limits.waiting:
        # Raised inside the transaction: what was called off for this send isn't.
        raise RateLimited("Too many answers are waiting to be written. Try again soon.", retry_after=RETRY_AFTER)


def _fairness_key(thread: Row[tuple[object, ...]]) -> UUID:
    key: UUID = thread.owner_id or thread.id
    return key


async def _store(
    connection: AsyncConnection, thread: Row[tuple[object, ...]], question: Question, caller: Caller
) -> Sent:
    parent_id = await _parent(connection, thread, question)
    asked_content = await _content(connection, question)
    position = await _next_position(connection, question.thread_id)
    sent = await _queue(connection, thread, question, caller, position + 1, ids.new())
    await connection.execute(
        insert(messages).values(
            id=question.message_id,
            thread_id=question.thread_id,
            parent_id=parent_id,
            position=position,
            role="user",
            status="final",
            content=asked_content,
            author_id=caller.author_id,
            author_name=caller.name,
            revision=sent.revision,
        )
    )
    return sent


async def _queue(
    connection: AsyncConnection,
    thread: Row[tuple[object, ...]],
    question: Question,
    caller: Caller,
    position: int,
    answer_id: UUID,
) -> Sent:
    """The answer-to-be to a message that is stored, at this position, and the run that writes it."""
    run_id = ids.new()
    revision = await threads.go_on_from(connection, question.thread_id, answer_id)
    await connection.execute(
        insert(messages).values(
            id=answer_id,
            thread_id=question.thread_id,
            parent_id=question.message_id,
            position=position,
            role="assistant",
            status="streaming",
            run_id=run_id,
            revision=revision,
        )
    )
    await connection.execute(
        insert(runs_table).values(
            id=run_id,
            thread_id=question.thread_id,
            message_id=answer_id,
            user_message_id=question.message_id,
            position=position - 1,
            revision=revision,
            fairness_key=_fairness_key(thread),
            status="queued",
            options=question.options,
            user_id=caller.user_id,
            traceparent=traces.traceparent(),
        )
    )
    await notify(connection, RUNS_CHANNEL, "")
    return _sent(question, answer_id, run_id, revision)


async def _content(connection: AsyncConnection, question: Question) -> Content:
    text = (TextBlock(text=question.text),) if question.text else ()
    if not question.attachments:
        return text
    kept = await blobs.attach(connection, question.thread_id, question.attachments)
    return (*text, *(FileBlock(blob=blob) for blob in kept))


def _sent(question: Question, answer_id: UUID, run_id: UUID, revision: int) -> Sent:
    return Sent(
        thread_id=question.thread_id,
        user_message_id=question.message_id,
        assistant_message_id=answer_id,
        run_id=run_id,
        revision=revision,
    )


async def _next_position(connection: AsyncConnection, thread_id: UUID) -> int:
    query = select(func.coalesce(func.max(messages.c.position), 0) + 1).where(messages.c.thread_id == thread_id)
    position: int = (await connection.execute(query)).scalar_one()
    return position


async def _parent(connection: AsyncConnection, thread: Row[tuple[object, ...]], question: Question) -> UUID | None:
    if question.parent_id is None:
        return None
    if question.parent_id is msgspec.UNSET:
        leaf: UUID | None = thread.active_leaf
        return leaf
    query = select(messages.c.id).where(messages.c.id == question.parent_id, messages.c.thread_id == thread.id)
    if (await connection.execute(query)).first() is None:
        raise InvalidInput("The parent is no message of this thread.", path="parentId")
    return question.parent_id
