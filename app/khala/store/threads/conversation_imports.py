"""Imports conversations that were held elsewhere as threads, and queues the next answer."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain import ids
from khala.domain.access import Action, Caller, as_requester
from khala.domain.chat import MessageRole, RunOptions, SendResult
from khala.domain.errors import Conflict, Forbidden
from khala.domain.fold import Block, Content, FileBlock, ToolBlock
from khala.domain.parts import HANDED_OVER
from khala.domain.webhooks import WebhookEvent
from khala.store.blobs import blobs
from khala.store.budgets.stripes import refilled
from khala.store.postgres import rows
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.retries import retried
from khala.store.runs import completion_requests
from khala.store.schema.tables import messages
from khala.store.schema.tables import threads as threads_table
from khala.store.search import search_queue
from khala.store.sharing import access
from khala.store.threads import sends, threads
from khala.store.threads.reset_marks import last_position
from khala.store.threads.sends import SendLimits, SendRequest
from khala.store.webhooks import outbox

MAX_COPY_DISTANCE = 50
"""Messages between an answer and the copy of it that has results of its calls."""

WAITING = """
    SELECT messages.id, messages.content, messages.parent_id, runs.options, runs.user_id, runs.asker_key_id
    FROM threads JOIN messages ON messages.id = threads.active_leaf
    LEFT JOIN runs ON runs.id = messages.run_id AND runs.thread_id = messages.thread_id
    WHERE threads.id = $1 AND messages.thread_id = $1 AND messages.role = 'assistant'
"""

COPIED = f"""
    SELECT answer.content, runs.options, runs.user_id, runs.asker_key_id
    FROM messages AS copy JOIN messages AS answer ON answer.thread_id = copy.thread_id
    JOIN runs ON runs.id = answer.run_id AND runs.thread_id = answer.thread_id
    WHERE copy.id = $2 AND copy.thread_id = $1 AND answer.thread_id = $1 AND answer.role = 'assistant'
      AND answer.position BETWEEN copy.position - {MAX_COPY_DISTANCE} AND copy.position - 1
      AND answer.parent_id IS NOT DISTINCT FROM copy.parent_id
    ORDER BY answer.position DESC
"""
"""The runs that wrote the answers of which this message may be the copy with results of their calls."""


class ImportedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to store. `attachments` are blobs that were uploaded to the thread and belong to no message yet.

    `id` is the message's id, if the caller chooses it. A message with an `author_name` has the caller as its author, by
    that name; without one, only a user's message has, by the caller's own name.
    """

    id: UUID | None = None
    role: MessageRole
    content: tuple[Block, ...]
    attachments: tuple[UUID, ...] = ()
    author_name: str | None = None


class ConversationImport(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that becomes a thread of the user's, and the message to be answered.

    Without `has_question`, the last message of the history is answered instead of `question`. With `lifetime`, the
    thread expires after that time, and is on no thread list.
    """

    title: str | None
    history: Sequence[ImportedMessage]
    question: SendRequest
    has_question: bool = True
    lifetime: timedelta | None = None


class WaitingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that waits for the results of client-side tool calls, and the message that it answers."""

    leaf: UUID
    content: Content
    parent_id: UUID | None


class _Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the run that made its calls; None if the calls were imported."""

    answer: WaitingAnswer
    run: rows.Record | None

    @property
    def open_calls(self) -> set[str]:
        """The ids of the calls that wait for results of the client: never those of the server's tools."""
        calls = [block for block in self.answer.content if isinstance(block, ToolBlock) and _is_open(block)]
        if self.run is not None:
            options = msgspec.json.decode(self.run["options"], type=RunOptions)
            client_tools = {function.name for function in options.functions}
            calls = [call for call in calls if call.tool in client_tools]
        return {call.tool_call_id for call in calls}


@retried
@refilled
async def start(db: Database, conversation: ConversationImport, caller: Caller, limits: SendLimits) -> SendResult:
    """Store the thread and queue its answer, in one transaction.

    The thread may exist already if it has no message. Raises `Conflict` if it has one.
    """
    question = conversation.question
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        if question.request is not None:
            await completion_requests.record(driver, question.request)
        new = await _create(connection, caller, conversation)
        leaf = await append(connection, question.thread_id, caller, conversation.history)
        if not conversation.has_question and leaf is not None:
            question = msgspec.structs.replace(question, message_id=leaf)
        thread = await sends.open_thread(driver, question, caller, Action.IMPORT_MESSAGES, limits)
        sent = await sends.queue_answer(driver, thread, question, caller, limits, stored=not conversation.has_question)
        if new:
            # The user's row is locked after the budgets, as in every send.
            await threads.add_to_list(connection, question.thread_id, caller, conversation.lifetime)
        return sent


async def find_waiting(
    driver: Driver, thread_id: UUID, caller: Caller, call_ids: Sequence[str]
) -> WaitingAnswer | None:
    """The answer at the thread's active leaf, if all these of its calls wait for the client's results; else None.

    Raises `Forbidden` if another requester's run called the tools: only the requester may return the results. Results
    of calls that no run of the thread has made need the right to import.
    """
    await access.authorize(driver, thread_id, caller, Action.SEND_MESSAGE)
    leaf = await _read_leaf(driver, thread_id)
    if leaf is None or not leaf.open_calls >= set(call_ids):
        return None
    if leaf.run is None:
        await access.authorize(driver, thread_id, caller, Action.IMPORT_MESSAGES)
    elif as_requester(caller, leaf.run["user_id"], leaf.run["asker_key_id"]) is None:
        raise Forbidden("Only the requester may return the results of their own tools.")
    return leaf.answer


async def find_handed_over(driver: Driver, thread_id: UUID) -> set[str]:
    """The ids of the calls of the answer at the thread's active leaf that wait for the client's results."""
    leaf = await _read_leaf(driver, thread_id)
    return set() if leaf is None else leaf.open_calls


async def _read_leaf(driver: Driver, thread_id: UUID) -> _Leaf | None:
    """The thread's active leaf, if it is an answer that has been written."""
    row = await driver.fetchrow(WAITING, thread_id)
    content = None if row is None else rows.content(row["content"])
    if row is None or content is None:
        return None
    answer = WaitingAnswer(leaf=row["id"], content=content, parent_id=row["parent_id"])
    return _Leaf(answer=answer, run=row if row["options"] is not None else await _copied_run(driver, thread_id, answer))


async def _copied_run(driver: Driver, thread_id: UUID, copy: WaitingAnswer) -> rows.Record | None:
    """The run that made the calls of a message without a run: of the answer of which it is a copy with results."""
    calls = _call_ids(copy.content)
    found = await driver.fetch(COPIED, thread_id, copy.leaf) if calls else ()
    return next((row for row in found if _call_ids(rows.content(row["content"]) or ()) == calls), None)


def _call_ids(content: Content) -> list[str]:
    return [block.tool_call_id for block in content if isinstance(block, ToolBlock)]


def _is_open(call: ToolBlock) -> bool:
    """Whether the call has no result yet."""
    return call.output is None and call.blob is None and call.summary in (None, HANDED_OVER)


@retried
@refilled
async def continue_answer(
    db: Database,
    waiting: WaitingAnswer,
    settled: ImportedMessage,
    question: SendRequest,
    caller: Caller,
    limits: SendLimits,
) -> SendResult:
    """Replace the waiting answer by `settled`, which has the results of its calls, and queue its continuation.

    Raises `Conflict` if the thread has continued meanwhile.
    """
    thread_id = question.thread_id
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        if question.request is not None:
            await completion_requests.record(driver, question.request)
        thread = await sends.open_thread(driver, question, caller, Action.SEND_MESSAGE, limits)
        if thread.active_leaf != waiting.leaf:
            raise Conflict("The thread has continued meanwhile.")
        leaf = await append(connection, thread_id, caller, [settled], parent_id=waiting.parent_id)
        assert leaf is not None
        request = msgspec.structs.replace(question, message_id=leaf)
        thread = await sends.open_thread(driver, request, caller, Action.SEND_MESSAGE, limits)
        return await sends.queue_answer(driver, thread, request, caller, limits, stored=True)


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that continue a thread after the message `leaf`, on any branch; None in a thread without messages.

    With `completed`, this copy of `leaf`, which has the results of its calls, comes first and replaces it. Without
    `has_question`, the last stored message is answered instead of the question.
    """

    leaf: UUID | None
    parent_id: UUID | None = None
    completed: ImportedMessage | None = None
    history: Sequence[ImportedMessage] = ()
    has_question: bool = True


@retried
@refilled
async def continue_after(
    db: Database, continuation: Continuation, question: SendRequest, caller: Caller, limits: SendLimits
) -> SendResult:
    """Store the messages and queue the answer, in one transaction.

    Messages that others are said to have written need the right to import. Raises the errors of sending.
    """
    thread_id, completed = question.thread_id, continuation.completed
    action = Action.IMPORT_MESSAGES if continuation.history else Action.SEND_MESSAGE
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        if question.request is not None:
            await completion_requests.record(driver, question.request)
        await sends.open_thread(driver, question, caller, action, limits)
        new = [*([completed] if completed is not None else []), *continuation.history]
        parent_id = continuation.leaf if completed is None else continuation.parent_id
        leaf = await append(connection, thread_id, caller, new, parent_id=parent_id) or continuation.leaf
        given = {"parent_id": leaf} if continuation.has_question else {"message_id": leaf}
        request = msgspec.structs.replace(question, **given)
        thread = await sends.open_thread(driver, request, caller, action, limits)
        return await sends.queue_answer(driver, thread, request, caller, limits, stored=not continuation.has_question)


async def _create(connection: AsyncConnection, caller: Caller, conversation: ConversationImport) -> bool:
    """Create and lock the thread. Returns whether it is new."""
    thread_id = conversation.question.thread_id
    created = await connection.execute(
        upsert(threads_table)
        .values(id=thread_id, title=conversation.title, owner_id=caller.user_id)
        .on_conflict_do_nothing()
        .returning(threads_table.c.id)
    )
    new = created.first() is not None
    await threads.lock_authorized(connection, thread_id, caller, Action.IMPORT_MESSAGES)
    if new:
        await outbox.record_one(await driver_of(connection), "thread.created", thread_id)
    if not new and await _last_position(connection, thread_id):
        raise Conflict("This thread has messages already.")
    return new


async def append(
    connection: AsyncConnection,
    thread_id: UUID,
    caller: Caller,
    history: Sequence[ImportedMessage],
    *,
    parent_id: UUID | None = None,
) -> UUID | None:
    """Store these messages, each as the child of the previous one. Returns the id of the last one; None without any."""
    return None if not history else (await store(connection, thread_id, caller, history, parent_id=parent_id))[0]


async def store(
    connection: AsyncConnection,
    thread_id: UUID,
    caller: Caller,
    history: Sequence[ImportedMessage],
    *,
    parent_id: UUID | None,
) -> tuple[UUID, int]:
    """As `append`, with at least one message. Returns the id of the last one, and the thread's new revision."""
    message_ids = [message.id or ids.new() for message in history]
    last_position = await _last_position(connection, thread_id)
    revision = await threads.continue_from(connection, thread_id, message_ids[-1])
    stored: list[dict[str, Any]] = []
    for index, message in enumerate(history):
        has_author = message.role == "user" or message.author_name is not None
        stored.append(
            {
                "id": message_ids[index],
                "thread_id": thread_id,
                "parent_id": message_ids[index - 1] if index else parent_id,
                "position": last_position + index + 1,
                "role": message.role,
                "status": "final",
                "content": await _content(connection, thread_id, message),
                "revision": revision,
                "author_id": caller.author_id if has_author else None,
                "author_name": (message.author_name or caller.name) if has_author else None,
            }
        )
    await connection.execute(insert(messages), stored)
    driver = await driver_of(connection)
    await outbox.record(driver, [_created(thread_id, row) for row in stored])
    await search_queue.add(driver, thread_id, last_position + 1, last_position + len(stored))
    return message_ids[-1], revision


def _created(thread_id: UUID, row: Mapping[str, Any]) -> WebhookEvent:
    data = {"messageId": row["id"], "role": row["role"]}
    author = {} if row["author_id"] is None else {"authorId": row["author_id"]}
    return WebhookEvent(type="message.created", thread_id=thread_id, data=data | author)


async def _last_position(connection: AsyncConnection, thread_id: UUID) -> int:
    driver = await driver_of(connection)
    position: int = await driver.fetchval(f"SELECT {last_position('$1')}", thread_id)
    return position


async def _content(connection: AsyncConnection, thread_id: UUID, message: ImportedMessage) -> Content:
    if not message.attachments:
        return message.content
    attached = await blobs.attach(await driver_of(connection), thread_id, message.attachments)
    return (*message.content, *(FileBlock(blob=blob) for blob in attached))
