"""Accounts and what belongs to them, as they travel."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from khala.domain.access import Role, Scope
from khala.domain.chat import WireStruct


class Identity(WireStruct, frozen=True, kw_only=True):
    """Somebody whom an OpenID Provider vouches for."""

    issuer: str
    subject: str
    email: str | None = None
    """Only where the provider has verified it."""
    name: str | None = None


class LinkedIdentity(WireStruct, frozen=True, kw_only=True):
    """A way to sign in to an account at an OpenID Provider."""

    issuer: str
    email: str | None = None


class User(WireStruct, frozen=True, kw_only=True):
    """An account. `password` says whether it can be signed in to by one."""

    id: UUID
    name: str | None = None
    email: str | None = None
    password: bool
    identities: tuple[LinkedIdentity, ...]
    created_at: datetime


class Session(WireStruct, frozen=True, kw_only=True):
    """A browser that is signed in; `current` is the one that asks."""

    id: UUID
    current: bool
    user_agent: str | None = None
    network: str | None = None
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


class ApiToken(WireStruct, frozen=True, kw_only=True):
    """An API token, without its secret."""

    id: UUID
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime | None = None


class Member(WireStruct, frozen=True, kw_only=True):
    """A user with a role in a thread, or one who is `invited` to have it and may only read until they accept."""

    user_id: UUID
    name: str | None = None
    role: Role
    status: Literal["member", "invited"]


class Invitation(WireStruct, frozen=True, kw_only=True):
    """A role in a thread that the account may accept or decline; `invited_by` is what the sender is called now."""

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


class ClaimResult(WireStruct, frozen=True, kw_only=True):
    """What became of one claim among several: without `code` the thread is the caller's."""

    thread_id: UUID
    code: str | None = None
