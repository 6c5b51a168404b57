"""Memories, agents, models, files, search and the account."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from msgspec import UNSET, UnsetType

from khala_client._async.core import AsyncCore
from khala_client.bodies import Id, as_id, body, changes, segment
from khala_client.content import BlobRef
from khala_client.credentials import Keys
from khala_client.models import Agent, AgentRoute, BlobLine, Memory, ModelList, Usage, User
from khala_client.streams import AsyncStream
from khala_client.wire import WireStruct

Scope = Literal["user", "thread", "agent"]
Kind = Literal["fact", "preference", "instruction", "summary"]


class _Memories(WireStruct, frozen=True, kw_only=True):
    items: tuple[Memory, ...]


class _Agents(WireStruct, frozen=True, kw_only=True):
    items: tuple[Agent, ...]


class _Usages(WireStruct, frozen=True, kw_only=True):
    items: tuple[Usage, ...]


class _Lines(WireStruct, frozen=True, kw_only=True):
    items: tuple[BlobLine, ...]


class _Link(WireStruct, frozen=True, kw_only=True):
    link: str


class AsyncMemories:
    """Memories of the account, of a guest, or of a thread.

    A guest, and whoever means the memories of one thread, names it by `thread_id`.
    """

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def add(
        self,
        text: str,
        *,
        scope: Scope | None = None,
        thread_id: Id | None = None,
        agent: str | None = None,
        kind: Kind | None = None,
        keywords: str | None = None,
        expires_at: datetime | None = None,
        keys: Keys | None = None,
    ) -> Memory:
        """Store a text. The same text again counts one more use of the same memory."""
        given = body(
            text=text,
            scope=scope,
            thread_id=None if thread_id is None else as_id(thread_id),
            agent=agent,
            kind=kind,
            keywords=keywords,
            expires_at=expires_at,
        )
        return await self._core.request("POST", "/api/memories", Memory, body=given, keys=keys)

    def list(
        self, *, scope: Scope | None = None, thread_id: Id | None = None, keys: Keys | None = None
    ) -> AsyncStream[Memory]:
        """The memories in use, newest first."""
        return self._core.pages("/api/memories", Memory, _where(scope, thread_id), keys)

    async def search(
        self,
        query: str,
        *,
        scope: Scope | None = None,
        thread_id: Id | None = None,
        limit: int = 20,
        keys: Keys | None = None,
    ) -> Sequence[Memory]:
        """The memories that fit best, with their `score`."""
        params = {**_where(scope, thread_id), "q": query, "limit": limit}
        answer = await self._core.request("GET", "/api/memories", _Memories, params=params, keys=keys)
        return answer.items

    async def update(
        self,
        memory_id: Id,
        *,
        text: str | UnsetType = UNSET,
        expires_at: datetime | UnsetType | None = UNSET,
        keys: Keys | None = None,
    ) -> Memory:
        """Correct a memory; returns the one that supersedes it."""
        given = changes(text=text, expires_at=expires_at)
        return await self._core.request("PATCH", f"/api/memories/{as_id(memory_id)}", Memory, body=given, keys=keys)

    async def forget(self, memory_id: Id, *, keys: Keys | None = None) -> None:
        """Delete a memory, and those that it had superseded. Raises `NotFound` if there is none."""
        await self._core.delete(f"/api/memories/{as_id(memory_id)}", keys=keys)


class AsyncAgents:
    """Agents: instructions, tools, models and limits for runs, under a name."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def list(self) -> Sequence[Agent]:
        """The agents that the caller may use, by name."""
        return (await self._core.request("GET", "/api/agents", _Agents)).items

    async def get(self, name: str) -> Agent:
        """The agent of this name, or of this link."""
        return await self._core.request("GET", f"/api/agents/{segment(name)}", Agent)

    async def create(self, name: str, title: str, **fields: Any) -> Agent:
        """Create an agent. `fields` are those of `POST /api/agents`, as `instructions`, `tools` and `model`."""
        return await self._core.request("POST", "/api/agents", Agent, body=body(name=name, title=title, **fields))

    async def update(self, name: str, **fields: Any) -> Agent:
        """Change an agent; returns its next version. Without a difference nothing changes."""
        path = f"/api/agents/{segment(name)}"
        return await self._core.request("PATCH", path, Agent, body=changes(**fields), idempotent=True)

    async def delete(self, name: str) -> None:
        """Delete an agent and its link. Raises `NotFound` if there is none."""
        await self._core.delete(f"/api/agents/{segment(name)}")

    async def share(self, name: str) -> str:
        """A new link of the agent, which is returned only here. The link from before stops working."""
        return (await self._core.request("POST", f"/api/agents/{segment(name)}/link", _Link)).link

    async def unshare(self, name: str) -> None:
        """Revoke the agent's link."""
        await self._core.delete(f"/api/agents/{segment(name)}/link")

    async def route(self, text: str, *, thread_id: Id | None = None, keys: Keys | None = None) -> AgentRoute:
        """The agent that a send of this text with the agent `auto` gets."""
        given = body(text=text, thread_id=None if thread_id is None else as_id(thread_id))
        return await self._core.request("POST", "/api/route", AgentRoute, body=given, keys=keys, idempotent=True)


class AsyncModels:
    """The models of the server."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def list(self) -> ModelList:
        """The models that a request may name, the default first."""
        return await self._core.request("GET", "/api/models", ModelList)


class AsyncBlobs:
    """Files and large outputs."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    def download(self, blob: BlobRef | UUID, *, keys: Keys | None = None) -> AsyncStream[bytes]:
        """The bytes of a blob, in pieces. After a lost connection it continues where it was.

        If a `BlobRef` is given, raises `ServerError` at the end if size or SHA-256 of the bytes differ from it.
        """
        return self._core.download(blob, keys or Keys())

    async def lines(self, blob_id: Id, *, keys: Keys | None = None, **query: str | int | bool) -> Sequence[BlobLine]:
        """Lines of a text, one page. `query` is that of `GET /api/blobs/{id}/lines`, as `mode` and `lines`."""
        path = f"/api/blobs/{as_id(blob_id)}/lines"
        return (await self._core.request("GET", path, _Lines, params=changes(**query), keys=keys)).items


class AsyncMe:
    """The account of the client's token."""

    def __init__(self, core: AsyncCore) -> None:
        self._core = core

    async def get(self) -> User:
        """The account."""
        return await self._core.request("GET", "/api/me", User)

    async def update(self, *, name: str) -> User:
        """Change the account's name."""
        return await self._core.request("PATCH", "/api/me", User, body={"name": name}, idempotent=True)

    async def usage(self) -> Sequence[Usage]:
        """The use of each limit; for an anonymous key, too."""
        return (await self._core.request("GET", "/api/me/usage", _Usages)).items


def search_params(query: str, thread_id: Id | None, kind: str | None, *, by_meaning: bool) -> Mapping[str, str | None]:
    """The parameters of a search."""
    where = None if thread_id is None else str(as_id(thread_id))
    return {"q": query, "threadId": where, "kind": kind, "meaning": "1" if by_meaning else "0"}


def _where(scope: str | None, thread_id: Id | None) -> dict[str, str | int | None]:
    return {"scope": scope, "threadId": None if thread_id is None else str(as_id(thread_id))}
