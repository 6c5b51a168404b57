"""Registration of OAuth clients (RFC 7591), which anybody may do."""

import time
from typing import Any

import msgspec
from litestar import Request, post
from litestar.di import NamedDependency

from khala.api.accounts.sign_in_throttle import count_client
from khala.api.context import Context
from khala.api.http.request_origin import client_network
from khala.api.oauth.forms import MAX_FORM_BYTES, error_response
from khala.api.oauth.metadata import REGISTER, require_own_server
from khala.domain import ids, oauth
from khala.domain.oauth import ClientMetadata, OAuthError
from khala.store.accounts import oauth_clients


@post(
    REGISTER,
    status_code=201,
    include_in_schema=False,
    request_max_body_size=MAX_FORM_BYTES,
    exception_handlers={OAuthError: error_response},
)
async def register(request: Request[Any, Any, Any], context: NamedDependency[Context]) -> dict[str, Any]:
    """Register a client. It gets an id and no secret."""
    require_own_server(context)
    metadata = _decode(await request.body())
    client = oauth.checked_metadata(metadata, str(ids.new()))
    await count_client(context.db, client_network(request, context.origins))
    await oauth_clients.register(context.db, client)
    return {
        "client_id": client.id,
        "client_id_issued_at": int(time.time()),
        "client_name": client.name,
        "redirect_uris": list(client.redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def _decode(body: bytes) -> ClientMetadata:
    try:
        return msgspec.json.decode(body, type=ClientMetadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OAuthError("invalid_client_metadata", f"The metadata are invalid: {error}.") from error
