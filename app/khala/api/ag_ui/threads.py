"""Reads runs and threads for AG-UI and TanStack AI clients: joins, connections and stored messages."""

from collections.abc import AsyncGenerator
from uuid import UUID

from khala.api.ag_ui.event_encoder import AgentEvent, AgentEventEncoder, EventedRun, EventId, IdentifiedEvent
from khala.api.ag_ui.event_stream import EventCursor, EventStream, as_server_sent, interrupt, plan_activity
from khala.api.ag_ui.messages import agent_messages, chat_messages
from khala.api.ag_ui.submission import AgentRun, evented
from khala.api.ag_ui.types import HydratedPage, HydratedThread, JoinableRun, PendingInterrupts
from khala.api.chats.chat_ids import answer_id_of, as_uuid, thread_id_of
from khala.api.chats.tool_values import approval_id
from khala.api.context import Context
from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.chat import Message
from khala.domain.errors import InvalidInput, RunNotFound, ThreadNotFound
from khala.domain.thread_changes import Snapshot
from khala.store.postgres.database import Driver
from khala.store.runs import run_lookups, runs
from khala.store.runs.run_lookups import FoundRun
from khala.store.sharing import access
from khala.store.threads import thread_feed
from khala.store.tools import approvals

MAX_SNAPSHOT_MESSAGES = 200
APPROVAL_REASON = "approval_required"
"""TanStack AI's name of a request for approval."""


async def joined(context: Context, caller: Caller, run_name: str) -> AgentRun:
    """Return the run: the client's id of a run that this caller has started, or the id of a run of Khala.

    Raises `RunNotFound`, and `Forbidden` if the caller may not read it.
    """
    async with context.db.driver() as driver:
        found = None
        if caller.author_id is not None:
            found = await run_lookups.by_answer(driver, answer_id_of(caller.author_id, run_name))
        run_id = as_uuid(run_name) if found is None else found.id
        if run_id is None:
            raise RunNotFound("You have started no run with this id.")
        run = await runs.read_authorized(driver, run_id, caller)
        found = found or await run_lookups.by_id(driver, run.thread_id, run_id)
    if found is None:
        raise RunNotFound("There is no such run.")
    return AgentRun(run=evented(found, str(found.thread_id), run_name), reason=APPROVAL_REASON)


async def connection(context: Context, caller: Caller, thread_name: str, after: EventId | None) -> AsyncGenerator[str]:
    """Return the events of a thread: its messages, and the newest answer from its beginning, or after this event."""
    thread_id = thread_id_of(thread_name, caller)
    async with context.db.snapshot() as driver:
        snapshot = await _read(driver, thread_id, caller, MAX_SNAPSHOT_MESSAGES)
        active = None if snapshot is None else await run_lookups.newest_active(driver, thread_id)
    if active is None:
        return _idle(thread_id, thread_name, snapshot)
    run = evented(active, thread_name, str(active.id))
    if after is not None:
        return EventStream(
            context, caller, AgentRun(run=run), cursor=EventCursor(last=after, reopens=True)
        ).server_sent_events()
    before = _messages_event(snapshot, active.user_message_id)
    return EventStream(context, caller, AgentRun(run=run), before=before).server_sent_events()


async def _read(driver: Driver, thread_id: UUID, caller: Caller, limit: int) -> Snapshot | None:
    """Return the thread with its newest messages; None if it has not been created yet."""
    try:
        await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    except ThreadNotFound:
        return None
    return await thread_feed.read_snapshot(driver, thread_id, limit=limit)


def _messages_event(snapshot: Snapshot | None, leaf: UUID | None) -> list[AgentEvent]:
    messages = [] if snapshot is None else agent_messages(snapshot.messages, leaf)
    plans = [] if snapshot is None else [plan_activity(plan) for plan in snapshot.plans]
    return [{"type": "MESSAGES_SNAPSHOT", "messages": messages}, *plans]


async def _idle(thread_id: UUID, thread_name: str, snapshot: Snapshot | None) -> AsyncGenerator[str]:
    """Yield the events of a thread in which nothing is being written."""
    run = EventedRun(
        thread_id=thread_id,
        run_id=thread_id,
        message_id=thread_id,
        thread_name=thread_name,
        run_name=str(ids.new()),
    )
    started, _ = AgentEventEncoder(run).start({})
    known: AgentEvent = {"type": "STATE_SNAPSHOT", "snapshot": {"khala": {"threadId": thread_id}}}
    leaf = None if snapshot is None else snapshot.thread.active_leaf
    ended: AgentEvent = {
        "type": "RUN_FINISHED",
        "threadId": thread_name,
        "runId": run.run_name,
        "outcome": {"type": "success"},
    }
    events = [started.event, known, *_messages_event(snapshot, leaf), ended]
    yield "".join(as_server_sent(IdentifiedEvent(None, event)) for event in events)


async def hydrated(
    context: Context, caller: Caller, thread_name: str, *, limit: int, before: str | None
) -> HydratedThread:
    """Return the messages of the active branch, and the run that is being written, for TanStack AI."""
    thread_id = thread_id_of(thread_name, caller)
    cursor = None if before is None else as_uuid(before)
    if before is not None and cursor is None:
        raise InvalidInput("This is not a cursor of this server.", path="before")
    async with context.db.snapshot() as driver:
        snapshot = await _read(driver, thread_id, caller, limit)
        if snapshot is None:
            return HydratedThread(messages=[], active_run=None, interrupts=None, page=HydratedPage(truncated=False))
        if cursor is not None:
            return await _older(driver, snapshot, cursor, limit)
        active = await run_lookups.newest_active(driver, thread_id)
        interrupts = None if active is None else await _interrupts(driver, active, caller)
    # An answer that is being written comes from the run, which the client joins.
    is_written = active is not None and interrupts is None
    leaf = active.user_message_id if active is not None and is_written else snapshot.thread.active_leaf
    return HydratedThread(
        messages=_chat_messages(snapshot.messages, leaf, active),
        active_run=JoinableRun(run_id=str(active.id)) if active is not None and is_written else None,
        interrupts=interrupts,
        page=_page(snapshot.messages, has_more=snapshot.has_more),
    )


def _chat_messages(
    messages: tuple[Message, ...], leaf: UUID | None, active: FoundRun | None
) -> list[dict[str, object]]:
    waiting = next((message for message in messages if active is not None and message.id == active.message_id), None)
    content = () if waiting is None else waiting.content or ()
    return chat_messages(agent_messages(messages, leaf), None if active is None else active.id, content)


def _page(messages: tuple[Message, ...], *, has_more: bool) -> HydratedPage:
    if not has_more or not messages:
        return HydratedPage(truncated=False)
    return HydratedPage(truncated=True, cursor=str(messages[0].id))


async def _older(driver: Driver, snapshot: Snapshot, cursor: UUID, limit: int) -> HydratedThread:
    """Return the messages before the cursor on the branch of the cursor."""
    older, has_more = await thread_feed.read_older(driver, snapshot.thread.id, before=cursor, limit=limit)
    first = next((message for message in snapshot.messages if message.id == cursor), None)
    leaf = first.parent_id if first is not None else (older[-1].id if older else None)
    return HydratedThread(
        messages=_chat_messages(older, leaf, None),
        active_run=None,
        interrupts=None,
        page=_page(older, has_more=has_more),
    )


async def _interrupts(driver: Driver, active: FoundRun, caller: Caller) -> PendingInterrupts | None:
    """Return the requests for approval, if the run waits for nothing else."""
    if active.status != "blocked":
        return None
    by_call = await approvals.of_run(driver, active.thread_id, active.id)
    pending = [approval for approval in by_call.values() if approval.state == "pending"]
    may_edit = await approvals.may_edit(driver, active.id, caller)
    found = [
        interrupt(approval_id(active.id, one.digest, one.tool_call_id), one, APPROVAL_REASON, may_edit=may_edit)
        for one in pending
    ]
    return PendingInterrupts(run_id=str(active.id), pending=found) if found else None
