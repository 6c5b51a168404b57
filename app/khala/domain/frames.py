"""The frames of the feed, as `docs/protocol.md` specifies them: over WebSocket and as server-sent events."""

from typing import Annotated, Any, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.accounts import Invitation
from khala.domain.chat import Delta, Snapshot, ThreadListEntry, WireStruct

PROTOCOL = 1
SUBPROTOCOL = "khala.v1"
MAX_REVISION = 2**53 - 1
"""The greatest whole number that JavaScript can count to."""

Revision: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_REVISION)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", omit_defaults=True):
    """One message of the feed; `type` says which."""


class Subscribe(Frame, frozen=True, kw_only=True, tag="subscribe"):
    """Follow a thread, from after a revision or from its newest messages on."""

    thread_id: UUID
    after: Revision | None = None
    anon_key: str | None = None
    share_key: str | None = None


class Unsubscribe(Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    """Follow a thread no more."""

    thread_id: UUID


class Ping(Frame, frozen=True, kw_only=True, tag="ping"):
    """Asks for a pong."""


class SetPresence(Frame, frozen=True, kw_only=True, tag="presence"):
    """Be present in a thread that is followed, with a state of the client's own; None leaves."""

    thread_id: UUID
    state: dict[str, Any] | None


class Watch(Frame, frozen=True, kw_only=True, tag="watch"):
    """Follow the account's list of threads, from after a revision or as it is."""

    after: Revision | None = None


class Unwatch(Frame, frozen=True, kw_only=True, tag="unwatch"):
    """Follow the account's list no more."""


class Authenticate(Frame, frozen=True, kw_only=True, tag="authenticate"):
    """Show an account, for what is asked for from now on."""

    token: str


ClientFrame: TypeAlias = Subscribe | Unsubscribe | SetPresence | Watch | Unwatch | Authenticate | Ping


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


class Participant(WireStruct, frozen=True, kw_only=True):
    """Somebody who is present; only what `state` says is the client's own word."""

    id: UUID
    user_id: UUID | None = None
    name: str | None = None
    anonymous: bool
    state: msgspec.Raw


class PresenceFrame(Frame, frozen=True, kw_only=True, tag="presence"):
    """Who is present in a thread, those who changed last first, and how many `more` there are."""

    thread_id: UUID
    participants: tuple[Participant, ...]
    more: int = 0


class AccountFrame(Frame, frozen=True, kw_only=True, tag="account"):
    """The newest of an account's list of threads: the first frame of a watch without `after`, as with snapshots."""

    revision: int
    whole: bool
    threads: tuple[ThreadListEntry, ...]
    has_more: bool
    invitations: tuple[Invitation, ...] = ()


class AccountDeltaFrame(Frame, frozen=True, kw_only=True, tag="account"):
    """What changed in an account's list; its `from` is the revision of the frame before.

    `invitations` are all that are open, if one has changed.
    """

    since: int = msgspec.field(name="from")
    revision: int
    threads: tuple[ThreadListEntry, ...]
    removed: tuple[UUID, ...]
    invitations: tuple[Invitation, ...] | msgspec.UnsetType = msgspec.UNSET


class Authenticated(Frame, frozen=True, kw_only=True, tag="authenticated"):
    """The account that the connection acts for from now on."""

    user_id: UUID


class GoneFrame(Frame, frozen=True, kw_only=True, tag="gone"):
    """The thread cannot be followed any more."""

    thread_id: UUID
    code: str


class ErrorFrame(Frame, frozen=True, kw_only=True, tag="error"):
    """Something that the client sent, or a subscription, failed. `path` names the place in the client's frame."""

    thread_id: UUID | None = None
    code: str
    message: str
    path: str | None = None


class Pong(Frame, frozen=True, kw_only=True, tag="pong"):
    """Answers a ping."""


def encode(frame: msgspec.Struct) -> str:
    """A frame as text, which is what a WebSocket's text message and an event's data are made of."""
    return msgspec.json.encode(frame).decode()


def snapshot_frame(thread_id: UUID, found: Snapshot) -> SnapshotFrame:
    """A snapshot's frame."""
    return SnapshotFrame(thread_id=thread_id, **msgspec.structs.asdict(found))


def delta_frame(thread_id: UUID, found: Delta) -> DeltaFrame:
    """A delta's frame."""
    return DeltaFrame(thread_id=thread_id, **msgspec.structs.asdict(found))
