"""The secrets of connected accounts, as they are sealed in the database."""

from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec

from khala.domain.secret_box import SecretBox, SecretError
from khala.tools.mcp.accounts.authorization_http import ClientCredentials

T = TypeVar("T")


class SealedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of an account. They are valid only for this user, server and client, whatever the row says.

    `revocation_endpoint` and `token_endpoint` are those of the issuer. `client` has the secret of a client that Khala
    has registered; that of a configured client is in the configuration alone.
    """

    user_id: UUID
    server: str
    resource: str
    access_token: str
    refresh_token: str | None
    refresh_at: datetime | None
    token_endpoint: str
    revocation_endpoint: str | None
    audience: str
    """The resource for which tokens are requested."""
    client: ClientCredentials


class PendingConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that has begun. `metadata` are those of the authorization server, as JSON."""

    server: str
    resource: str
    audience: str
    redirect_uri: str
    return_to: str
    verifier: str
    scope: str | None
    client: ClientCredentials
    metadata: str


def seal(box: SecretBox, secret: msgspec.Struct, *context: str | UUID) -> bytes:
    """Seal for a place, which the context names."""
    return box.seal(msgspec.json.encode(secret), _context(context))


def opened(box: SecretBox, sealed: bytes, kind: type[T], *context: str | UUID) -> T:
    """Open what was sealed for the same place. Raises `SecretError`."""
    try:
        return msgspec.json.decode(box.open(sealed, _context(context)), type=kind)
    except msgspec.DecodeError as error:
        raise SecretError("The sealed secret is of an earlier version.") from error


def _context(context: tuple[str | UUID, ...]) -> bytes:
    return "\0".join(map(str, context)).encode()
