"""`load_repo`: repositories become files of the workspace, all or none; every refusal has its own code and sentence."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala.blobs.blob_service import BlobService
from khala.domain import ids
from khala.domain.repository_hosts import HostKind, RepositoryHost
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files, workspace_folders
from khala.tools.http_client import GuardedClient
from khala.tools.invocation import invoke
from khala.tools.port import CallContext
from khala.tools.repositories import LoadRepo, RepositoryError, RepositoryLoader, RepositoryRequest
from khala.tools.repositories import loader as loader_module
from khala.tools.repositories.archive_limits import ArchiveLimits
from khala.tools.repositories.loader import SOURCE_FILE
from khala.tools.workspace_tools import WriteFile
from tests.support.blobs import blob_service_of
from tests.support.certificates import certificate
from tests.support.pages import pages
from tests.support.people import new_user
from tests.support.repository_archives import COMMIT, tar_gz, tar_gz_of
from tests.support.repository_host import FILES, RESET_SECONDS, ArchiveServer, archive_server
from tests.support.repository_loads import FOLDER, HERE, files_of, refused, tool_of
from tests.support.tool_calls import BoundedSink, call, guest, user

TEXTS = {f"{FOLDER}/README.md", f"{FOLDER}/src/main.py", f"{FOLDER}/{SOURCE_FILE}"}


@pytest_asyncio.fixture
async def host() -> AsyncIterator[ArchiveServer]:
    async with archive_server() as made:
        yield made


@pytest_asyncio.fixture
async def blobs(db: Database) -> AsyncIterator[BlobService]:
    async with blob_service_of(db) as made:
        yield made


@pytest_asyncio.fixture
async def actor(db: Database) -> ToolActor:
    return user(await new_user(db))


@pytest.fixture
def tool(db: Database, blobs: BlobService, host: ArchiveServer) -> LoadRepo:
    return tool_of(db, blobs, host)


async def test_a_repository_becomes_files_of_the_workspace_across_a_redirect_to_another_host(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    result = await call(tool, actor, url=host.url())
    assert result.ok, result.text
    assert result.json == {
        "folder": FOLDER, "source": host.url(), "commit": COMMIT, "files": 2, "bytes": 24,
        "skipped": ({"reason": "binary", "count": 1, "examples": ("repo-0123/src/deep/data.bin",)},),
    }  # fmt: skip
    assert result.result.summary == f"Loaded 2 files into {FOLDER}, skipped 1"
    files = await files_of(db, actor)
    assert set(files) == TEXTS
    assert files[f"{FOLDER}/README.md"] == FILES["README.md"]
    assert COMMIT in files[f"{FOLDER}/{SOURCE_FILE}"].decode()
    assert host.requests == ["/owner/repo/archive/HEAD.tar.gz", "/codeload/owner/repo/HEAD"]


@pytest.mark.parametrize(
    ("kind", "branch", "requests"),
    [
        ("github", None, ["/owner/repo/archive/feature/x.tar.gz", "/codeload/owner/repo/feature/x"]),
        ("gitlab", None, ["/api/v4/projects/owner%2Frepo/repository/archive.tar.gz?sha=feature%2Fx"]),
        ("bitbucket", None, ["/owner/repo/get/feature/x.tar.gz"]),
        ("gitea", "main", ["/owner/repo/archive/feature/x.tar.gz", "/codeload/owner/repo/feature/x"]),
    ],
)
async def test_every_kind_of_host_serves_a_branch_and_the_default_branch(
    db: Database, blobs: BlobService, host: ArchiveServer, actor: ToolActor, kind: HostKind, branch: str | None,
    requests: list[str],
) -> None:  # fmt: skip
    tool = tool_of(db, blobs, host, kind)
    result = await call(tool, actor, url=host.url(), ref="feature/x")
    assert (result.ok, result.json["ref"], host.requests) == (True, "feature/x", requests), result.text
    assert set(await files_of(db, actor)) == TEXTS
    default = await call(tool, actor, url=f"{host.url()}.git")
    assert (default.ok, default.json.get("ref")) == (True, branch), default.text
    if branch:
        assert "/api/v1/repos/owner/repo" in host.requests


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("missing", "not_found", "localhost has no repository"),
        ("private", "private", "is private or requires a login"),
        ("forbidden", "private", "is private or requires a login"),
        ("login", "private", "is private or requires a login"),
        ("limited", "rate_limited", "limits the rate of requests. Try again in 77 seconds."),
        ("limited-later", "rate_limited", "Try again later."),
        ("limited-reset", "rate_limited", f"Try again in {RESET_SECONDS} seconds."),
        ("limited-date", "rate_limited", "Try again in "),
        ("broken", "unavailable", "answered 500"),
        ("page", "not_an_archive", "answered with a web page"),
        ("truncated", "unavailable", "The connection failed"),
        ("text", "not_an_archive", "not a .zip or .tar.gz archive"),
        ("links", "not_found", "no text files that can be loaded. Skipped: 1 × symlink."),
    ],
)
async def test_every_refusal_has_its_own_code_and_sentence_and_nothing_is_stored(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor, name: str, code: str, sentence: str
) -> None:
    host.archives |= {"text": b"Not a tar file.", "links": tar_gz_of([("top/a", "symlink", b"")])}
    found, text = await refused(tool, actor, url=host.url(name))
    assert (found, sentence.replace("localhost", "127.0.0.1") in text) == (code, True), text
    assert await files_of(db, actor) == {}


async def test_the_seconds_of_a_rate_limit_are_told_to_programs_too(
    db: Database, blobs: BlobService, host: ArchiveServer
) -> None:
    tool = tool_of(db, blobs, host)
    request = RepositoryRequest(url=host.url("limited-reset"))
    with pytest.raises(RepositoryError) as raised:
        await tool._loader.load(ids.new(), request, lambda _: None)
    assert raised.value.retry_after_seconds in range(RESET_SECONDS - 10, RESET_SECONDS + 1)


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("http://127.0.0.9:1/x", "unavailable"),
        ("http://169.254.169.254/latest", "forbidden"),
        ("http://10.0.0.1/x", "forbidden"),
        ("file:///etc/passwd", "forbidden"),
        ("http://user:word@127.0.0.1/", "forbidden"),
        ("/owner/loop/archive/HEAD.tar.gz", "forbidden"),
    ],
)
async def test_each_redirect_is_checked_by_the_ssrf_guard(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor, location: str, code: str
) -> None:
    host.redirects["loop"] = location
    assert (await refused(tool, actor, url=host.url("loop")))[0] == code
    assert await files_of(db, actor) == {}


async def test_a_redirect_from_https_to_http_is_refused(
    db: Database, blobs: BlobService, host: ArchiveServer, actor: ToolActor, tmp_path: Path
) -> None:
    file = certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    async with pages(context) as web:
        web.respond("/owner/repo/archive/HEAD.tar.gz", b"", "302 Found", Location=f"{host.origin}/codeload/o/repo/HEAD")
        web.respond("/owner/repo/archive/main.tar.gz", tar_gz(FILES))
        client = GuardedClient(allow=HERE, trust=ssl.create_default_context(cafile=file))
        secure = RepositoryHost(kind="github", origin=f"https://localhost:{web.port}")
        tool = LoadRepo(RepositoryLoader(db, blobs, client, hosts=[secure]))
        assert await refused(tool, actor, url=f"{secure.origin}/owner/repo") == (
            "forbidden", "localhost redirects to an address without TLS.",
        )  # fmt: skip
        assert host.requests == []
        assert (await call(tool, actor, url=f"{secure.origin}/owner/repo", ref="main")).ok


async def test_a_host_that_is_not_allowed_is_refused_before_any_request(
    host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    code, text = await refused(tool, actor, url=f"http://localhost:{host.port}/owner/repo")
    assert (code, host.requests) == ("forbidden", [])
    assert text.startswith(f"Repositories of localhost:{host.port} can't be loaded.")


async def test_an_allowed_host_at_a_private_address_still_needs_an_allowed_network(
    db: Database, blobs: BlobService, host: ArchiveServer, actor: ToolActor
) -> None:
    tool = LoadRepo(RepositoryLoader(db, blobs, GuardedClient(), hosts=[host.host("github")]))
    code, text = await refused(tool, actor, url=host.url())
    assert (code, host.requests) == ("forbidden", [])
    assert "not public" in text


async def test_an_empty_repository_and_a_strange_answer_of_an_api_are_told(
    db: Database, blobs: BlobService, host: ArchiveServer, actor: ToolActor
) -> None:
    tool = tool_of(db, blobs, host, "gitea")
    assert await refused(tool, actor, url=host.url("empty")) == ("not_found", "The repository owner/empty is empty.")
    assert (await refused(tool, actor, url=host.url("missing")))[0] == "not_found"
    assert (await refused(tool, actor, url=host.url("limited")))[0] == "rate_limited"


async def test_a_load_that_takes_too_long_ends_and_stores_nothing(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "LOAD_TIMEOUT_SECONDS", 0.3)
    code, text = await refused(tool, actor, url=host.url("slow"))
    assert (code, text) == ("timeout", "Timed out after 0.3 s.")
    assert await files_of(db, actor) == {}
    monkeypatch.undo()
    assert (await call(tool, actor, url=host.url())).ok


async def test_a_cancelled_load_stores_nothing_and_leaves_room_for_others(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    for _ in range(loader_module.MAX_OWNER_LOADS + 1):
        seen = len(host.requests)
        loading = asyncio.create_task(call(tool, actor, url=host.url("slow")))
        async with asyncio.timeout(20):
            while len(host.requests) < seen + 2:
                await asyncio.sleep(0.01)
        loading.cancel()
        await asyncio.wait({loading})
        assert loading.cancelled()
    assert await files_of(db, actor) == {}
    assert (await call(tool, actor, url=host.url())).ok


async def test_an_owner_loads_few_repositories_at_once(
    host: ArchiveServer, tool: LoadRepo, actor: ToolActor, db: Database
) -> None:
    calls = [asyncio.create_task(call(tool, actor, url=host.url("slow"), into=f"f{at}")) for at in range(4)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=20)
    (refusal,) = [task.result() for task in done]
    assert (refusal.result.code, "Try again" in refusal.text) == ("unavailable", True)
    host.release.set()
    assert sum(result.ok for result in await asyncio.gather(*calls)) == 3


async def test_a_second_load_replaces_the_folder_and_nothing_else(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    await call(WriteFile(db), actor, path="notes.md", content="mine")
    await call(WriteFile(db), actor, path=f"{FOLDER}-2/mine.md", content="mine")
    assert (await call(tool, actor, url=host.url())).ok
    before = await files_of(db, actor)
    assert (await call(tool, actor, url=host.url())).ok
    assert await files_of(db, actor) == before
    host.archives["repo"] = tar_gz({"README.md": b"new", "only.txt": b"1"}, commit="f" * 40)
    assert (await call(tool, actor, url=host.url())).json["commit"] == "f" * 40
    after = await files_of(db, actor)
    assert set(after) == {
        "notes.md", f"{FOLDER}-2/mine.md", f"{FOLDER}/README.md", f"{FOLDER}/only.txt", f"{FOLDER}/{SOURCE_FILE}",
    }  # fmt: skip
    assert (after[f"{FOLDER}/README.md"], after["notes.md"]) == (b"new", b"mine")


async def test_a_folder_with_other_files_is_never_replaced(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    await call(WriteFile(db), actor, path="work/mine.md", content="mine")
    await call(WriteFile(db), actor, path=f"other/{SOURCE_FILE}", content="{")
    await call(WriteFile(db), actor, path="file", content="mine")
    before = await files_of(db, actor)
    for into, sentence in (
        ("work", "The folder work has other files."), ("other", "The folder other has other files."),
        ("file", "file can't be a folder"), ("file/below", "file/below can't be a folder: file is a file."),
    ):  # fmt: skip
        code, text = await refused(tool, actor, url=host.url(), into=into)
        assert (code, sentence in text) == ("conflict", True), text
    assert (await call(tool, actor, url=host.url(), into="mine/repo")).ok
    assert (await refused(tool, actor, url=host.url("second"), into="mine/repo"))[0] == "conflict"
    assert {
        path: content for path, content in (await files_of(db, actor)).items() if "mine/repo/" not in path
    } == before


async def test_a_file_of_the_repository_can_not_name_another_source(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    host.archives["repo"] = tar_gz({SOURCE_FILE: b'{"source": "http://other"}', "a": b"1"})
    assert (await call(tool, actor, url=host.url())).json["files"] == 1
    assert host.url().encode() in (await files_of(db, actor))[f"{FOLDER}/{SOURCE_FILE}"]


async def test_the_quota_of_the_workspace_holds_and_what_was_there_stays(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await call(tool, actor, url=host.url())).ok
    before = await files_of(db, actor)
    host.archives["repo"] = tar_gz({str(number): b"x" * 500 for number in range(9)})
    for name, limit in (("MAX_FILES", 9), ("MAX_TOTAL_BYTES", 4500)):
        with monkeypatch.context() as patch:
            patch.setattr(workspace_files, name, limit)
            assert (await refused(tool, actor, url=host.url()))[0] == "too_large"
    assert await files_of(db, actor) == before
    assert (await call(tool, actor, url=host.url())).json["files"] == 9


async def test_a_failure_in_the_middle_of_storing_leaves_the_folder_as_it_was(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await call(tool, actor, url=host.url())).ok
    before = await files_of(db, actor)
    host.archives["repo"] = tar_gz({str(number): b"x" for number in range(9)})

    def failing(files: dict[str, bytes]) -> Any:
        yield dict(list(files.items())[:5])
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(workspace_folders, "_batches", failing)
        assert (await refused(tool, actor, url=host.url()))[0] == "failed"
    assert await files_of(db, actor) == before


async def test_limits_of_the_download_are_told(
    db: Database, blobs: BlobService, host: ArchiveServer, actor: ToolActor
) -> None:
    limits = ArchiveLimits(files=10, total_bytes=10_000, compressed_bytes=100)
    code, text = await refused(tool_of(db, blobs, host, limits=limits), actor, url=host.url())
    assert (code, "The archive is larger than" in text) == ("too_large", True)


async def test_progress_is_reported_from_the_download_to_the_end(
    host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    host.archives["repo"] = tar_gz({f"f{number}": b"line\n" for number in range(450)})
    said: list[str] = []
    context = CallContext(id="c", idempotency_key="c", actor=actor, sink=BoundedSink(), progress=said.append)
    assert (await invoke(tool, {"url": host.url()}, context)).ok
    assert said[0] == "Connecting"
    assert any(text.startswith("Downloaded ") for text in said)
    assert {"Reading the archive", "Storing 450 files"} <= set(said)
    assert sum(text.startswith("Read ") for text in said) >= 2


async def test_a_guest_may_not_load_a_repository(host: ArchiveServer, tool: LoadRepo) -> None:
    assert (await refused(tool, guest(ids.new()), url=host.url()))[0] == "forbidden"
    assert host.requests == []


@pytest.mark.parametrize(
    "args",
    [{}, {"url": "u", "blobId": str(ids.new())}, {"blobId": str(ids.new()), "ref": "x"}, {"url": ""}, {"into": "x"}],
)
async def test_invalid_arguments_are_told(tool: LoadRepo, actor: ToolActor, args: dict[str, Any]) -> None:
    assert (await refused(tool, actor, **args))[0] == "bad_arguments"


@pytest.mark.parametrize("into", ["../x", "/x", "a\nb", "a/" * 20])
async def test_a_folder_outside_the_workspace_is_refused(
    host: ArchiveServer, tool: LoadRepo, actor: ToolActor, into: str
) -> None:
    assert (await refused(tool, actor, url=host.url(), into=into))[0] == "bad_arguments"
    assert host.requests == []
