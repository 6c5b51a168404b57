"""What requests bring and answers carry beyond the domain's own structs."""

from typing import Annotated, Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from app.domain.access import LONGEST_KEY, SHORTEST_KEY
from app.domain.chat import RunOptions, Thread
from app.domain.errors import InvalidInput, PayloadTooLarge
from app.domain.parts import Part

MOST_TEXT = 100_000
"""Characters of one message."""
MOST_BODY = 1 << 20
"""Bytes of one request."""
MOST_TITLE = 200
ANON_KEY = rf"^[!-~]{{{SHORTEST_KEY},{LONGEST_KEY}}}$(?!\n)"
"""A key that a client made: it travels in a header, so it has visible ASCII characters only. Python's `$` is no end."""

T = TypeVar("T")


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A request's or an answer's body."""


class NewThread(Body, frozen=True, kw_only=True):
    """A thread to be made. Send the id and the key of your own making, and the request may be repeated."""

    id: UUID | None = None
    anon_key: Annotated[str, Meta(pattern=ANON_KEY)] | None = None
    title: Annotated[str, Meta(max_length=MOST_TITLE)] | None = None


class MadeThread(Body, frozen=True, kw_only=True):
    """The thread; and its key, which is told only now."""

    thread: Thread
    anon_key: str | None = None


class ThreadChanges(Body, frozen=True, kw_only=True):
    """What shall change of a thread; what is absent stays."""

    title: Annotated[str, Meta(max_length=MOST_TITLE)] | msgspec.UnsetType | None = msgspec.UNSET


class Send(Body, frozen=True, kw_only=True):
    """A message to be answered. Send an id of your own making, and the request may be repeated."""

    text: str
    message_id: UUID | None = None
    parent_id: UUID | None = None
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class Cancel(Body, frozen=True, kw_only=True):
    """Why a run is called off, for the log."""

    reason: Annotated[str, Meta(max_length=200)] | None = None


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


def sendable(text: str) -> str:
    """The text of a message, if it is one."""
    if len(text) > MOST_TEXT:
        raise PayloadTooLarge(f"A message has at most {MOST_TEXT:,} characters.")
    if not text.strip():
        raise InvalidInput("A message needs text.", path="text")
    return storable(text, "text")


def storable(text: str, path: str) -> str:
    """The text, unless it has a NUL character, which Postgres can't store."""
    if "\0" in text:
        raise InvalidInput("NUL characters can't be stored.", path=path)
    return text
