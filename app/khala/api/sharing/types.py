"""Request and response bodies of sharing."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from khala.api.types import ApiStruct, Timestamp
from khala.domain.access import MAX_KEY_CHARACTERS, Role
from khala.domain.accounts import ShareLink, ThreadToken
from khala.domain.frames import MAX_REVISION

MAX_CLAIMS = 100
MAX_TOKEN_SECONDS = 7 * 24 * 3600
"""The longest life of a thread token."""


class ClaimRequest(ApiStruct, frozen=True, kw_only=True):
    """The key of the anonymous thread to claim."""

    anon_key: Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]


class ThreadClaim(ApiStruct, frozen=True, kw_only=True):
    """An anonymous thread to claim, and its key."""

    thread_id: UUID
    anon_key: Annotated[str, Meta(max_length=MAX_KEY_CHARACTERS)]


class ClaimsRequest(ApiStruct, frozen=True, kw_only=True):
    """Anonymous threads to claim. Each claim succeeds or fails independently."""

    items: Annotated[list[ThreadClaim], Meta(max_length=MAX_CLAIMS)]


class ReadPosition(ApiStruct, frozen=True, kw_only=True):
    """The revision up to which the user has read the thread."""

    revision: Annotated[int, Meta(ge=0, le=MAX_REVISION)]


class InvitationByAddress(ApiStruct, frozen=True, kw_only=True):
    """The address by which an account signs in, and the role that it is invited to have."""

    email: Annotated[str, Meta(min_length=3, max_length=320)]
    role: Role


class NewThreadToken(ApiStruct, frozen=True, kw_only=True):
    """A thread token to create. It expires after `expires_in` seconds."""

    role: Literal["viewer", "editor"]
    expires_in: Annotated[int, Meta(ge=1, le=MAX_TOKEN_SECONDS)] = 3600


class CreatedThreadToken(ThreadToken, frozen=True, kw_only=True):
    """A thread token and its secret, which is returned only once."""

    token: str


class ThreadAccess(ApiStruct, frozen=True, kw_only=True):
    """The caller's role in a thread, and when it expires, if it does."""

    role: Role
    expires_at: datetime | None = None


class NewRole(ApiStruct, frozen=True, kw_only=True):
    """The new role of a user in the thread."""

    role: Role


class NewLink(ApiStruct, frozen=True, kw_only=True):
    """A share link to create."""

    role: Literal["viewer", "editor"]
    expires_at: Timestamp | None = None


class CreatedLink(ShareLink, frozen=True, kw_only=True):
    """A share link and its key, which is returned only once. `url` opens the thread in a browser."""

    share_key: str
    url: str
