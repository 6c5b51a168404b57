"""Who asks: from the request's headers. So far whoever holds a thread's anonymous key."""

from typing import Annotated

from litestar.params import Parameter

from app.domain.access import Caller, key_hash
from app.domain.errors import Unauthorized

AnonKey = Annotated[
    str | None,
    Parameter(header="X-Anon-Key", required=False, description="The secret that opens an anonymous thread."),
]


async def caller(anon_key: AnonKey = None) -> Caller:
    """The caller of this request, known or not; each command checks what they may do."""
    return Caller(anon_key_hash=key_hash(anon_key) if anon_key else None)


def somebody(who: Caller) -> Caller:
    """The caller, if they showed anything at all."""
    if who.anon_key_hash is None:
        raise Unauthorized("Send the thread's key as X-Anon-Key.")
    return who
