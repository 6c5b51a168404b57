"""Streams the answer of a run as AG-UI events: as server-sent events, or as lines of JSON."""

import re
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import structlog

from khala.api.ag_ui.event_encoder import (
    AgentEvent,
    AgentEventEncoder,
    EventId,
    IdentifiedEvent,
    reopening,
)
from khala.api.ag_ui.messages import AgentMessage, answer_messages
from khala.api.ag_ui.submission import AgentRun
from khala.api.chats.client_arguments import load_arguments
from khala.api.context import Context
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event
from khala.api.runs.run_follower import FollowedRun, RunUpdate, follow_run, read_parts
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput, KhalaError
from khala.domain.fold import Content, fold
from khala.domain.parts import Part, TextDelta
from khala.store.runs import runs
from khala.store.tools import approvals
from khala.store.tools.approvals import Approval

log = structlog.get_logger()

json_encoder = msgspec.json.Encoder()
EVENT_ID = re.compile(r"([0-9]{1,15})\.([0-9]{1,9})", re.ASCII)
PLAN_ACTIVITY = "PLAN"


def parse_event_id(text: str | None) -> EventId | None:
    """Return the id of an event. Raises `InvalidInput` for a text that is none."""
    if text is None:
        return None
    found = EVENT_ID.fullmatch(text)
    if found is None:
        raise InvalidInput("This is not the id of an event of this server.", path="Last-Event-ID")
    return int(found[1]), int(found[2])


class EventCursor(msgspec.Struct, frozen=True, kw_only=True):
    """The last event that a client has. With `reopens`, the stream opens again what was open at that event."""

    last: EventId
    reopens: bool = False


class EncodedEvents:
    """Events, and the encoder that continues after them. Streams of one run share it, so each works on a copy."""

    def __init__(self, events: Sequence[IdentifiedEvent], encoder: AgentEventEncoder) -> None:
        self.events = events
        self.encoder = encoder
        self._texts: dict[Callable[[IdentifiedEvent], str], str] = {}

    def text(self, encode: Callable[[IdentifiedEvent], str]) -> str:
        """The events in one encoding."""
        if encode not in self._texts:
            self._texts[encode] = "".join(map(encode, self.events))
        return self._texts[encode]


def as_server_sent(event: IdentifiedEvent) -> str:
    """Return the event as a server-sent event."""
    return encode_event(json_encoder.encode(event.event).decode(), _id_text(event))


def as_line(event: IdentifiedEvent) -> str:
    """Return the event as a line of JSON, with its id around it, as TanStack AI reads it."""
    event_id = _id_text(event)
    enveloped = event.event if event_id is None else {"id": event_id, "chunk": event.event}
    return json_encoder.encode(enveloped).decode() + "\n"


def _id_text(event: IdentifiedEvent) -> str | None:
    return None if event.id is None else f"{event.id[0]}.{event.id[1]}"


class EventStream:
    """The stream of one client. It ends with the run, or where the run waits for an approval.

    `before` are events that come after the first ones: the messages that the client does not have.
    """

    def __init__(
        self,
        context: Context,
        caller: Caller,
        agent_run: AgentRun,
        *,
        cursor: EventCursor | None = None,
        before: Sequence[AgentEvent] = (),
    ) -> None:
        self._context = context
        self._caller = caller
        self._agent_run = agent_run
        self._cursor = cursor
        self._before = [IdentifiedEvent(None, event) for event in before]
        self._encoder = AgentEventEncoder(agent_run.run)
        self._next_seq = 0
        self._decided_pause = 0
        """The pause that the client has decided. The stream ends at a later one."""

    async def server_sent_events(self) -> AsyncGenerator[str]:
        """Yield the stream as server-sent events."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                yield KEEP_ALIVE if batch is None else batch.text(as_server_sent)

    async def lines(self) -> AsyncGenerator[str]:
        """Yield the stream as lines of JSON. An empty line would be an error for clients, so none keeps it alive."""
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                if batch is not None:
                    yield batch.text(as_line)

    async def batches(self) -> AsyncGenerator[EncodedEvents | None]:
        """Yield the events that were committed together, and None for a keep-alive.

        A stream that the caller may no longer read ends with `RUN_ERROR`.
        """
        yield self._encoded([*self._start(), *self._before])
        run = self._agent_run.run
        followed = FollowedRun(thread_id=run.thread_id, run_id=run.run_id, queued_at=self._agent_run.queued_at)
        try:
            async with aclosing(follow_run(self._context, followed, self._caller)) as updates:
                async for update in updates:
                    part = update.text_part
                    if part is not None and self._next_seq and self._encoder.is_in_text:
                        yield self._add_text(update, part)
                        continue
                    yield await self._encode(update)
                    if self._encoder.awaited and await self._is_paused(update):
                        yield self._encoded(await self._pause())
                        return
        except KhalaError as error:
            log.warning("ag_ui_stream_failed", run_id=str(run.run_id), error=error.message)
            failed = {"type": "RUN_ERROR", "message": error.message, "code": error.code}
            yield self._encoded([IdentifiedEvent(None, failed)])

    @property
    def _key(self) -> Hashable:
        """All streams of the run under this name have the same encoder at this part, unless one began at a pause."""
        run = self._agent_run.run
        return "ag-ui", run.run_id, run.thread_name, run.run_name, self._next_seq, self._agent_run.decided

    def _add_text(self, update: RunUpdate, part: Part) -> EncodedEvents:
        """Encode a text that appends to the open message, as most parts do."""
        encoded = update.derive(self._key, partial(_encode_text, self._encoder, part))
        self._encoder, self._next_seq = encoded.encoder, part.seq + 1
        return encoded

    def _start(self) -> list[IdentifiedEvent]:
        started = self._encoder.start(self._agent_run.state)
        if self._cursor is None or self._cursor.reopens:
            return started
        return [event for event in started if event.id is not None and event.id > self._cursor.last]

    async def _encode(self, update: RunUpdate) -> EncodedEvents | None:
        if not update.parts and not update.plans:
            return None
        agent_run = self._agent_run
        run = agent_run.run
        arguments = await load_arguments(self._context.blobs.service, run.thread_id, run.functions, update.parts)
        is_first = not self._next_seq and bool(update.parts)
        if is_first and (agent_run.decided or self._cursor is not None):
            encoded = self._encoded([*_plan_events(update), *self._first_events(update.parts, arguments)])
        elif arguments:
            encoded = _encode(self._encoder, update, arguments)
        else:
            encoded = update.derive(self._key, lambda: _encode(self._encoder, update, {}))
        self._encoder = encoded.encoder
        if update.parts:
            self._next_seq = update.parts[-1].seq + 1
        return encoded

    def _first_events(self, parts: Sequence[Part], arguments: dict[str, Any]) -> list[IdentifiedEvent]:
        """Return the events of the stored parts that the client does not have."""
        cursor, merges = self._cursor, self._cursor is None
        if self._agent_run.decided:
            decided = self._agent_run.decided
            events, self._decided_pause = self._encoder.add_decided(parts, decided, arguments, merges=merges)
        else:
            events = self._encoder.add(parts, arguments, merges=merges)
        if cursor is None:
            return events
        had = [event.event for event in events if event.id is not None and event.id <= cursor.last]
        if cursor.reopens:
            return [*(IdentifiedEvent(None, event) for event in reopening(had)), *events[len(had) :]]
        return _unseen(events, cursor)

    async def _is_paused(self, update: RunUpdate) -> bool:
        """Whether the run waits for an approval that nobody has decided, since these parts."""
        encoder = self._encoder
        if not update.parts or encoder.pauses <= self._decided_pause:
            return False
        by_call = await self._approvals()
        return all(by_call[call_id].state == "pending" for call_id in encoder.awaited if call_id in by_call)

    async def _approvals(self) -> dict[str, Approval]:
        run = self._agent_run.run
        async with self._context.db.driver() as driver:
            return await approvals.of_run(driver, run.thread_id, run.run_id)

    async def _pause(self) -> list[IdentifiedEvent]:
        """Return the events that end the stream: the state, all messages, and the requests for approval."""
        run = self._agent_run.run
        async with self._context.db.snapshot() as driver:
            await runs.read_authorized(driver, run.run_id, self._caller)
            parts = await read_parts(driver, run.thread_id, run.run_id)
            by_call = await approvals.of_run(driver, run.thread_id, run.run_id)
            may_edit = await approvals.may_edit(driver, run.run_id, self._caller)
        pending = [by_call[call_id] for call_id in self._encoder.awaited if call_id in by_call]
        interrupts = [
            interrupt(self._encoder.awaited[one.tool_call_id], one, self._agent_run.reason, may_edit=may_edit)
            for one in pending
        ]
        snapshots = self._snapshots(fold((), [part.read() for part in parts]))
        ending = self._encoder.pause(interrupts, snapshots)
        return ending if self._cursor is None or self._cursor.reopens else _unseen(ending, self._cursor)

    def _snapshots(self, content: Content) -> list[AgentEvent]:
        """Return the state, and the client's messages with those of this answer."""
        agent_run = self._agent_run
        *_, state = self._encoder.start(agent_run.state)
        if not agent_run.history:
            return [state.event]
        own = answer_messages(agent_run.run.message_id, content)
        messages = [*_without(agent_run.history, own), *own]
        return [state.event, {"type": "MESSAGES_SNAPSHOT", "messages": messages}]

    def _encoded(self, events: Sequence[IdentifiedEvent]) -> EncodedEvents:
        return EncodedEvents(events, self._encoder)


def _unseen(events: Sequence[IdentifiedEvent], cursor: EventCursor) -> list[IdentifiedEvent]:
    """Return the events after the cursor. If it is at the end, the end comes again, without an id.

    A client that asks again for what follows the end has not noticed it, and ignores an id that it has had.
    """
    unseen = [event for event in events if event.id is None or event.id > cursor.last]
    if not unseen and events and events[-1].event["type"] in ("RUN_FINISHED", "RUN_ERROR"):
        return [IdentifiedEvent(None, events[-1].event)]
    return unseen


def _without(history: Sequence[AgentMessage], own: Sequence[AgentMessage]) -> list[AgentMessage]:
    """Return the messages of the history that are not of this answer: its own are told anew."""
    ids = {message["id"] for message in own}
    calls = {message["toolCallId"] for message in own if message["role"] == "tool"}
    return [one for one in history if one.get("id") not in ids and one.get("toolCallId") not in calls]


def _encode_text(before: AgentEventEncoder, part: Part) -> EncodedEvents:
    """Encode a text that appends to the open message, as most parts do."""
    encoder, data = before.fork(), part.read()
    text = data.text if isinstance(data, TextDelta) else ""
    event = encoder.add_text(part.seq, text)
    return EncodedEvents([event] if text else (), encoder)


def _encode(before: AgentEventEncoder, update: RunUpdate, arguments: dict[str, Any]) -> EncodedEvents:
    encoder = before.fork()
    events = encoder.add(update.parts, arguments)
    return EncodedEvents([*_plan_events(update), *events], encoder)


def _plan_events(update: RunUpdate) -> list[IdentifiedEvent]:
    """Return the plans that have changed. A client that attaches later gets only those that change from then on."""
    return [IdentifiedEvent(None, plan_activity(plan)) for plan in update.plans]


def plan_activity(plan: Any) -> AgentEvent:
    """Return a plan as an activity. The next one of the same plan replaces it."""
    return {
        "type": "ACTIVITY_SNAPSHOT",
        "messageId": str(plan.id),
        "activityType": PLAN_ACTIVITY,
        "content": plan,
        "replace": True,
    }


def interrupt(interrupt_id: str, approval: Approval, reason: str, *, may_edit: bool) -> dict[str, Any]:
    """Return a request for approval. `may_edit`: the caller may replace the arguments by `editedArgs`."""
    properties: dict[str, Any] = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
    if may_edit:
        properties["editedArgs"] = {"type": "object"}
    return {
        "id": interrupt_id,
        "reason": reason,
        "message": f"Allow {approval.tool}?",
        "toolCallId": approval.tool_call_id,
        "responseSchema": {"type": "object", "properties": properties, "required": ["approved"]},
        "expiresAt": approval.expires_at.isoformat(),
        # TanStack AI shows and answers an approval by this.
        "metadata": {"kind": "approval", "toolName": approval.tool, "input": approval.args},
    }
