"""The frames of the feed, as `docs/protocol.md` specifies them: over WebSocket and as server-sent events."""

from typing import Annotated, Any, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.accounts import Invitation
from khala.domain.chat import ThreadListEntry, WireStruct
from khala.domain.errors import LimitScope
from khala.domain.thread_changes import Delta, Snapshot

PROTOCOL = 1
SUBPROTOCOL = "khala.v1"
MAX_REVISION = 2**53 - 1
"""The largest safe integer of JavaScript."""

Revision: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """A message of the feed. `type` is its tag."""


class Subscribe(Frame, frozen=True, kw_only=True, tag="subscribe"):
    """Follow a thread, after a revision or from a snapshot on."""

    thread_id: UUID
    after: Revision | None = None
    anon_key: str | None = None
    share_key: str | None = None


class Unsubscribe(Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    """Stop following a thread."""

    thread_id: UUID


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    """Requests a pong."""


class SetPresence(Frame, frozen=True, kw_only=True, tag="presence"):
    """Set the client's presence in a thread that it follows. A null `state` ends the presence."""

    thread_id: UUID
    state: dict[str, Any] | None


class Watch(Frame, frozen=True, kw_only=True, tag="watch"):
    """Follow the account's thread list, after a revision or from a snapshot on."""

    after: Revision | None = None


class Unwatch(Frame, frozen=True, kw_only=True, tag="unwatch"):
    """Stop following the account's thread list."""


class Authenticate(Frame, frozen=True, kw_only=True, tag="authenticate"):
    """Authenticate as an account, for all later frames."""

    token: str


ClientFrame: TypeAlias = Subscribe | Unsubscribe | SetPresence | Watch | Unwatch | Authenticate | Ping


class Hello(Frame, frozen=True, kw_only=True, tag="hello", omit_defaults=False):
    """The server's first frame."""

    protocol: int = PROTOCOL
    heartbeat_seconds: int


class SnapshotFrame(Snapshot, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """A thread's current state: the first frame of a subscription without `after`, or if `after` cannot be served."""

    thread_id: UUID


class DeltaFrame(Delta, frozen=True, kw_only=True, tag="delta", tag_field="type"):
    """The changes since the previous frame, whose revision is `from`."""

    thread_id: UUID


class Participant(WireStruct, frozen=True, kw_only=True):
    """A present client. Only `state` comes from the client itself."""

    id: UUID
    user_id: UUID | None = None
    name: str | None = None
    anonymous: bool
    state: msgspec.Raw


class PresenceFrame(Frame, frozen=True, kw_only=True, tag="presence"):
    """The clients present in a thread, the latest changes first. `more` counts those left out."""

    thread_id: UUID
    participants: tuple[Participant, ...]
    more: int = 0


class AccountFrame(Frame, frozen=True, kw_only=True, tag="account"):
    """The newest entries of an account's thread list: the first frame of a watch, like a snapshot."""

    revision: int
    whole: bool
    threads: tuple[ThreadListEntry, ...]
    has_more: bool
    invitations: tuple[Invitation, ...] = ()


class AccountDeltaFrame(Frame, frozen=True, kw_only=True, tag="account"):
    """The changes of an account's thread list since the previous frame, whose revision is `from`.

    `invitations` has all open invitations, if any has changed.
    """

    since: int = msgspec.field(name="from")
    revision: int
    threads: tuple[ThreadListEntry, ...]
    removed: tuple[UUID, ...]
    invitations: tuple[Invitation, ...] | msgspec.UnsetType = msgspec.UNSET


class Authenticated(Frame, frozen=True, kw_only=True, tag="authenticated"):
    """The account of the connection from now on, or the thread that a thread token opens."""

    user_id: UUID | None = None
    thread_id: UUID | None = None


class GoneFrame(Frame, frozen=True, kw_only=True, tag="gone"):
    """The end of a subscription: the thread is gone, or the client has lost access."""

    thread_id: UUID
    code: str


class ErrorFrame(Frame, frozen=True, kw_only=True, tag="error"):
    """A frame of the client, or a subscription, failed. `path` locates the error in the client's frame.

    If a limit has refused the frame, the last four fields name it, as in a problem with status 429.
    """

    thread_id: UUID | None = None
    code: str
    message: str
    path: str | None = None
    limit: str | None = None
    scope: LimitScope | None = None
    most: str | None = None
    retry_after: int | None = None


class Pong(Frame, frozen=True, kw_only=True, tag="pong"):
    """Answers a ping."""


def encode(frame: msgspec.Struct) -> str:
    """A frame as JSON text, for a WebSocket's text message or an event's data."""
    return msgspec.json.encode(frame).decode()


def snapshot_frame(thread_id: UUID, snapshot: Snapshot) -> SnapshotFrame:
    """The frame of a snapshot."""
    return SnapshotFrame(thread_id=thread_id, **msgspec.structs.asdict(snapshot))


def delta_frame(thread_id: UUID, delta: Delta) -> DeltaFrame:
    """The frame of a delta."""
    return DeltaFrame(thread_id=thread_id, **msgspec.structs.asdict(delta))
