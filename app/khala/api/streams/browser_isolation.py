"""Keeps browsers from treating streams as pages or code of the server: their clients choose contents and type."""

from litestar.handlers import BaseRouteHandler

from khala.api.http.request_origin import Connection
from khala.domain.errors import Forbidden

HEADERS = {"Content-Security-Policy": "sandbox; default-src 'none'"}
"""Headers of all responses. A browser that shows a stream treats it as a page of no origin, without scripts."""
CODE_DESTINATIONS = frozenset({
    "audioworklet", "json", "paintworklet", "script", "serviceworker", "sharedworker", "style", "worker", "xslt",
})  # fmt: skip
"""Values of `Sec-Fetch-Dest` of what a page executes or trusts as its own."""


async def refuse_code(connection: Connection, _: BaseRouteHandler) -> None:
    """Raise `Forbidden` if a browser asks for code of a page. A guard of routes.

    It is `async` because Litestar calls others in a thread.
    """
    if connection.headers.get("sec-fetch-dest") in CODE_DESTINATIONS:
        raise Forbidden("A stream is no code of a page.")
