"""Who asks: from the request's headers. So far whoever holds a thread's anonymous key."""

from typing import Annotated

from litestar.openapi.spec import SecurityScheme
from litestar.params import HeaderParameter

from app.domain.access import Caller, key_hash
from app.domain.errors import Unauthorized

SCHEMES = {
    "anonKey": SecurityScheme(
        type="apiKey",
        security_scheme_in="header",
        name="X-Anon-Key",
        description="The secret that opens an anonymous thread: the client's own, or told once when it is made.",
    )
}
"""How callers show who they are, for the OpenAPI document."""
BY_KEY: list[dict[str, list[str]]] = [{"anonKey": []}]
"""For the OpenAPI document: this operation needs the thread's key."""

AnonKey = Annotated[str | None, HeaderParameter(name="X-Anon-Key", include_in_schema=False)]


async def caller(anon_key: AnonKey = None) -> Caller:
    """The caller of this request, known or not; each command checks what they may do."""
    return Caller(anon_key_hash=key_hash(anon_key) if anon_key else None)


def somebody(who: Caller) -> Caller:
    """The caller, if they showed anything at all."""
    if who.anon_key_hash is None:
        raise Unauthorized("Send the thread's key as X-Anon-Key.")
    return who
