"""What requests bring and answers carry beyond the domain's own structs."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.domain.access import MAX_KEY_CHARACTERS, MIN_KEY_CHARACTERS, Role, Scope
from khala.domain.accounts import ApiToken, ClaimResult, ShareLink, User
from khala.domain.chat import RunOptions, Thread
from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.frames import MAX_REVISION
from khala.domain.parts import Part

MOST_TEXT = 100_000
"""Characters of one message."""
MOST_BODY = 1 << 20
"""Bytes of one request."""
MOST_TITLE = 200
ANON_KEY = rf"^[!-~]{{{MIN_KEY_CHARACTERS},{MAX_KEY_CHARACTERS}}}$(?!\n)"
"""A key that a client made: it travels in a header, so it has visible ASCII characters only. Python's `$` is no end."""

NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON; a backslash that is itself escaped begins none."""

MOST_ATTACHMENTS = 10
MOST_CLAIMS = 100
MOST_NAME = 100

Moment = Annotated[datetime, Meta(tz=True)]
"""A time that says where on Earth it is meant."""
Text = Annotated[str, Meta(max_length=1024)]
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]

Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1)]
"""No set: decoding one drops duplicates without an error."""

T = TypeVar("T")


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A request's or an answer's body."""


class NewThread(Body, frozen=True, kw_only=True):
    """A thread to be made. Send the id and the key of your own making, and the request may be repeated."""

    id: UUID | None = None
    anon_key: Annotated[str, Meta(pattern=ANON_KEY)] | None = None
    title: Annotated[str, Meta(max_length=MOST_TITLE)] | None = None


class MadeThread(Body, frozen=True, kw_only=True):
    """The thread; and the key of an anonymous one, which is told only now."""

    thread: Thread
    anon_key: str | None = None


class ThreadChanges(Body, frozen=True, kw_only=True):
    """What shall change of a thread; what is absent stays."""

    title: Annotated[str, Meta(max_length=MOST_TITLE)] | msgspec.UnsetType | None = msgspec.UNSET
    visibility: Literal["private", "link", "public"] | msgspec.UnsetType = msgspec.UNSET
    active_leaf: UUID | msgspec.UnsetType = msgspec.UNSET


class Send(Body, frozen=True, kw_only=True):
    """A message to be answered. Send an id of your own making, and the request may be repeated."""

    text: str
    message_id: UUID | None = None
    parent_id: UUID | msgspec.UnsetType | None = msgspec.UNSET
    attachments: Annotated[Sequence[UUID], Meta(max_length=MOST_ATTACHMENTS)] = ()
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class Regenerate(Body, frozen=True, kw_only=True):
    """A message that is to have another answer. Send an id of your own making for that, and it may be repeated."""

    message_id: UUID
    answer_id: UUID | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class Decision(Body, frozen=True, kw_only=True):
    """What becomes of a call that waits. `digest` is that of the call which was seen; `edited_args` replace its own."""

    approved: bool
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    edited_args: dict[str, Any] | None = None
    digest: Annotated[str, Meta(max_length=64)] | None = None


class Cancel(Body, frozen=True, kw_only=True):
    """Why a run is called off, for the log."""

    reason: Annotated[str, Meta(max_length=200)] | None = None


class Claim(Body, frozen=True, kw_only=True):
    """The key of the thread that is to be the caller's."""

    anon_key: Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]


class KeyedThread(Body, frozen=True, kw_only=True):
    """A thread that is to be the caller's, and its key."""

    thread_id: UUID
    anon_key: Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]


class Claims(Body, frozen=True, kw_only=True):
    """Threads that are to be the caller's, each claimed by itself."""

    items: Annotated[list[KeyedThread], Meta(max_length=MOST_CLAIMS)]


class ReadUpTo(Body, frozen=True, kw_only=True):
    """The revision up to which the user has read."""

    revision: Annotated[int, Meta(ge=0, le=MAX_REVISION)]


class Access(Body, frozen=True, kw_only=True):
    """What the caller may do in a thread, and until when if that ends by itself."""

    role: Role
    expires_at: datetime | None = None


class NewRole(Body, frozen=True, kw_only=True):
    """What a user may do in the thread from now on."""

    role: Role


class NewLink(Body, frozen=True, kw_only=True):
    """A share link to be made."""

    role: Literal["viewer", "editor"]
    expires_at: Moment | None = None


class MadeLink(ShareLink, frozen=True, kw_only=True):
    """A share link, and its key, which is told only now; `url` opens it in a browser, with the key behind `#`."""

    share_key: str
    url: str


class Registration(Body, frozen=True, kw_only=True):
    """An account to be made, and anonymous threads to take along."""

    email: Text
    password: Text
    name: Name | None = None
    claim: Annotated[list[KeyedThread], Meta(max_length=MOST_CLAIMS)] = []


class Login(Body, frozen=True, kw_only=True):
    """Somebody signs in, and takes anonymous threads along."""

    email: Text
    password: Text
    claim: Annotated[list[KeyedThread], Meta(max_length=MOST_CLAIMS)] = []


class SignedIn(User, frozen=True, kw_only=True):
    """The account, and what became of the claims."""

    claimed: tuple[ClaimResult, ...]


class SignedOut(Body, frozen=True, kw_only=True):
    """The session is over. Going to `endSessionUrl` ends it at the OpenID Provider, too."""

    end_session_url: str | None = None


class NewPassword(Body, frozen=True, kw_only=True):
    """The password that is to be; `current` of an account that has one, `email` to sign in by of one that has none."""

    new: Text
    current: Text | None = None
    email: Text | None = None


class Farewell(Body, frozen=True, kw_only=True):
    """The account's password, where it has one."""

    password: Text | None = None


class Profile(Body, frozen=True, kw_only=True):
    """What the user is called."""

    name: Name | None


class NewToken(Body, frozen=True, kw_only=True):
    """An API token to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=MOST_NAME)]
    scopes: Scopes = ("read", "write")
    expires_at: Moment | None = None


class MadeToken(ApiToken, frozen=True, kw_only=True):
    """An API token, and its secret, which is told only now."""

    token: str


class Provider(Body, frozen=True, kw_only=True):
    """An OpenID Provider by whom one may sign in; `name` is for people."""

    name: str


class Ways(Body, frozen=True, kw_only=True, omit_defaults=False):
    """How one may sign in."""

    registration: bool
    oidc: Provider | None


class Page(Body, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `nextCursor` leads on if there is more."""

    items: list[T]
    next_cursor: str | None = None


class Older(Body, Generic[T], frozen=True, kw_only=True):
    """Older messages, in order."""

    items: tuple[T, ...]
    has_more: bool


class PartPage(Body, frozen=True, kw_only=True):
    """Parts of a run; ask on with `after=nextAfter` until `done`, which says that the run has ended and this is all."""

    items: list[Part]
    next_after: int
    done: bool


class Items(Body, Generic[T], frozen=True, kw_only=True):
    """A whole list."""

    items: list[T]


def sendable(text: str, *, alone: bool = True) -> str:
    """The text of a message, if it is one; it may be empty where it is not alone."""
    if len(text) > MOST_TEXT:
        raise PayloadTooLarge(f"A message has at most {MOST_TEXT:,} characters.")
    if alone and not text.strip():
        raise InvalidInput("A message needs text.", path="text")
    return storable(text, "text")


def storable(text: str, path: str) -> str:
    """The text, unless it has a NUL character, which Postgres can't store."""
    if "\0" in text:
        raise InvalidInput("NUL characters can't be stored.", path=path)
    return text


def check_storable(value: Any, path: str) -> None:
    """Raise `InvalidInput` if the value, which becomes JSON, has a NUL character anywhere: Postgres can't store it."""
    try:
        encoded = msgspec.json.encode(value)
    except RecursionError as error:
        raise InvalidInput("This is nested too deeply.", path=path) from error
    if NUL.search(encoded):
        raise InvalidInput("NUL characters can't be stored.", path=path)


def future(moment: datetime | None) -> datetime | None:
    """When something is to end, if that is to come."""
    if moment is not None and not datetime.now(UTC) < moment < datetime.now(UTC) + timedelta(days=3660):
        raise InvalidInput("This must be in the future, and within ten years.", path="expiresAt")
    return moment
