"""The outcome of connecting an account: what a browser brings back, and the state that follows."""

from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.tools.mcp.accounts.authorization_http import ConnectError


class DeniedError(ConnectError):
    """The person has not allowed the access."""


class ExpiredError(ConnectError):
    """The connection was not begun by this user, has expired, or is complete."""


class AuthorizationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the redirect back: a code, or an error. `issuer` is the parameter `iss` (RFC 9207)."""

    state: str
    code: str | None = None
    issuer: str | None = None
    error: str | None = None


class CompletedConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connected account."""

    account_id: UUID
    server: str


class AccountConnection(WireStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A connected service and the state of the caller's account there.

    `expired`: the service refuses its token. `removed`: the operator no longer offers the service. `needs_scope`: a
    call needed more permissions.
    """

    name: str
    description: str
    state: Literal["connected", "expired", "disconnected", "removed"]
    tools: int = 0
    issuer: str | None = None
    scopes: tuple[str, ...] = ()
    needs_scope: bool = False
    connected_at: datetime | None = None
    used_at: datetime | None = None
