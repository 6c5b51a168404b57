"""Access control: callers, roles, and the policy of which role each action takes."""

import hashlib
import hmac
from datetime import datetime
from enum import Enum
from typing import Literal, TypeAlias, get_args
from uuid import UUID

import msgspec

from khala.domain.errors import Forbidden, InvalidInput

MIN_KEY_CHARACTERS = 32
MAX_KEY_CHARACTERS = 256

Role: TypeAlias = Literal["viewer", "editor", "owner"]
Scope: TypeAlias = Literal["read", "write", "account", "execute"]
ServiceScope: TypeAlias = Literal["impersonate", "threads:read", "threads:write", "tokens", "admin"]

RANKS: dict[Role, int] = {role: rank for rank, role in enumerate(get_args(Role))}
"""The order of the roles. Each role may do everything that a lower one may."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
ACCOUNT_SCOPES: frozenset[Scope] = frozenset({"read", "write", "account"})
"""The scopes of a token that may do everything that its account may. Only workers need `execute`."""
SERVICE_SCOPES: tuple[ServiceScope, ...] = get_args(ServiceScope)
SCOPES_OF_SERVICES: dict[ServiceScope, frozenset[Scope]] = {
    "threads:read": frozenset({"read"}),
    "threads:write": frozenset({"read", "write"}),
}
"""The scopes that a service token has by its own scopes. It never has the scope `account`."""
MAX_USER_ID_CHARACTERS = 255
"""Characters of an external id, in `Khala-User` and in JWTs (OpenID Connect Core 1.0, section 2)."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The service whose token authenticates a request. `user_issuer` is the issuer of the users that it may act for."""

    name: str
    token_id: UUID
    scopes: frozenset[ServiceScope]
    user_issuer: str
    impersonates: bool = False
    """Whether the request acts for a user, and not for the service's own account."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials of a request: an account, an anonymous key and a share key. Secrets are stored as hashes."""

    user_id: UUID | None = None
    name: str | None = None
    """The display name of the account's user."""
    credential: UUID | None = None
    """The session or API token of the account; None for a signed bearer token, which only expires."""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    agents: frozenset[str] = frozenset()
    """The remote agents of the account whose runs a worker's token may execute."""
    expires_at: datetime | None = None
    """The time at which the account's credential expires."""
    anon_key_hash: bytes | None = None
    share_key_hash: bytes | None = None
    network: str | None = None
    """The part of the caller's address that they can't easily change, as in `203.0.113.0/24`."""
    service: Service | None = None
    """The service that acts for `user_id`; None for all other callers."""
    only_thread: UUID | None = None
    """The only thread that a thread token opens, with the role of `share_key_hash`. Such a caller has no account."""
    admin_claim: bool = False
    """Whether the caller's JWT says that they are an administrator."""

    @property
    def author_id(self) -> UUID | None:
        """The author of the caller's messages: the account, or a stable id that is derived from the key."""
        secret = self.anon_key_hash or self.share_key_hash
        if self.user_id is not None or secret is None:
            return self.user_id
        return author_id_of_key(secret)


class Action(Enum):
    """An operation on a thread. `POLICY` says which role it takes."""

    CREATE_THREAD = "create_thread"
    """Open a thread under an id of the client's choice, which may exist already."""
    READ_THREAD = "read_thread"
    JOIN_THREAD = "join_thread"
    LEAVE_THREAD = "leave_thread"
    SEND_MESSAGE = "send_message"
    APPEND_MESSAGE = "append_message"
    """Add messages of people and assistants without an answer to them."""
    APPEND_INSTRUCTIONS = "append_instructions"
    """Add system messages, which instruct the models of all later runs."""
    UPLOAD_FILE = "upload_file"
    CANCEL_RUN = "cancel_run"
    DECIDE_APPROVAL = "decide_approval"
    RUN_PLANS = "run_plans"
    """Create plans, change them, and have their steps executed."""
    EDIT_THREAD = "edit_thread"
    SET_VISIBILITY = "set_visibility"
    IMPORT_MESSAGES = "import_messages"
    RESET_THREAD = "reset_thread"
    DELETE_THREAD = "delete_thread"
    MANAGE_MEMBERS = "manage_members"
    MANAGE_LINKS = "manage_links"
    MANAGE_TOKENS = "manage_tokens"
    SET_TOOL_RULES = "set_tool_rules"
    READ_MEMORIES = "read_memories"
    """Those of the thread."""
    EDIT_MEMORIES = "edit_memories"
    OWN_MEMORIES = "own_memories"
    """A guest's own memories, which belong to their thread."""


POLICY: dict[Action, Role] = {
    Action.CREATE_THREAD: "owner",
    Action.READ_THREAD: "viewer",
    Action.JOIN_THREAD: "viewer",
    Action.LEAVE_THREAD: "viewer",
    Action.SEND_MESSAGE: "editor",
    Action.APPEND_MESSAGE: "editor",
    Action.APPEND_INSTRUCTIONS: "owner",
    Action.UPLOAD_FILE: "editor",
    Action.CANCEL_RUN: "editor",
    Action.DECIDE_APPROVAL: "editor",
    Action.RUN_PLANS: "editor",
    Action.EDIT_THREAD: "editor",
    Action.SET_VISIBILITY: "owner",
    Action.IMPORT_MESSAGES: "owner",
    Action.RESET_THREAD: "owner",
    Action.DELETE_THREAD: "owner",
    Action.MANAGE_MEMBERS: "owner",
    Action.MANAGE_LINKS: "owner",
    Action.MANAGE_TOKENS: "owner",
    Action.SET_TOOL_RULES: "owner",
    Action.READ_MEMORIES: "viewer",
    Action.EDIT_MEMORIES: "editor",
    Action.OWN_MEMORIES: "owner",
}
"""The lowest role that each action takes."""


def roles_allowing(action: Action) -> list[Role]:
    """The roles that may do this."""
    return [role for role, rank in RANKS.items() if rank >= RANKS[POLICY[action]]]


class AccessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The stored facts that decide a caller's access to a thread, as of one moment."""

    access_id: UUID
    """Changes whenever access to the thread changes."""
    owner_id: UUID | None
    anon_key_hash: bytes | None
    public: bool
    member_role: Role | None
    link_role: Role | None
    link_expires_at: datetime | None
    credential_valid: bool
    """Whether the caller's account exists, and their session or API token has neither ended nor expired."""
    invited: bool = False
    """Whether the account has an open invitation."""


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's access to a thread (or another topic), as of one moment."""

    caller: Caller
    access_id: UUID
    """The version of the thread's access that this was decided under."""
    role: Role | None
    """None: the caller has no access."""
    expires_at: datetime | None = None
    """The time at which the access ends by itself, if that is known."""
    credential_notices: int = 0
    """Notices of ended credentials that this process had received before the facts were read."""

    def allows(self, action: Action) -> bool:
        """Whether the role is high enough for this action."""
        return self.role is not None and RANKS[self.role] >= RANKS[POLICY[action]]

    def require(self, action: Action) -> None:
        """Raise `Forbidden` unless the action is allowed."""
        if self.role is None:
            raise Forbidden("You have no access to this thread. Send its key or a share link, or sign in as a member.")
        if not self.allows(action):
            raise Forbidden(f"This requires the role {POLICY[action]}; your role in this thread is {self.role}.")


def decide_access(facts: AccessFacts, caller: Caller) -> Authorization:
    """The highest role that the caller's credentials give; of equal roles, the one that lasts longest.

    An open invitation only lets its user read, whatever role it offers.
    """
    candidates: list[tuple[Role, datetime | None]] = []
    if caller.user_id is not None and facts.credential_valid:
        invited: Role | None = "viewer" if facts.invited else None
        role: Role | None = "owner" if facts.owner_id == caller.user_id else facts.member_role or invited
        if role is not None:
            candidates.append((role, caller.expires_at))
    if hashes_match(facts.anon_key_hash, caller.anon_key_hash):
        candidates.append(("owner", None))
    if facts.link_role is not None:
        candidates.append((facts.link_role, facts.link_expires_at))
    if facts.public and caller.only_thread is None:
        candidates.append(("viewer", None))
    best, expires_at = max(candidates, key=_rank, default=(None, None))
    return Authorization(caller=caller, access_id=facts.access_id, role=best, expires_at=expires_at)


def _rank(candidate: tuple[Role, datetime | None]) -> tuple[int, bool, float]:
    role, expires_at = candidate
    return RANKS[role], expires_at is None, expires_at.timestamp() if expires_at else 0.0


def require_scope(caller: Caller, scope: Scope) -> None:
    """Raise `Forbidden` unless the caller's credential has this scope."""
    if scope not in caller.scopes:
        raise Forbidden(f"This token lacks the scope {scope}. Use a token that has it.")


def require_service_scope(service: Service, scope: ServiceScope) -> None:
    """Raise `Forbidden` unless the service's token has this scope."""
    if scope not in service.scopes:
        raise Forbidden(f"This service token lacks the scope {scope}. Use a token that has it.")


class AdminFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The stored facts that decide whether a user is an administrator."""

    admin: bool
    """Whether the operator has made them one by the command."""
    emails: tuple[str, ...]
    """The addresses that their identity providers have verified. Others prove nothing: anybody may register them."""


def is_admin(caller: Caller, facts: AdminFacts, named: frozenset[str]) -> bool:
    """Whether the caller is an administrator: by the command, by their JWT, or because the setting names them.

    `named` has ids of accounts and verified addresses. A restricted credential has no such rights: an API token needs
    the scope `account`, and a service the scope `admin`.
    """
    if caller.user_id is None:
        return False
    if caller.service is not None:
        if "admin" not in caller.service.scopes:
            return False
        if not caller.service.impersonates:
            return True
    elif "account" not in caller.scopes:
        return False
    return caller.admin_claim or facts.admin or not named.isdisjoint((str(caller.user_id), *facts.emails))


def external_user_id(given: str) -> str:
    """The external id of a user, as a service names it. Raises `InvalidInput` for anything but 1 to 255 printable
    characters of ASCII without spaces at the ends."""  # noqa: D205, D209
    valid = 0 < len(given) <= MAX_USER_ID_CHARACTERS and given.isascii() and given.isprintable()
    if not valid or given != given.strip():
        raise InvalidInput(
            f"Khala-User is the external id of one user: 1 to {MAX_USER_ID_CHARACTERS} printable characters of ASCII.",
            path="Khala-User",
        )
    return given


def thread_token_hash(secret: str) -> bytes:
    """The hash that is stored of a thread token. It differs from a share key's, so neither is accepted as the other."""
    return key_hash(f"thread-token\0{secret}")


def validated_anon_key(key: str) -> str:
    """The anonymous key that a client chose. Raises `InvalidInput` if its length is out of bounds."""
    if not len(key.strip()) >= MIN_KEY_CHARACTERS or len(key) > MAX_KEY_CHARACTERS:
        raise InvalidInput(
            f"An anonKey must have {MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} characters.", path="anonKey"
        )
    return key


def key_hash(key: str) -> bytes:
    """The hash that is stored of a secret. Secrets have at least 128 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def author_id_of_key(secret_hash: bytes) -> UUID:
    """The author id of a key's holder, who has no account."""
    return UUID(bytes=hashlib.sha256(b"author" + secret_hash).digest()[:16], version=5)


def presented_key_id(caller: Caller, anon_key_hash: bytes | None) -> UUID | None:
    """The author id of the key that gives the caller access to a thread with this anonymous key; None without a key."""
    if hashes_match(anon_key_hash, caller.anon_key_hash):
        secret = caller.anon_key_hash
    else:
        secret = caller.share_key_hash or caller.anon_key_hash
    return None if secret is None else author_id_of_key(secret)


def as_requester(caller: Caller, user_id: UUID | None, key_id: UUID | None) -> Caller | None:
    """The caller, reduced to the credentials by which they requested a run; None if they are not its requester.

    The requester is the user `user_id`, or without one the holder of the key with the author id `key_id`. A user who
    requested the run with a key keeps that key, because it may be all that lets them write.
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
    """Whether the presented key's hash is the stored one, compared in constant time. None matches nothing."""
    return stored is not None and presented is not None and hmac.compare_digest(stored, presented)
