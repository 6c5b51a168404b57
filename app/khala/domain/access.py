"""Who asks, what opens a thread, and what each role may do."""

import hashlib
import hmac
from datetime import datetime
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from khala.domain.errors import Forbidden, InvalidInput

MIN_KEY_CHARACTERS = 32
MAX_KEY_CHARACTERS = 256

Role: TypeAlias = Literal["viewer", "editor", "owner"]
Scope: TypeAlias = Literal["read", "write", "account"]

RANKS: dict[Role, int] = {role: rank for rank, role in enumerate(get_args(Role))}
"""Every role may do what those below it may."""
SCOPES: tuple[Scope, ...] = get_args(Scope)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, by all that they have shown: an account, an anonymous key, a share key. Secrets come as hashes."""

    user_id: UUID | None = None
    name: str | None = None
    """What the account's user is called."""
    credential: UUID | None = None
    """The session or API token that showed the account; None where a signed token did, which ends by itself."""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    expires_at: datetime | None = None
    """When what showed the account ends."""
    anon_key_hash: bytes | None = None
    share_key_hash: bytes | None = None
    network: str | None = None
    """The part of the caller's address that they can't easily change, as in `203.0.113.0/24`."""

    @property
    def author_id(self) -> UUID | None:
        """Who a message of theirs is by: the account, or a stable id made of the key; it does not tell the key."""
        secret = self.anon_key_hash or self.share_key_hash
        if self.user_id is not None or secret is None:
            return self.user_id
        return author_id_of_key(secret)


class Doors(msgspec.Struct, frozen=True, kw_only=True):
    """What of a thread's locks a certain caller's keys fit, as stored at one moment."""

    owner_id: UUID | None
    anon_key_hash: bytes | None
    public: bool
    member_role: Role | None
    link_role: Role | None
    link_expires_at: datetime | None
    credential_stands: bool
    invited: bool = False
    """Whether an invitation of the account is open."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do in a thread, and until when at the latest."""

    role: Role
    expires_at: datetime | None = None

    def allows(self, needed: Role) -> bool:
        """Whether the role is enough."""
        return RANKS[self.role] >= RANKS[needed]


def grant(doors: Doors, caller: Caller) -> Grant | None:
    """The most that the caller's keys open; None if none fits. Among equals, the one that lasts longest.

    An invitation lets its user read, whatever role it offers: they see what they would join, and do nothing in it.
    """
    found: list[Grant] = []
    if caller.user_id is not None and doors.credential_stands:
        invited: Role | None = "viewer" if doors.invited else None
        role: Role | None = "owner" if doors.owner_id == caller.user_id else doors.member_role or invited
        if role is not None:
            found.append(Grant(role=role, expires_at=caller.expires_at))
    if hashes_match(doors.anon_key_hash, caller.anon_key_hash):
        found.append(Grant(role="owner"))
    if doors.link_role is not None:
        found.append(Grant(role=doors.link_role, expires_at=doors.link_expires_at))
    if doors.public:
        found.append(Grant(role="viewer"))
    return max(found, key=_worth, default=None)


def _worth(one: Grant) -> tuple[int, bool, float]:
    return RANKS[one.role], one.expires_at is None, one.expires_at.timestamp() if one.expires_at else 0.0


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raise unless the token that the caller showed is good for this."""
    if scope not in caller.scopes:
        raise Forbidden(f"This token lacks the scope {scope}.")


def validated_anon_key(key: str) -> str:
    """A key that a client made, if it is long enough to be one."""
    if not len(key.strip()) >= MIN_KEY_CHARACTERS or len(key) > MAX_KEY_CHARACTERS:
        raise InvalidInput(f"An anonKey has {MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} characters.", path="anonKey")
    return key


def key_hash(key: str) -> bytes:
    """What is stored of a secret. Secrets carry at least 128 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def author_id_of_key(secret_hash: bytes) -> UUID:
    """The author id of whoever holds this key without an account."""
    return UUID(bytes=hashlib.sha256(b"author" + secret_hash).digest()[:16], version=5)


def presented_key_id(caller: Caller, anon_key_hash: bytes | None) -> UUID | None:
    """Stands for the key by which the caller comes to a thread that has this anonymous key; None if they show none."""
    if hashes_match(anon_key_hash, caller.anon_key_hash):
        secret = caller.anon_key_hash
    else:
        secret = caller.share_key_hash or caller.anon_key_hash
    return None if secret is None else author_id_of_key(secret)


def as_requester(caller: Caller, user_id: UUID | None, key_id: UUID | None) -> Caller | None:
    """The caller with just that by which they are the asker of a run; None if they are somebody else.

    The asker is the user `user_id`, or without one the holder of the key that `key_id` stands for. A user who has asked
    by a key keeps that key: it may be all that lets them write.
    """
    if user_id is not None:
        keys = {"anon_key_hash": caller.anon_key_hash, "share_key_hash": caller.share_key_hash}
        others = {name: None for name, key in keys.items() if key is None or author_id_of_key(key) != key_id}
        return msgspec.structs.replace(caller, **others) if caller.user_id == user_id else None
    for part in (Caller(anon_key_hash=caller.anon_key_hash), Caller(share_key_hash=caller.share_key_hash)):
        if key_id is not None and part.author_id == key_id:
            return part
    return None


def hashes_match(stored: bytes | None, presented: bytes | None) -> bool:
    """Whether the presented key's hash is the stored one, compared in constant time."""
    return stored is not None and presented is not None and hmac.compare_digest(stored, presented)
