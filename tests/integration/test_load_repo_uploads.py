"""`load_repo` of uploaded archives, and the search in a large repository."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from khala.blobs.blob_service import BlobService
from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.tools.directory_tools import GlobFiles
from khala.tools.file_search import GrepFiles
from khala.tools.repositories import LoadRepo
from khala.tools.workspace_tools import ReadFile
from tests.support.blobs import blob_service_of
from tests.support.people import new_user
from tests.support.repository_archives import tar_gz, tar_gz_of, zip_of
from tests.support.repository_host import ArchiveServer, archive_server
from tests.support.repository_loads import FOLDER, files_of, refused, tool_of
from tests.support.store import new_thread
from tests.support.tool_calls import call, user


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


async def upload(blobs: BlobService, actor: ToolActor, name: str, data: bytes) -> str:
    assert actor.thread_id is not None
    async with blobs.spool() as spool:
        await spool.write(data)
        ref = await blobs.put(spool, thread_id=actor.thread_id, media_type="application/zip", name=name)
        return str(ref.blob_id)


async def in_thread(db: Database) -> ToolActor:
    user_id, thread_id = await new_user(db), await new_thread(db)
    return ToolActor(owner_id=user_id, user_id=user_id, thread_id=thread_id)


async def test_an_uploaded_archive_becomes_a_folder(db: Database, blobs: BlobService, tool: LoadRepo) -> None:
    actor = await in_thread(db)
    entries = [("my-app/a.txt", "file", b"one"), ("my-app/b/c.txt", "file", b"two"), ("my-app/l", "symlink", b"/etc")]
    for name, data in (("my app.zip", zip_of(entries)), ("my app.tar.gz", tar_gz_of(entries))):
        result = await call(tool, actor, blobId=await upload(blobs, actor, name, data))
        if name.endswith("zip"):
            assert (result.json["folder"], result.json["files"]) == ("repositories/my app", 2), result.text
        else:
            # Another source of the same name replaces nothing.
            assert result.result.code == "conflict"
    files = await files_of(db, actor)
    assert files["repositories/my app/a.txt"] == b"one"
    result = await call(tool, actor, blobId=await upload(blobs, actor, "my app.tar.gz", tar_gz_of(entries)), into="t")
    assert (await files_of(db, actor))["t/b/c.txt"] == b"two", result.text


async def test_an_upload_of_another_thread_and_one_that_is_no_archive_are_refused(
    db: Database, blobs: BlobService, tool: LoadRepo
) -> None:
    actor, other = await in_thread(db), await in_thread(db)
    theirs = await upload(blobs, other, "x.zip", zip_of([("a", "file", b"1")]))
    assert (await refused(tool, actor, blobId=theirs))[0] == "not_found"
    mine = await upload(blobs, actor, "x.zip", b"plain text")
    assert (await refused(tool, actor, blobId=mine))[0] == "not_an_archive"
    assert await files_of(db, actor) == {}


async def test_5_000_files_are_loaded_and_every_line_of_them_is_found(
    db: Database, host: ArchiveServer, tool: LoadRepo, actor: ToolActor
) -> None:
    line = "def handler(request): return respond(request)\n"
    files = {f"pkg{at % 97}/mod{at}.py": (line * 40 + f"needle_{at} = 1\n").encode() for at in range(5000)}
    host.archives["repo"] = tar_gz(files)
    result = await call(tool, actor, url=host.url())
    assert (result.ok, result.json["files"]) == (True, 5000), result.text
    found = await call(GrepFiles(db), actor, pattern=r"needle_4321\b", path=FOLDER)
    assert found.text == f"[1 matching line]\n{FOLDER}/pkg53/mod4321.py:41:needle_4321 = 1"
    counted = await call(GrepFiles(db), actor, pattern="needle_", glob="*.py")
    assert counted.text.startswith("[5,000 matching lines; 200 of them here")
    assert len((await call(GlobFiles(db), actor, pattern=f"{FOLDER}/**/*.py")).text.splitlines()) == 5000
    lines: dict[str, Any] = {"path": f"{FOLDER}/pkg0/mod0.py", "from": 41}
    assert (await call(ReadFile(db), actor, **lines)).text.endswith("needle_0 = 1")
