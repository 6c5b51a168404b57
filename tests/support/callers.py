"""Every kind of caller of a thread: its owner, members, holders of links and keys, and callers without access."""

from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import SCOPES, Caller, Role, Scope, key_hash
from khala.domain.accounts import Identity
from khala.store.accounts import accounts, api_tokens
from khala.store.postgres.database import Database
from khala.store.sharing import sharing, thread_tokens
from khala.store.threads import threads
from tests.support.people import make_member

ANONYMOUS = Caller()
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
    """A thread with an owner, a thread with a key, and the headers of every caller by name."""

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


async def create_callers(db: Database) -> CallerSet:
    """Create all callers and both threads."""
    names = ("owner", "editor", "viewer", "invited", "other user", "revoked token")
    people = {name: await person(db, name) for name in names}
    owner = people["owner"]
    thread_id = await owned_thread(db, owner, welcome="Hello.")
    for role in get_args(Role):
        if role != "owner":
            await make_member(db, thread_id, people[role].id, role, owner.caller)
    await sharing.set_role(db, thread_id, people["invited"].id, "owner", owner.caller)
    await make_member(db, thread_id, people["revoked token"].id, "owner", owner.caller)
    await api_tokens.revoke(db, people["revoked token"].token_id, people["revoked token"].caller)
    link, viewer_key = await sharing.create_link(db, thread_id, "viewer", None, owner.caller)
    _, editor_key = await sharing.create_link(db, thread_id, "editor", None, owner.caller)
    expiry = datetime.now(UTC) + timedelta(hours=1)
    _, viewer_token = await thread_tokens.create(db, thread_id, "viewer", TOKEN_LIFETIME, owner.caller)
    _, editor_token = await thread_tokens.create(db, thread_id, "editor", TOKEN_LIFETIME, owner.caller)
    expired, expired_key = await sharing.create_link(db, thread_id, "editor", expiry, owner.caller)
    await expire_link(db, expired.id)
    key = ids.new_secret()
    keyed, _ = await threads.create(db, ids.new(), Caller(anon_key_hash=key_hash(key)), title=None, welcome="Hello.")
    headers: dict[str, dict[str, str]] = {name: user.headers for name, user in people.items()} | {
        "no one": {},
        "wrong key": {"X-Anon-Key": ids.new_secret()},
        "right key": {"X-Anon-Key": key},
        "viewer link": {"X-Share-Key": viewer_key},
        "editor link": {"X-Share-Key": editor_key},
        "expired link": {"X-Share-Key": expired_key},
        "viewer token": {"Authorization": f"Bearer {viewer_token}"},
        "editor token": {"Authorization": f"Bearer {editor_token}"},
    }
    return CallerSet(
        thread_id=thread_id,
        keyed_id=keyed.id,
        key=key,
        headers=headers,
        people=people,
        link_id=link.id,
        share_key=viewer_key,
    )


def secrets_of(headers: dict[str, str]) -> dict[str, Any]:
    """The secrets in these headers, as fields of a `subscribe` frame."""
    names = {"X-Anon-Key": "anonKey", "X-Share-Key": "shareKey"}
    return {names[name]: value for name, value in headers.items() if name in names}
