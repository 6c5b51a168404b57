"""Loading a repository over REST: events of progress, one end, and nothing stored when the client leaves."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from khala.tools.repositories.loader import MAX_OWNER_LOADS, RepositoryLoader
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.repository_archives import COMMIT, tar_gz
from tests.support.repository_host import ArchiveServer, archive_server
from tests.support.shared_server import shared

PATH = "/api/workspace/repositories"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def host() -> AsyncIterator[ArchiveServer]:
    async with archive_server() as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str, host: ArchiveServer) -> AsyncIterator[InProcessServer]:
    env = {"KHALA_REPOSITORY_HOSTS": f"github={host.origin}", "KHALA_FETCH_ALLOW": "127.0.0.0/8, ::1"}
    async with shared(postgres_url, template, with_executor=False, **env) as inside:
        yield inside


async def events(server: InProcessServer, who: Person, **body: Any) -> list[dict[str, Any]]:
    response = await server.http.post(PATH, headers=who.headers, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


async def paths_of(store: Database, who: Person) -> list[str]:
    async with store.driver() as driver:
        return [entry.path for entry in await workspace_files.entries(driver, who.id)]


async def test_progress_comes_first_and_the_loaded_repository_last(
    server: InProcessServer, store: Database, host: ArchiveServer
) -> None:
    host.archives["many"] = tar_gz({f"f{number}": b"x" * 100 for number in range(900)})
    who = await person(store)
    found = await events(server, who, url=host.url("many"), ref="main", into="code")
    assert found[0] == {"type": "progress", "stage": "downloading"}
    assert {event["type"] for event in found[:-1]} == {"progress"}
    assert (found[-2]["stage"], found[-2]["files"]) == ("storing", 900)
    expected = {
        "folder": "code", "source": host.url("many"), "ref": "main", "commit": COMMIT, "files": 900, "bytes": 90_000,
    }  # fmt: skip
    assert found[-1] == {"type": "loaded", "repository": expected}
    assert len(await paths_of(store, who)) == 901


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("missing", {"code": "not_found", "message": "127.0.0.1 has no repository owner/missing, or it is private."}),
        (
            "limited",
            {
                "code": "rate_limited",
                "message": "127.0.0.1 limits the rate of requests. Try again in 77 seconds.",
                "retryAfterSeconds": 77,
            },
        ),
    ],
)
async def test_a_failure_is_the_last_event(
    server: InProcessServer, store: Database, host: ArchiveServer, name: str, end: dict[str, Any]
) -> None:
    who = await person(store)
    assert (await events(server, who, url=host.url(name)))[-1] == {"type": "failed", **end}
    assert await paths_of(store, who) == []


async def test_an_unexpected_error_is_an_event_without_its_details(
    server: InProcessServer, store: Database, host: ArchiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(RepositoryLoader, "load", broken)
    found = await events(server, await person(store), url=host.url())
    assert found[-1] == {
        "type": "failed", "code": "internal", "message": "The server failed to load the repository.",
    }  # fmt: skip


async def test_who_may_not_and_what_is_invalid_is_refused_before_the_stream(
    server: InProcessServer, store: Database, host: ArchiveServer
) -> None:
    who = await person(store)

    async def status(headers: dict[str, str], **body: Any) -> int:
        return (await server.http.post(PATH, headers=headers, json=body)).status_code

    assert await status({}, url=host.url()) == 401
    assert await status((await server.thread()).headers, url=host.url()) == 401
    assert await status(who.headers, url="https://elsewhere.example/o/r") == 403
    for body in (
        {}, {"url": ""}, {"url": f"{host.origin}/o"}, {"url": host.url(), "ref": ".."},
        {"url": host.url(), "path": "../x"}, {"url": host.url(), "into": "/x"},
        {"url": host.url(), "into": "a\0b"}, {"url": host.url(), "other": 1},
    ):  # fmt: skip
        assert await status(who.headers, **body) == 400, body
    rules = {"items": [{"pattern": "load_repo", "action": "deny"}]}
    assert (await server.http.put("/api/me/tool-rules", headers=who.headers, json=rules)).status_code == 200
    assert await status(who.headers, url=host.url()) == 403
    assert await paths_of(store, who) == []


async def test_a_client_that_leaves_ends_its_load(
    server: InProcessServer, store: Database, host: ArchiveServer
) -> None:
    who = await person(store)
    for _ in range(MAX_OWNER_LOADS + 1):
        request = server.http.build_request("POST", PATH, headers=who.headers, json={"url": host.url("slow")})
        response = await server.http.send(request, stream=True)
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if '"bytes"' in line:
                break
        await response.aclose()
    async with asyncio.timeout(20):
        while (end := (await events(server, who, url=host.url()))[-1])["type"] != "loaded":
            assert end["code"] == "unavailable"
            await asyncio.sleep(0.05)
    assert len(await paths_of(store, who)) == 3


async def test_an_account_has_few_loads_at_once(server: InProcessServer, store: Database, host: ArchiveServer) -> None:
    who = await person(store)

    async def load(number: int) -> str:
        found = await events(server, who, url=host.url("slow"), into=f"f{number}")
        host.release.set()  # The first to end is the one that is refused.
        return str(found[-1].get("code", "loaded"))

    host.release.clear()
    ends = await asyncio.gather(*(load(number) for number in range(MAX_OWNER_LOADS + 1)))
    host.release.clear()
    assert sorted(ends) == ["loaded"] * MAX_OWNER_LOADS + ["unavailable"]
