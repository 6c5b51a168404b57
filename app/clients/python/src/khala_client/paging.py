"""Reads lists that have pages."""

from collections.abc import AsyncGenerator
from typing import TypeVar

import msgspec

from khala_client.credentials import Keys
from khala_client.http_core import HttpCore, Params
from khala_client.wire import WireStruct, decode

T = TypeVar("T")


class _Page(WireStruct, frozen=True, kw_only=True):
    items: tuple[msgspec.Raw, ...]
    next_cursor: str | None = None


async def pages(core: HttpCore, path: str, kind: type[T], params: Params, keys: Keys | None) -> AsyncGenerator[T, None]:
    """All items of a list. A page is read when the items before it are used up."""
    cursor: str | None = None
    while True:
        page = await core.request("GET", path, _Page, params={**params, "cursor": cursor}, keys=keys)
        for item in page.items:
            yield decode(item, kind)
        if page.next_cursor is None or page.next_cursor == cursor:
            return
        cursor = page.next_cursor
