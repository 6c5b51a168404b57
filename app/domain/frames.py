"""The frames of the feed, as `docs/protocol.md` specifies them: over WebSocket and as server-sent events."""

from typing import Annotated, TypeAlias
from uuid import UUID

import msgspec

from app.domain.chat import Delta, Snapshot

PROTOCOL = 1
SUBPROTOCOL = "khala.v1"
MOST_REVISION = 2**53 - 1
"""The greatest whole number that JavaScript can count to."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """One message of the feed; `type` says which."""


class Subscribe(Frame, frozen=True, kw_only=True, tag="subscribe"):
    """Follow a thread, from after a revision or from its newest messages on."""

    thread_id: UUID
    after: Annotated[int, msgspec.Meta(ge=0, le=MOST_REVISION)] | None = None
    anon_key: str | None = None


class Unsubscribe(Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    """Follow a thread no more."""

    thread_id: UUID


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    """Asks for a pong."""


ClientFrame: TypeAlias = Subscribe | Unsubscribe | Ping


class Hello(Frame, frozen=True, kw_only=True, tag="hello", omit_defaults=False):
    """The server's first frame."""

    protocol: int = PROTOCOL
    heartbeat_seconds: int


class SnapshotFrame(Snapshot, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """A thread as it is: the first frame of a subscription without `after`, and whenever `after` cannot be served."""

    thread_id: UUID


class DeltaFrame(Delta, frozen=True, kw_only=True, tag="delta", tag_field="type"):
    """What changed; its `from` is the revision of the frame before."""

    thread_id: UUID


class Gone(Frame, frozen=True, kw_only=True, tag="gone"):
    """The thread cannot be followed any more."""

    thread_id: UUID
    code: str


class Error(Frame, frozen=True, kw_only=True, tag="error"):
    """Something that the client sent, or a subscription, failed."""

    thread_id: UUID | None = None
    code: str
    message: str


class Pong(Frame, frozen=True, kw_only=True, tag="pong"):
    """Answers a ping."""


def encode(frame: msgspec.Struct) -> str:
    """A frame as text, which is what a WebSocket's text message and an event's data are made of."""
    return msgspec.json.encode(frame).decode()


def snapshot(thread_id: UUID, found: Snapshot) -> str:
    """A snapshot's frame, encoded."""
    return encode(SnapshotFrame(thread_id=thread_id, **msgspec.structs.asdict(found)))


def delta(thread_id: UUID, found: Delta) -> str:
    """A delta's frame, encoded."""
    return encode(DeltaFrame(thread_id=thread_id, **msgspec.structs.asdict(found)))
