"""Access that one server process revokes over REST ends within a second at another one."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.support import postgres
from tests.support.callers import secrets_of
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.server import Server, ended

PASSWORD = "en taro adun"
WITHIN_SECONDS = 1.0
"""From the answer to the request that takes the access away. A wake-up that is lost costs up to 5 s."""


class ServerPair(msgspec.Struct, frozen=True):
    """Two server processes on one database: requests go to the first one, observers connect to the second one."""

    first: Server
    second: Server


@pytest.fixture(scope="module")
def servers(postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerPair]:
    folder = tmp_path_factory.mktemp("servers")
    with postgres.sync_database(postgres_url, template) as url:
        env = {"DATABASE_URL": url, "KHALA_MODEL": "demo", "KHALA_PUBLIC_THREADS": "1"}
        first, second = Server(folder / "first.log", env), Server(folder / "second.log", env, "--no-executor")
        with ended(first, second):
            first.start()
            second.start()
            yield ServerPair(first, second)
            assert not first.crashes()
            assert not second.crashes()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user with a session and a token."""

    id: str
    cookies: dict[str, str]
    token: str
    token_id: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class SharedThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread of an owner, with a member who joined it by a link."""

    http: httpx.AsyncClient
    """Leads to the first process."""
    thread_id: str
    link_id: str
    share_key: str
    owner: Account
    member: Account

    async def request_as(self, who: Account, method: str, path: str, body: Any = None) -> Any:
        """The body of the first process's response."""
        answer = await self.http.request(method, path, json=body, headers=who.headers)
        return answer.raise_for_status().json() if answer.content else None


async def account(url: str) -> Account:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        body = {"email": f"{uuid.uuid4()}@example.com", "password": PASSWORD}
        user = (await http.post("/api/auth/register", json=body)).raise_for_status().json()
        made = (await http.post("/api/tokens", json={"name": "test"})).raise_for_status().json()
        return Account(id=user["id"], cookies=dict(http.cookies), token=made["token"], token_id=made["id"])


@contextlib.asynccontextmanager
async def shared(servers: ServerPair) -> AsyncIterator[SharedThread]:
    async with httpx.AsyncClient(base_url=servers.first.url, timeout=30) as http:
        owner, member = await account(servers.first.url), await account(servers.first.url)
        made = await http.post("/api/threads", json={}, headers=owner.headers)
        thread_id = made.raise_for_status().json()["thread"]["id"]
        link = await http.post(f"/api/threads/{thread_id}/links", json={"role": "viewer"}, headers=owner.headers)
        found = link.raise_for_status().json()
        key = {"X-Share-Key": found["shareKey"]}
        joined = await http.post(f"/api/threads/{thread_id}/join", headers=member.headers | key)
        joined.raise_for_status()
        yield SharedThread(
            http=http,
            thread_id=thread_id,
            link_id=found["id"],
            share_key=found["shareKey"],
            owner=owner,
            member=member,
        )


Revocation = Callable[[SharedThread], Awaitable[Any]]


async def member_removed(shared: SharedThread) -> None:
    await shared.request_as(shared.owner, "DELETE", f"/api/threads/{shared.thread_id}/members/{shared.member.id}")


async def member_left(shared: SharedThread) -> None:
    await shared.request_as(shared.member, "DELETE", f"/api/threads/{shared.thread_id}/members/{shared.member.id}")


async def token_revoked(shared: SharedThread) -> None:
    async with httpx.AsyncClient(base_url=str(shared.http.base_url), cookies=shared.member.cookies) as http:
        (await http.delete(f"/api/tokens/{shared.member.token_id}")).raise_for_status()


async def account_deleted(shared: SharedThread) -> None:
    async with httpx.AsyncClient(base_url=str(shared.http.base_url), cookies=shared.member.cookies) as http:
        (await http.request("DELETE", "/api/me", json={"password": PASSWORD})).raise_for_status()


async def link_revoked(shared: SharedThread) -> None:
    await shared.request_as(shared.owner, "DELETE", f"/api/threads/{shared.thread_id}/links/{shared.link_id}")


async def set_private(shared: SharedThread) -> None:
    await shared.request_as(shared.owner, "PATCH", f"/api/threads/{shared.thread_id}", {"visibility": "private"})


async def deleted(shared: SharedThread) -> None:
    await shared.request_as(shared.owner, "DELETE", f"/api/threads/{shared.thread_id}")


def by_account(shared: SharedThread) -> dict[str, str]:
    return shared.member.headers


def by_link(shared: SharedThread) -> dict[str, str]:
    return {"X-Share-Key": shared.share_key}


@pytest.mark.parametrize(
    ("revoke", "shows", "status"),
    [
        (member_removed, by_account, 403),
        (member_left, by_account, 403),
        (token_revoked, by_account, 401),
        (account_deleted, by_account, 401),
        (link_revoked, by_link, 403),
        (set_private, by_link, 403),
        (deleted, by_link, 404),
    ],
)
async def test_access_revoked_by_one_process_ends_within_a_second_at_another(
    servers: ServerPair, revoke: Revocation, shows: Callable[[SharedThread], dict[str, str]], status: int
) -> None:
    async with shared(servers) as scene:
        path, headers = f"/api/threads/{scene.thread_id}", shows(scene)
        thread = Thread(scene.http, scene.thread_id, "")
        thread.headers = scene.owner.headers
        sent = await thread.send("/words=100000 /pace=50")
        bearer = {name: value for name, value in headers.items() if name == "Authorization"}
        async with (
            httpx.AsyncClient(base_url=servers.second.url, timeout=30, headers=headers) as elsewhere,
            socket(servers.second, additional_headers=bearer) as feed,
        ):
            await feed.send({"type": "subscribe", "threadId": scene.thread_id} | secrets_of(headers))
            assert (await feed.next())["type"] == "snapshot"
            await feed.until("delta")
            assert (await elsewhere.get(path)).status_code == 200
            await revoke(scene)
            answered = time.monotonic()
            assert (await elsewhere.get(path)).status_code == status
            gone = await feed.until("gone")
            assert time.monotonic() - answered < WITHIN_SECONDS
            assert gone["threadId"] == scene.thread_id
            await _writes_on(thread, sent["runId"], is_deleted=status == 404)
            await feed.expect_nothing()
        if status != 404:
            await scene.request_as(scene.owner, "POST", f"/api/runs/{sent['runId']}/cancel")


async def _writes_on(thread: Thread, run_id: str, *, is_deleted: bool) -> None:
    """Wait until more parts are stored, which the observer must not receive; a deleted thread has none."""
    if is_deleted:
        return
    before = len(await thread.parts(run_id))
    async with asyncio.timeout(30):
        while len(await thread.parts(run_id)) <= before + 1:
            await asyncio.sleep(0.05)
