"""The wire structs of accounts: users, sessions, tokens, members, invitations and share links."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from khala.domain.access import Role, Scope, ServiceScope
from khala.domain.chat import WireStruct


class Identity(WireStruct, frozen=True, kw_only=True):
    """A user as an OpenID Provider identifies them."""

    issuer: str
    subject: str
    email: str | None = None
    """Only if the provider has verified it."""
    name: str | None = None


class LinkedIdentity(WireStruct, frozen=True, kw_only=True):
    """An identity at an OpenID Provider by which a user can sign in to an account."""

    issuer: str
    email: str | None = None


class User(WireStruct, frozen=True, kw_only=True):
    """An account. `password` tells whether the user can sign in with a password."""

    id: UUID
    name: str | None = None
    email: str | None = None
    password: bool
    identities: tuple[LinkedIdentity, ...]
    created_at: datetime
    admin: bool = False
    """Whether the caller is an administrator of the server by the credential of this request."""


class Session(WireStruct, frozen=True, kw_only=True):
    """A signed-in browser. `current` marks the one that made the request."""

    id: UUID
    current: bool
    user_agent: str | None = None
    network: str | None = None
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


class ApiToken(WireStruct, frozen=True, kw_only=True):
    """An API token, without its secret. `agents` are those whose runs a worker's token may execute."""

    id: UUID
    name: str
    scopes: tuple[Scope, ...]
    agents: tuple[str, ...] = ()
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime | None = None


class Member(WireStruct, frozen=True, kw_only=True):
    """A user with a role in a thread. A user who is `invited` may only read until they accept the role."""

    user_id: UUID
    name: str | None = None
    role: Role
    status: Literal["member", "invited"]


class Invitation(WireStruct, frozen=True, kw_only=True):
    """A role in a thread that the account may accept or decline. `invited_by` is the sender's current name."""

    thread_id: UUID
    title: str | None = None
    role: Role
    inviter_id: UUID | None = None
    invited_by: str | None = None
    created_at: datetime


class ShareLink(WireStruct, frozen=True, kw_only=True):
    """A share link, without its key."""

    id: UUID
    role: Role
    created_at: datetime
    expires_at: datetime | None = None


class ThreadToken(WireStruct, frozen=True, kw_only=True):
    """A thread token, without its secret. It gives whoever has it this role in one thread, until it expires."""

    id: UUID
    role: Role
    created_at: datetime
    expires_at: datetime


class ServiceToken(WireStruct, frozen=True, kw_only=True):
    """A token of a service, without its secret."""

    id: UUID
    service: str
    scopes: tuple[ServiceScope, ...]
    user_issuer: str
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime | None = None


class ClaimResult(WireStruct, frozen=True, kw_only=True):
    """The result of one of several claims: an error `code`, or none if the thread is now the caller's."""

    thread_id: UUID
    code: str | None = None
