"""The state of a thread as its frames tell it: pure functions, without sockets or clocks."""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID

import msgspec

from khala_client.content import Finish, Part, PartData, RunFailure
from khala_client.fold import fold
from khala_client.models import ENDED_STATUSES, Delta, Message, Snapshot, ThreadInfo
from khala_client.plan_models import PlanEntry
from khala_client.wire import WireStruct, decode, encode

MAX_MESSAGES = 500
"""Messages that a state keeps. Older ones that have ended are left out, and can be read over REST."""


class MessageState(Message, frozen=True, kw_only=True):
    """A message with its content. `failure` is the error of its run.

    `head_seq` is the number of parts that the server has, as its newest head says.
    """

    failure: RunFailure | None = None
    head_seq: int = 0


class ThreadState(WireStruct, frozen=True, kw_only=True):
    """A thread at one revision: its newest messages in order, and its plans, the newest first.

    It is an immutable value. `revision` is the cursor with which a follow continues.
    """

    revision: int
    thread: ThreadInfo
    messages: tuple[MessageState, ...]
    has_more: bool
    plans: tuple[PlanEntry, ...] = ()

    def to_json(self) -> bytes:
        """The state as JSON, to store it and to continue from it later."""
        return encode(self)

    @classmethod
    def from_json(cls, stored: bytes) -> "ThreadState":
        """The state that `to_json` has returned. Raises `ServerError` if it is not one."""
        return decode(stored, cls)

    def message(self, message_id: UUID) -> MessageState | None:
        """The message with this id, None if it is not loaded."""
        return next((one for one in self.messages if one.id == message_id), None)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a delta, and the state after it, which is the same unless the delta was applied.

    `stale`: its revision is known. `gap`: an earlier revision is missing. `broken`: parts of a message are missing, so
    only a snapshot helps.
    """

    outcome: Literal["applied", "stale", "gap", "broken"]
    state: ThreadState
    changed: tuple[MessageState, ...] = ()


def from_snapshot(snapshot: Snapshot) -> ThreadState:
    """The state of a snapshot. It replaces any earlier state."""
    return ThreadState(
        revision=snapshot.revision,
        thread=snapshot.thread,
        messages=tuple(_with_head(_empty(one, seq=one.seq), one) for one in snapshot.messages),
        has_more=snapshot.has_more,
        plans=snapshot.plans,
    )


def apply_delta(state: ThreadState, delta: Delta, *, max_messages: int = MAX_MESSAGES) -> Applied:
    """Apply a delta. Raises `ServerError` if a part does not fit its kind."""
    if delta.revision <= state.revision:
        return Applied(outcome="stale", state=state)
    if delta.since != state.revision:
        return Applied(outcome="gap", state=state)
    messages = _with_heads(state, delta.messages)
    if not _add_parts(messages, delta.parts, has_more=state.has_more) or any(map(_lacks_parts, messages.values())):
        return Applied(outcome="broken", state=state)
    touched = {one.id for one in delta.messages} | {part.message_id for part in delta.parts}
    changed = tuple(message for message in messages.values() if message.id in touched)
    ordered, has_more = _newest(tuple(messages.values()), max_messages)
    after = ThreadState(
        revision=delta.revision,
        thread=delta.thread or msgspec.structs.replace(state.thread, revision=delta.revision),
        messages=ordered,
        has_more=state.has_more or has_more,
        plans=_with_plans(state.plans, delta.plans),
    )
    return Applied(outcome="applied", state=after, changed=changed)


def _empty(head: Message, *, seq: int) -> MessageState:
    fields = msgspec.structs.asdict(head)
    return MessageState(**{**fields, "content": head.content or (), "seq": seq})


def _with_heads(state: ThreadState, heads: Sequence[Message]) -> dict[UUID, MessageState]:
    """The messages with these heads, in order. A delta has its heads in the order of their last change."""
    messages = {message.id: message for message in state.messages}
    oldest = state.messages[0].created_at if state.messages and state.has_more else None
    for head in sorted(heads, key=lambda one: one.created_at):
        own = messages.get(head.id)
        if own is not None:
            messages[head.id] = _with_head(own, head)
        elif oldest is None or head.created_at >= oldest:
            empty = _empty(msgspec.structs.replace(head, content=None), seq=0)
            messages[head.id] = _with_head(empty, head)
    return messages


def _with_head(own: MessageState, head: Message) -> MessageState:
    """Status and finish are those of the head. Content and `seq` are those of the parts here, if they are newer."""
    from_head = head.content is not None and head.seq >= own.seq
    fields = msgspec.structs.asdict(head) | {
        "content": head.content if from_head else own.content,
        "seq": head.seq if from_head else own.seq,
        "finish": head.finish or own.finish,
    }
    return MessageState(**fields, failure=own.failure, head_seq=head.seq)


def _add_parts(messages: dict[UUID, MessageState], parts: Sequence[Part], *, has_more: bool) -> bool:
    """Fold parts into their messages. False if one is missing before them."""
    by_message: dict[UUID, list[Part]] = {}
    for part in parts:
        by_message.setdefault(part.message_id, []).append(part)
    for message_id, own in by_message.items():
        message = messages.get(message_id)
        if message is None and has_more:
            continue  # Of an older message that is not loaded.
        after = None if message is None else with_parts(message, own)
        if after is None:
            return False
        messages[message_id] = after
    return True


def with_parts(message: MessageState, parts: Sequence[Part]) -> MessageState | None:
    """The message after its next parts, without those that it has already. None if one is missing."""
    fresh: list[PartData] = []
    for part in sorted(parts, key=lambda one: one.seq):
        expected = message.seq + len(fresh)
        if part.seq > expected:
            return None
        if part.seq == expected:
            fresh.append(part.read())
    if not fresh:
        return message
    finish = next((part for part in fresh if isinstance(part, Finish)), message.finish)
    failure = next((part for part in fresh if isinstance(part, RunFailure)), message.failure)
    content, seq = fold(message.content or (), fresh), message.seq + len(fresh)
    return msgspec.structs.replace(message, content=content, seq=seq, finish=finish, failure=failure)


def _lacks_parts(message: MessageState) -> bool:
    """Whether it has ended by its head, and some of its parts have not arrived."""
    return message.status in ENDED_STATUSES and message.seq < message.head_seq


def _with_plans(held: tuple[PlanEntry, ...], changed: Sequence[PlanEntry]) -> tuple[PlanEntry, ...]:
    if not changed:
        return held
    plans = {plan.id: plan for plan in held} | {plan.id: plan for plan in changed}
    return tuple(sorted(plans.values(), key=lambda plan: plan.id, reverse=True))


def _newest(messages: tuple[MessageState, ...], limit: int) -> tuple[tuple[MessageState, ...], bool]:
    """The newest messages, and those before them that have not ended; and whether any was left out."""
    old = messages[: max(0, len(messages) - limit)]
    kept = tuple(one for one in old if not one.has_ended)
    return kept + messages[len(old) :], len(kept) < len(old)
