"""Parameters and pages that the routes of the console share."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from litestar import Controller
from litestar.di import Provide
from litestar.params import QueryParameter
from litestar.types import Dependencies

from khala.api.accounts.authentication import BY_ACCOUNT, SERVICE_SCOPE
from khala.api.console.access import admin
from khala.api.console.cursors import MAX_CURSOR_CHARACTERS
from khala.store.console.pages import MAX_PAGE, ConsoleStruct

T = TypeVar("T")

Cursor = Annotated[
    str | None,
    QueryParameter(description="The `nextCursor` of the previous page.", max_length=MAX_CURSOR_CHARACTERS),
]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="The maximum number of items.")]
MAX_SEARCH_CHARACTERS = 200
Search = Annotated[
    str | None, QueryParameter(description="An id, or a part of a shown text.", max_length=MAX_SEARCH_CHARACTERS)
]

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")


class ConsolePage(ConsoleStruct, Generic[T], frozen=True, kw_only=True):
    """One page of a list. Without `nextCursor` there is no more."""

    items: list[T]
    next_cursor: str | None


class ExaminedPage(ConsolePage[T], Generic[T], frozen=True, kw_only=True):
    """A page that may be shorter than its limit. Matches after `examinedUntil` are in it or an earlier one."""

    examined_until: datetime | None


def page_of(found: list[T], limit: int, cursor_of: Callable[[T], str | None]) -> ConsolePage[T]:
    """One page of items that were read with a limit of one more. `cursor_of` its last item begins the next page."""
    return ConsolePage(items=found[:limit], next_cursor=cursor_of(found[limit - 1]) if len(found) > limit else None)


CONSOLE: dict[str, Any] = {"scope": "account", SERVICE_SCOPE: "admin"}
"""The options of all routes: an API token needs the scope `account`, and a service token the scope `admin`."""


class ConsoleController(Controller):
    """Base of the controllers: administrators may use their routes."""

    tags = ("Console",)
    security = BY_ACCOUNT
    opt = CONSOLE
    dependencies: Dependencies = {"admin": Provide(admin)}  # noqa: RUF012  # Litestar reads the attribute of the class
