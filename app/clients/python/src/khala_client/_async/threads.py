"""Threads: create them, send messages, follow them, share them."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from khala_client._async.core import AsyncCore
from khala_client._async.plans import AsyncThreadPlans
from khala_client._async.runs import AsyncRun
from khala_client.blobs import UploadSource
from khala_client.bodies import Id, as_id, body, changes
from khala_client.content import BlobRef
from khala_client.credentials import Keys
from khala_client.feed import FollowOptions
from khala_client.followers import RunTarget, ThreadUpdate
from khala_client.models import (
    Access,
    Member,
    MessagePage,
    RunInfo,
    SendResult,
    ShareLink,
    Snapshot,
    ThreadInfo,
)
from khala_client.options import RunOptions
from khala_client.state import ThreadState, from_snapshot
from khala_client.streams import AsyncStream
from khala_client.wire import WireStruct, decode

Role = Literal["viewer", "editor", "owner"]
ACCEPTED = 202
"""The status of a send that was not sent before."""


class _Created(WireStruct, frozen=True, kw_only=True):
    thread: ThreadInfo


class _Members(WireStruct, frozen=True, kw_only=True):
    items: tuple[Member, ...]


class _Links(WireStruct, frozen=True, kw_only=True):
    items: tuple[ShareLink, ...]


class AsyncThread:
    """A thread. It is made without a request by `client.thread(id)`; `anon_key` is the secret that opens it.

    Store `id` and `anon_key`: nobody can read an anonymous thread without its key.
    """

    def __init__(self, core: AsyncCore, thread_id: UUID, keys: Keys) -> None:
        self._core = core
        self._keys = keys
        self._path = f"/api/threads/{thread_id}"
        self.id = thread_id
        self.plans = AsyncThreadPlans(core, thread_id, keys)

    @property
    def anon_key(self) -> str | None:
        """The anonymous key of this thread, None if an account or a link opens it."""
        return self._keys.anon_key

    async def snapshot(self, *, limit: int = 100) -> Snapshot:
        """The thread and its newest messages, at most `limit` (1 to 200)."""
        return await self._core.request("GET", self._path, Snapshot, params={"limit": limit}, keys=self._keys)

    async def state(self) -> ThreadState:
        """The current state, from which `follow` continues."""
        return from_snapshot(await self.snapshot())

    async def messages(self, *, before: Id, limit: int = 50) -> MessagePage:
        """The messages before that one, in order."""
        params: dict[str, str | int] = {"before": str(as_id(before)), "limit": limit}
        return await self._core.request("GET", f"{self._path}/messages", MessagePage, params=params, keys=self._keys)

    async def send(
        self,
        text: str,
        options: RunOptions | None = None,
        *,
        attachments: Sequence[BlobRef | Id] = (),
        message_id: Id | None = None,
        parent_id: Id | UnsetType | None = UNSET,
    ) -> AsyncRun:
        """Send a message; returns the run that answers it.

        `message_id` is the idempotency key, and is made if it is not given: retries of this call store one message.
        A program that may be restarted in between stores its own. `parent_id` is the message that it follows, by
        default the end of the active branch; None follows none. Raises `Conflict` with the code `run_active` if an
        answer is being written and `if_busy` does not say otherwise, and `RateLimited`.
        """
        given = body(
            text=text,
            message_id=uuid4() if message_id is None else as_id(message_id),
            attachments=[one.blob_id if isinstance(one, BlobRef) else as_id(one) for one in attachments] or None,
            options=options,
        )
        if not isinstance(parent_id, UnsetType):
            given["parentId"] = None if parent_id is None else as_id(parent_id)
        return await self._start("send", given, options)

    async def regenerate(
        self, message_id: Id, options: RunOptions | None = None, *, answer_id: Id | None = None
    ) -> AsyncRun:
        """Have another answer written to a user's message. `answer_id` is the idempotency key."""
        answer = uuid4() if answer_id is None else as_id(answer_id)
        given = body(message_id=as_id(message_id), answer_id=answer, options=options)
        return await self._start("regenerate", given, options)

    async def append(
        self,
        role: Literal["user", "assistant", "system"],
        text: str | None = None,
        *,
        author: str | None = None,
        attachments: Sequence[BlobRef | Id] = (),
        data: Mapping[str, Any] | None = None,
        message_id: Id | None = None,
        parent_id: Id | UnsetType | None = UNSET,
        if_busy: Literal["queue", "interrupt", "reject"] | None = None,
    ) -> UUID:
        """Add a message that no model answers; returns its id. Messages of `system` need the role owner.

        `author` is the name that clients show, `attachments` are uploads of this thread, and `data` is JSON by name,
        for clients only. `message_id` is the idempotency key, and is made if it is not given. While an answer is being
        written, the message follows it unless `if_busy` says otherwise.
        """
        parts: list[dict[str, Any]] = [] if text is None else [{"type": "text", "text": text}]
        files = (one.blob_id if isinstance(one, BlobRef) else as_id(one) for one in attachments)
        parts += [{"type": "file", "blobId": file} for file in files]
        parts += [{"type": "data", "name": name, "data": value} for name, value in (data or {}).items()]
        new_id = uuid4() if message_id is None else as_id(message_id)
        given = body(messages=[body(id=new_id, role=role, parts=parts, author=author)], if_busy=if_busy)
        if not isinstance(parent_id, UnsetType):
            given["parentId"] = None if parent_id is None else as_id(parent_id)
        path = f"{self._path}/messages"
        await self._core.request("POST", path, dict, body=given, keys=self._keys, idempotent=True)
        return new_id

    async def run(self, run_id: Id) -> AsyncRun:
        """A run of this thread."""
        found = await self._core.request("GET", f"/api/runs/{as_id(run_id)}", RunInfo, keys=self._keys)
        target = RunTarget(run_id=found.id, thread_id=found.thread_id, message_id=found.message_id, keys=self._keys)
        return AsyncRun(self._core, target)

    def follow(
        self, *, after: ThreadState | None = None, options: FollowOptions | None = None
    ) -> AsyncStream[ThreadUpdate]:
        """The updates of the thread after a state, or from its current state on. It has no end.

        It reconnects by itself, and no update is lost or comes twice. `update.state.to_json()` can be stored, and
        `ThreadState.from_json` continues after it, also in another process. Where the server cannot continue, an
        update with `is_snapshot` replaces everything known.

        Raises `NotFound` if the thread is deleted, `Forbidden` or `Unauthenticated` when access ends, and
        `ConnectionFailed` if there was no connection for the `max_disconnected` of the retry policy.
        """
        return self._core.follow_thread(self.id, self._keys, after, options or FollowOptions())

    async def update(
        self,
        *,
        title: str | UnsetType | None = UNSET,
        visibility: Literal["private", "link", "public"] | UnsetType = UNSET,
        active_leaf: UUID | UnsetType = UNSET,
    ) -> ThreadInfo:
        """Change what is given. A title of None removes it."""
        given = changes(title=title, visibility=visibility, active_leaf=active_leaf)
        return await self._core.request("PATCH", self._path, ThreadInfo, body=given, keys=self._keys, idempotent=True)

    async def delete(self) -> None:
        """Delete the thread with everything in it. Raises `NotFound` if there is none."""
        await self._core.delete(self._path, keys=self._keys)

    async def reset(self) -> ThreadInfo:
        """Delete all messages and runs, so that the thread begins again."""
        return await self._core.request("POST", f"{self._path}/reset", ThreadInfo, body={}, keys=self._keys)

    async def mark_read(self, revision: int) -> None:
        """Mark the thread as read up to this revision, for a signed-in user."""
        await self._core.request("PUT", f"{self._path}/read", type(None), body={"revision": revision}, keys=self._keys)

    async def upload(
        self, source: UploadSource, *, name: str | None = None, media_type: str = "application/octet-stream"
    ) -> BlobRef:
        """Upload a file, which can be sent with a message for a day. It is read piece by piece.

        The server finds the type by the content; `media_type` chooses among those of text. It is sent once: after
        `ConnectionFailed` the caller may try again.
        """
        return await self._core.upload(self.id, source, name, media_type, self._keys)

    def download(self, blob: BlobRef | UUID) -> AsyncStream[bytes]:
        """The bytes of a blob, in pieces. See `blobs.download`."""
        return self._core.download(blob, self._keys)

    async def access(self) -> Access:
        """The caller's role."""
        return await self._core.request("GET", f"{self._path}/access", Access, keys=self._keys)

    async def members(self) -> list[Member]:
        """The members, and those who are invited."""
        answer = await self._core.request("GET", f"{self._path}/members", _Members, keys=self._keys)
        return list(answer.items)

    async def set_member(self, user_id: Id, role: Role) -> Member:
        """Give a member this role, or invite a user to have it."""
        return await self._core.request(
            "PUT", f"{self._path}/members/{as_id(user_id)}", Member, body={"role": role}, keys=self._keys
        )

    async def remove_member(self, user_id: Id) -> None:
        """Remove a member, or withdraw an invitation. With the caller's own id: leave, or decline."""
        await self._core.delete(f"{self._path}/members/{as_id(user_id)}", keys=self._keys)

    async def join(self) -> Member:
        """Accept an invitation, or take the role of the link with whose key this thread was made."""
        return await self._core.request("POST", f"{self._path}/join", Member, body={}, keys=self._keys, idempotent=True)

    async def create_link(self, role: Literal["viewer", "editor"], *, expires_at: datetime | None = None) -> ShareLink:
        """Create a link that grants a role. Its key is returned only here."""
        given = body(role=role, expires_at=expires_at)
        return await self._core.request("POST", f"{self._path}/links", ShareLink, body=given, keys=self._keys)

    async def links(self) -> list[ShareLink]:
        """The links, without their keys."""
        answer = await self._core.request("GET", f"{self._path}/links", _Links, keys=self._keys)
        return list(answer.items)

    async def revoke_link(self, link_id: Id) -> None:
        """Revoke a link."""
        await self._core.delete(f"{self._path}/links/{as_id(link_id)}", keys=self._keys)

    async def claim(self, anon_key: str) -> ThreadInfo:
        """Make the caller's account the owner of an anonymous thread. Its key opens nothing afterwards."""
        return await self._core.request(
            "POST", f"{self._path}/claim", ThreadInfo, body={"anonKey": anon_key}, keys=self._keys, idempotent=True
        )

    async def _start(self, command: str, given: dict[str, object], options: RunOptions | None) -> AsyncRun:
        answer = await self._core.exchange("POST", f"{self._path}/{command}", body=given, keys=self._keys)
        sent = decode(answer.body, SendResult)
        target = RunTarget(
            run_id=sent.run_id,
            thread_id=sent.thread_id,
            message_id=sent.assistant_message_id,
            keys=self._keys,
            # A repeated send has a later revision, which may follow parts of the run.
            revision=sent.revision if answer.status == ACCEPTED else None,
            checks_format=options is not None and options.checks_format,
        )
        return AsyncRun(self._core, target, sent.user_message_id)


class AsyncThreads:
    """The threads of the caller."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def create(
        self,
        *,
        title: str | None = None,
        thread_id: Id | None = None,
        anon_key: str | None = None,
        temporary: bool = False,
    ) -> AsyncThread:
        """Create a thread. With a token its account owns it, otherwise a key opens it.

        The key is `anon_key`, that of the client, or a new one: the `anon_key` of the result. `thread_id` is the
        idempotency key, and is made if it is not given. A `temporary` thread is on no list, uses and leaves no
        memories, and is deleted a day after its creation.
        """
        keys = Keys(anon_key=anon_key)
        if anon_key is None and not self._core.http.token.is_given:
            keys = Keys(anon_key=self._core.http.config.keys.anon_key or secrets.token_urlsafe(32))
        new_id = uuid4() if thread_id is None else as_id(thread_id)
        given = body(id=new_id, title=title, anon_key=keys.anon_key, temporary=temporary or None)
        created = await self._core.request("POST", "/api/threads", _Created, body=given, keys=keys, idempotent=True)
        return AsyncThread(self._core, created.thread.id, keys)

    def list(self, *, page_size: int = 50) -> AsyncStream[ThreadInfo]:
        """The threads that the caller owns, has a role on, or opens by the client's key, newest first."""
        return self._core.pages("/api/threads", ThreadInfo, {"limit": page_size})
