"""Types of request and response bodies that several surfaces share."""

from datetime import datetime
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta

from khala.domain.names import ONE_LINE

MAX_NAME_CHARACTERS = 100

Timestamp = Annotated[datetime, Meta(tz=True)]
"""A time with an offset from UTC."""
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
PersonName = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS, pattern=ONE_LINE)]
"""The name of an account or author, which others see."""

T = TypeVar("T")


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of request and response bodies: camelCase names, and fields at their default are omitted."""


class Page(ApiStruct, Generic[T], frozen=True, kw_only=True):
    """One page of a list. `nextCursor` is present if there are more pages."""

    items: list[T]
    next_cursor: str | None = None


class Items(ApiStruct, Generic[T], frozen=True, kw_only=True):
    """A complete list."""

    items: list[T]
