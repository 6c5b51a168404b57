"""Request and response bodies of accounts."""

from typing import Annotated

import msgspec
from msgspec import Meta

from khala.api.sharing.types import MAX_CLAIMS, ThreadClaim
from khala.api.types import ApiStruct, Name, PersonName, Timestamp
from khala.domain.access import Scope
from khala.domain.accounts import ApiToken, ClaimResult, User
from khala.domain.agents import MAX_AGENTS, AgentName

ShortText = Annotated[str, Meta(max_length=1024)]
Scopes = Annotated[tuple[Scope, ...], Meta(min_length=1)]
"""A tuple, because decoding a set drops duplicates without an error."""
TokenAgents = Annotated[tuple[AgentName, ...], Meta(max_length=MAX_AGENTS)]


class Registration(ApiStruct, frozen=True, kw_only=True):
    """An account to create, and anonymous threads to claim for it."""

    email: ShortText
    password: ShortText
    name: PersonName | None = None
    claim: Annotated[list[ThreadClaim], Meta(max_length=MAX_CLAIMS)] = msgspec.field(default_factory=list)


class Login(ApiStruct, frozen=True, kw_only=True):
    """The credentials of an account, and anonymous threads to claim for it."""

    email: ShortText
    password: ShortText
    claim: Annotated[list[ThreadClaim], Meta(max_length=MAX_CLAIMS)] = msgspec.field(default_factory=list)


class SignedInUser(User, frozen=True, kw_only=True):
    """The account, and the result of each claim."""

    claimed: tuple[ClaimResult, ...]


class SignedOut(ApiStruct, frozen=True, kw_only=True):
    """The session has ended. To end the session at the OpenID Provider too, go to `endSessionUrl`."""

    end_session_url: str | None = None


class NewPassword(ApiStruct, frozen=True, kw_only=True):
    """The new password.

    An account that has a password must send it as `current`. An account that has none must send the `email` to sign in
    with.
    """

    new: ShortText
    current: ShortText | None = None
    email: ShortText | None = None


class AccountDeletion(ApiStruct, frozen=True, kw_only=True):
    """The account's password. An account without a password sends none."""

    password: ShortText | None = None


class ProfileChanges(ApiStruct, frozen=True, kw_only=True):
    """The user's new name, or null for none."""

    name: PersonName | None


class NewToken(ApiStruct, frozen=True, kw_only=True):
    """An API token to create.

    A worker's token has the scope `execute` alone, and `agents`: the remote agents whose runs it may execute.
    """

    name: Name
    scopes: Scopes = ("read", "write")
    agents: TokenAgents = ()
    expires_at: Timestamp | None = None


class CreatedToken(ApiToken, frozen=True, kw_only=True):
    """An API token and its secret. The secret is returned only once."""

    token: str


class SignInProvider(ApiStruct, frozen=True, kw_only=True):
    """An OpenID Provider that users can sign in with. `name` is for display."""

    name: str


class SignInMethods(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The ways to sign in to this server, and what it allows.

    `public_threads` says whether threads can be open to everybody, `undo_seconds` how long a deletion can be undone.
    """

    registration: bool
    oidc: SignInProvider | None
    public_threads: bool
    undo_seconds: int
