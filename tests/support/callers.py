"""Every kind of caller of a thread: its owner, members, holders of links and keys, and callers without access."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import SCOPES, Caller, Scope, key_hash
from khala.domain.accounts import Identity
from khala.store.accounts import accounts, api_tokens
from khala.store.postgres.database import Database
from khala.store.sharing import sharing, thread_tokens
from khala.store.threads import threads
from tests.support.people import make_member

ANONYMOUS = Caller()
PEOPLE = ("owner", "editor", "viewer", "invited", "other user", "revoked token")
HOLDERS = ("editor link", "expired link", "viewer token", "editor token")
CALLERS = ("no one", "wrong key", "right key", "viewer link", *PEOPLE, *HOLDERS)
TOKEN_LIFETIME = timedelta(hours=1)
"""The life of thread tokens."""


class Person(msgspec.Struct, frozen=True):
    """A user with a token of all scopes."""

    id: UUID
    token: str
    token_id: UUID

    @property
    def caller(self) -> Caller:
        """The user as a caller of the store."""
        return Caller(user_id=self.id)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of their requests."""
        return {"Authorization": f"Bearer {self.token}"}


async def person(db: Database, name: str = "Somebody", *, scopes: tuple[Scope, ...] = SCOPES) -> Person:
    """A new user."""
    user_id = await accounts.of_identity(db, Identity(issuer="test", subject=str(ids.new()), name=name), ANONYMOUS)
    token, secret = await api_tokens.create(db, Caller(user_id=user_id), "test", scopes, None)
    return Person(user_id, secret, token.id)


async def owned_thread(db: Database, owner: Person, *, welcome: str = "") -> UUID:
    """A new thread of this user's."""
    thread, _ = await threads.create(db, ids.new(), owner.caller, title=None, welcome=welcome)
    return thread.id


async def expire_link(db: Database, link_id: UUID) -> None:
    """Let the link expire."""
    async with db.driver() as driver:
        await driver.execute("UPDATE share_links SET expires_at = now() - interval '1 second' WHERE id = $1", link_id)


class CallerSet(msgspec.Struct, frozen=True, kw_only=True):
    """A thread with an owner, a thread with a key, and the headers of the callers by name."""

    thread_id: UUID
    keyed_id: UUID
    key: str
    headers: dict[str, dict[str, str]]
    people: dict[str, Person]
    link_id: UUID
    share_key: str

    def thread_of(self, caller: str) -> UUID:
        """The thread that this caller opens."""
        return self.keyed_id if caller == "right key" else self.thread_id


async def create_callers(db: Database, names: Collection[str] = CALLERS) -> CallerSet:
    """Create these callers, the owner, a link for viewers, and both threads."""
    people = {name: await person(db, name) for name in PEOPLE if name in names or name == "owner"}
    owner = people["owner"]
    thread_id = await owned_thread(db, owner, welcome="Hello.")
    await _make_members(db, thread_id, people)
    link, viewer_key = await sharing.create_link(db, thread_id, "viewer", None, owner.caller)
    key = ids.new_secret()
    keyed, _ = await threads.create(db, ids.new(), Caller(anon_key_hash=key_hash(key)), title=None, welcome="Hello.")
    headers: dict[str, dict[str, str]] = {name: user.headers for name, user in people.items()} | {
        "no one": {},
        "wrong key": {"X-Anon-Key": ids.new_secret()},
        "right key": {"X-Anon-Key": key},
        "viewer link": {"X-Share-Key": viewer_key},
    }
    headers |= {name: await _create_holder(db, name, thread_id, owner) for name in HOLDERS if name in names}
    return CallerSet(
        thread_id=thread_id,
        keyed_id=keyed.id,
        key=key,
        headers=headers,
        people=people,
        link_id=link.id,
        share_key=viewer_key,
    )


async def _make_members(db: Database, thread_id: UUID, people: Mapping[str, Person]) -> None:
    owner = people["owner"].caller
    for name, user in people.items():
        match name:
            case "editor" | "viewer":
                await make_member(db, thread_id, user.id, name, owner)
            case "invited":
                await sharing.set_role(db, thread_id, user.id, "owner", owner)
            case "revoked token":
                await make_member(db, thread_id, user.id, "owner", owner)
                await api_tokens.revoke(db, user.token_id, user.caller)


async def _create_holder(db: Database, name: str, thread_id: UUID, owner: Person) -> dict[str, str]:
    """Create what opens the thread for one of `HOLDERS`; returns the headers."""
    role: Literal["viewer", "editor"] = "viewer" if name == "viewer token" else "editor"
    if name in ("viewer token", "editor token"):
        _, token = await thread_tokens.create(db, thread_id, role, TOKEN_LIFETIME, owner.caller)
        return {"Authorization": f"Bearer {token}"}
    expiry = datetime.now(UTC) + timedelta(hours=1) if name == "expired link" else None
    link, key = await sharing.create_link(db, thread_id, role, expiry, owner.caller)
    if name == "expired link":
        await expire_link(db, link.id)
    return {"X-Share-Key": key}


def secrets_of(headers: dict[str, str]) -> dict[str, Any]:
    """The secrets in these headers, as fields of a `subscribe` frame."""
    names = {"X-Anon-Key": "anonKey", "X-Share-Key": "shareKey"}
    return {names[name]: value for name, value in headers.items() if name in names}
