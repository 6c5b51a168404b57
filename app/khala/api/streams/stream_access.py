"""Which streams a caller has: those of their account, or those that all people without one share."""

from khala.api.context import Context
from khala.domain.access import Caller
from khala.domain.errors import NotFound, Unauthorized
from khala.store.streams.stream_rows import StreamSpace


def space_of(context: Context, caller: Caller) -> StreamSpace:
    """Return the caller's streams. Raises `NotFound` if there are none here, and `Unauthorized` without an account."""
    if context.streams.access == "off":
        raise NotFound("This server has no streams of clients.")
    if caller.user_id is None and context.streams.access != "open":
        raise Unauthorized("Streams belong to an account. Sign in first, or send an API token.")
    return StreamSpace(caller.user_id)
