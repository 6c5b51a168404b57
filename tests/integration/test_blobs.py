"""Blobs: a folder and a bucket behave alike, content is stored once, and unneeded objects are collected."""

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
import psutil
import pytest
from aiohttp import web

from khala.blobs import garbage_collector, temporary_folder
from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.blobs.port import BlobStore
from khala.blobs.s3 import S3BlobStore
from khala.blobs.spool import size_limit_error
from khala.blobs.store_url import open_store, validated_store_url
from khala.domain import ids
from khala.domain.errors import (
    BlobNotFound,
    InvalidInput,
    PayloadTooLarge,
    RateLimited,
    RunNotFound,
    ThreadNotFound,
    Unavailable,
)
from khala.domain.parts import BlobRef
from khala.store.blobs import blobs, objects
from khala.store.blobs.blobs import StorageQuota
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.postgres.database import Database, driver_of
from khala.store.threads import threads
from tests.support.blobs import store_blob
from tests.support.callers import owned_thread, person
from tests.support.s3 import BUCKET, S3, serving
from tests.support.store import CALLER, lease_of, new_thread

WEEK = RetentionPolicy(idle=timedelta(days=7))
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with serving() as server:
        yield server


@pytest.fixture(params=["folder", "bucket"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BlobStore]:
    url = None
    if request.param == "bucket":
        server: S3 = request.getfixturevalue("s3")
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{BUCKET}/{ids.new().hex}"
    made = open_store(url, tmp_path)
    yield made
    await made.aclose()


@pytest.fixture
async def blob_service(db: Database, store: BlobStore, tmp_path: Path) -> BlobService:
    folder = tmp_path / "spool"
    folder.mkdir()
    return BlobService(db, store, folder=folder)


@pytest.fixture
async def thread_id(db: Database) -> UUID:
    return await new_thread(db)


async def bytes_of(blob_service: BlobService, ref: BlobRef, start: int = 0, end: int | None = None) -> bytes:
    blob = await blob_service.find(ref.blob_id)
    async with blob_service.read(blob, start, end) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def age_objects(db: Database, *, hours: float = 2) -> None:
    """Make every object look as if no writer had touched it for so many hours."""
    async with db.driver() as driver:
        await driver.execute("UPDATE objects SET touched_at = touched_at - $1::interval", timedelta(hours=hours))


async def delete_row(db: Database, ref: BlobRef) -> None:
    async with db.driver() as driver:
        await driver.execute("DELETE FROM blobs WHERE id = $1", ref.blob_id)


async def _until_gone(blob_service: BlobService, ref: BlobRef) -> None:
    """Wait until the blob does not exist."""
    async with asyncio.timeout(5):
        while True:
            try:
                await blob_service.find(ref.blob_id)
            except BlobNotFound:
                return
            await asyncio.sleep(0.02)


async def attach(db: Database, thread_id: UUID, blob_ids: list[UUID]) -> list[BlobRef]:
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id)
        return await blobs.attach(await driver_of(connection), thread_id, blob_ids)


async def is_stored(store: BlobStore, key: str) -> bool:
    try:
        async with store.read(key, 0, 1) as chunks:
            return bool([chunk async for chunk in chunks])
    except BlobNotFound:
        return False


async def count(db: Database, table: str) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval(f"SELECT count(*) FROM {table}"))


async def test_a_stored_blob_is_read_whole_and_in_ranges(blob_service: BlobService, thread_id: UUID) -> None:
    data = b"".join(b"%09d\n" % number for number in range(50_000))
    ref = await store_blob(blob_service, thread_id, data, name="../etc/numbers.txt")
    assert (ref.size, ref.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (ref.media_type, ref.name, ref.preview[:20]) == ("text/plain", "numbers.txt", "000000000\n000000001\n")
    assert await bytes_of(blob_service, ref) == data
    for start, end in ((0, 1), (65_535, 65_537), (99_999, 300_000), (len(data) - 1, len(data) + 9), (7, 7)):
        assert await bytes_of(blob_service, ref, start, end) == data[start:end]


async def test_an_empty_blob_is_stored_too(blob_service: BlobService, thread_id: UUID) -> None:
    ref = await store_blob(blob_service, thread_id, b"")
    assert await bytes_of(blob_service, ref) == b""


async def test_thirty_megabytes_are_stored_and_read_with_little_memory(
    blob_service: BlobService, thread_id: UUID, tmp_path: Path
) -> None:
    await blob_service.check()  # so that the memory of lazy imports isn't counted
    process, most, before = psutil.Process(), 0, psutil.Process().memory_info().rss
    block, expected = os.urandom(MEGABYTE), hashlib.sha256()
    done = asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, process.memory_info().rss - before)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    async with blob_service.spool() as spool:
        for _ in range(30):
            await spool.write(block)
            expected.update(block)
        ref = await blob_service.put(spool, thread_id=thread_id, media_type="application/octet-stream")
    found = hashlib.sha256()
    async with blob_service.read(await blob_service.find(ref.blob_id)) as chunks:
        async for chunk in chunks:
            found.update(chunk)
    done.set()
    await watching
    assert found.hexdigest() == ref.sha256 == expected.hexdigest()
    assert most < 16 * MEGABYTE
    assert list((tmp_path / "spool").iterdir()) == []


async def test_the_same_content_is_stored_once_and_each_blob_stands_by_itself(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    other = await new_thread(db)
    refs = await asyncio.gather(*(store_blob(blob_service, place) for place in (thread_id, other) * 4))
    assert len({ref.blob_id for ref in refs}) == 8
    assert await count(db, "objects") == 1
    await delete_row(db, refs[0])
    assert await bytes_of(blob_service, refs[1]) == b"En taro Adun"
    with pytest.raises(BlobNotFound):
        await blob_service.find(refs[1].blob_id, thread_id)
    assert (await blob_service.find(refs[1].blob_id, other)).ref == refs[1]


async def test_a_lost_object_is_not_found_and_is_stored_again_with_the_same_content(
    blob_service: BlobService, thread_id: UUID
) -> None:
    ref = await store_blob(blob_service, thread_id)
    await blob_service.store.delete(ref.sha256)
    await blob_service.store.delete(ref.sha256)
    with pytest.raises(BlobNotFound):
        await bytes_of(blob_service, ref)
    await blob_service.mark_missing(await blob_service.find(ref.blob_id))
    await store_blob(blob_service, thread_id)
    assert await bytes_of(blob_service, ref) == b"En taro Adun"


async def test_an_expired_blob_is_not_found_at_once_and_others_stay(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    lasting = await store_blob(blob_service, thread_id)
    brief = await store_blob(blob_service, thread_id, expires_at=datetime.now(UTC) + timedelta(seconds=1))
    assert await bytes_of(blob_service, brief) == b"En taro Adun"
    assert brief.blob_id != lasting.blob_id
    await _until_gone(blob_service, brief)
    assert (await count_due(db, WEEK))["blobs"] == 1
    assert (await purge(db, WEEK))["blobs"] == 1
    await age_objects(db)
    assert await BlobGarbageCollector(db, blob_service.store).collect() == 0
    assert await bytes_of(blob_service, lasting) == b"En taro Adun"


async def test_a_reset_or_deleted_thread_has_no_blobs_and_their_bytes_go(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    other = await new_thread(db)
    gone, kept = await store_blob(blob_service, thread_id, b"gone"), await store_blob(blob_service, other, b"kept")
    await threads.reset(db, thread_id, CALLER, welcome="")
    with pytest.raises(BlobNotFound):
        await blob_service.find(gone.blob_id)
    again = await store_blob(blob_service, thread_id, b"gone")
    await threads.remove(db, thread_id, CALLER)
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET deleted_at = now() - interval '2 days' WHERE id = $1", thread_id)
    done = await purge(db, WEEK)
    assert (done["blobs"], done["threads"]) == (2, 1)
    with pytest.raises(BlobNotFound):
        await blob_service.find(again.blob_id)
    collector = BlobGarbageCollector(db, blob_service.store)
    assert (await collector.due(), await collector.collect()) == (0, 0)
    await age_objects(db)
    assert (await collector.due(), await collector.collect(), await collector.collect()) == (1, 1, 0)
    assert not await is_stored(blob_service.store, gone.sha256)
    assert await bytes_of(blob_service, kept) == b"kept"


async def test_a_collection_examines_a_bounded_number_of_objects_and_the_next_one_continues(
    db: Database, blob_service: BlobService, thread_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage_collector, "BATCH_OBJECTS", 2)
    refs = [await store_blob(blob_service, thread_id, f"blob {number}".encode()) for number in range(12)]
    unreferenced = sorted(refs, key=lambda ref: ref.sha256)[::4]
    for ref in unreferenced:
        await delete_row(db, ref)
    await age_objects(db)
    collector = BlobGarbageCollector(db, blob_service.store)
    counts = [await collector.collect(max_kept=3) for _ in range(5)]
    assert sum(counts) == len(unreferenced)
    assert max(counts) < len(unreferenced), "no collection examined all objects"
    assert [await is_stored(blob_service.store, ref.sha256) for ref in refs] == [
        ref not in unreferenced for ref in refs
    ]


async def test_no_blob_is_added_to_a_deleted_thread_or_run(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    lease = await lease_of(db, thread_id)
    assert (await store_blob(blob_service, thread_id, run_id=lease.run_id)).size == 12
    await threads.reset(db, thread_id, CALLER, welcome="")
    with pytest.raises(RunNotFound):
        await store_blob(blob_service, thread_id, run_id=lease.run_id)
    await threads.remove(db, thread_id, CALLER)
    with pytest.raises(ThreadNotFound):
        await store_blob(blob_service, thread_id)
    await purge(db, WEEK)
    assert await count(db, "blobs") == 0


class SlowDeletions:
    """A store whose deletions wait for an event."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.deleting, self.let = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def delete(self, key: str) -> None:
        self.deleting.set()
        await self.let.wait()
        await self._store.delete(key)


async def test_a_writer_waits_for_the_collection_of_its_object_and_stores_it_again(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    await delete_row(db, await store_blob(blob_service, thread_id))
    await age_objects(db)
    slow = SlowDeletions(blob_service.store)
    collecting = asyncio.create_task(BlobGarbageCollector(db, slow).collect())  # type: ignore[arg-type]
    await asyncio.wait_for(slow.deleting.wait(), 10)
    keeping = asyncio.create_task(store_blob(blob_service, thread_id))
    done, _ = await asyncio.wait({keeping}, timeout=0.3)
    assert not done, "the writer waits for the row"
    slow.let.set()
    assert await asyncio.wait_for(collecting, 10) == 1
    assert await bytes_of(blob_service, await asyncio.wait_for(keeping, 10)) == b"En taro Adun"


async def _deleted_by_one_who_dies(db: Database, blob_service: BlobService, ref: BlobRef) -> None:
    async with objects.deleting(db, bytes.fromhex(ref.sha256)):
        await blob_service.store.delete(ref.sha256)
        raise KeyError


async def test_a_collector_that_dies_between_bytes_and_row_loses_no_later_write(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    ref = await store_blob(blob_service, thread_id)
    await delete_row(db, ref)
    await age_objects(db)
    assert [sha.hex() for sha in (await objects.release_unreferenced(db, b"", 10)).released] == [ref.sha256]
    with pytest.raises(KeyError):
        await _deleted_by_one_who_dies(db, blob_service, ref)
    assert await bytes_of(blob_service, await store_blob(blob_service, thread_id)) == b"En taro Adun"
    await age_objects(db)
    assert await BlobGarbageCollector(db, blob_service.store).collect() == 0


HEAD_STARTS = (None, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)
"""Seconds that the collectors begin before the writers; None lets them finish first."""


@pytest.mark.parametrize("head_start", HEAD_STARTS)
async def test_collectors_and_writers_at_once_leave_every_blob_whole(
    db: Database, blob_service: BlobService, thread_id: UUID, head_start: float | None
) -> None:
    contents = [b"one", b"two"]
    for ref in [await store_blob(blob_service, thread_id, content) for content in contents]:
        await delete_row(db, ref)
    await age_objects(db)
    collecting = [asyncio.create_task(BlobGarbageCollector(db, blob_service.store).collect()) for _ in range(2)]
    if head_start is None:
        await asyncio.wait(collecting)
    else:
        await asyncio.sleep(head_start)
    refs = await asyncio.gather(*(store_blob(blob_service, thread_id, contents[number % 2]) for number in range(4)))
    collected = sum(await asyncio.gather(*collecting))
    assert [await bytes_of(blob_service, ref) for ref in refs] == [contents[number % 2] for number in range(4)]
    assert collected == 2 if head_start is None else collected <= 2


async def test_bytes_without_a_row_are_found_after_a_day_and_collected(
    db: Database, blob_service: BlobService, thread_id: UUID, tmp_path: Path
) -> None:
    kept = await store_blob(blob_service, thread_id, b"kept")
    stray = tmp_path / "stray"
    stray.write_bytes(b"stray")
    key = hashlib.sha256(b"stray").hexdigest()
    await blob_service.store.put(key, stray)
    await blob_service.check()
    collector = BlobGarbageCollector(db, blob_service.store)
    assert await collector.sweep() == 0
    await asyncio.sleep(1.1)  # a bucket's timestamps are whole seconds
    assert await collector.sweep(min_age_seconds=0) == 1
    assert await collector.collect() == 1
    assert not await is_stored(blob_service.store, key)
    assert await bytes_of(blob_service, kept) == b"kept"
    assert await collector.sweep(min_age_seconds=0) == 0


async def test_a_store_of_another_database_is_not_swept(
    db: Database, blob_service: BlobService, tmp_path: Path
) -> None:
    assert await blob_service.store.register_owner("another") == "another"
    assert await blob_service.store.register_owner("ours") == "another"
    stray = tmp_path / "stray"
    stray.write_bytes(b"stray")
    await blob_service.store.put("ab" * 32, stray)
    assert await BlobGarbageCollector(db, blob_service.store).sweep(min_age_seconds=-5) == 0


async def test_a_reader_that_gives_up_closes_what_it_had_open(blob_service: BlobService, thread_id: UUID) -> None:
    ref = await store_blob(blob_service, thread_id, os.urandom(4 * MEGABYTE))
    blob = await blob_service.find(ref.blob_id)
    process = psutil.Process()

    async def read_some() -> None:
        async with blob_service.read(blob) as chunks:
            async for _ in chunks:
                await asyncio.sleep(3600)

    before = process.num_fds()
    for _ in range(5):
        reading = asyncio.create_task(read_some())
        await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait({reading})
    deadline = time.monotonic() + 5
    while process.num_fds() > before + 1:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_thread_stores_bytes_up_to_its_quota(db: Database, blob_service: BlobService, thread_id: UUID) -> None:
    blob_service.quota = StorageQuota(thread=1000, guest=100)  # the threads of these tests belong to guests
    await store_blob(blob_service, thread_id, b"x" * 60)
    found = await asyncio.gather(
        *(store_blob(blob_service, thread_id, b"y" * 30) for _ in range(4)), return_exceptions=True
    )
    assert [type(result) for result in found if isinstance(result, Exception)] == [PayloadTooLarge] * 3
    await store_blob(blob_service, await new_thread(db), b"z" * 100)


async def test_a_spool_accepts_bytes_up_to_its_limit(blob_service: BlobService, tmp_path: Path) -> None:
    async with blob_service.spool(100_000) as spool:
        await spool.write(b"a" * 10_000)
        assert await spool.whole() == b"a" * 10_000
        await spool.write(b"b" * 90_000)
        with pytest.raises(PayloadTooLarge, match=re.escape(size_limit_error(100_000).message)):
            await spool.write(b"c")
        with pytest.raises(ValueError, match="100,000"):
            await spool.whole()
        assert (await spool.file()).stat().st_size == spool.size == 100_000
        assert spool.head == b"a" * 4096
        assert spool.sha256 == hashlib.sha256(b"a" * 10_000 + b"b" * 90_000).digest()
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_spool_whose_writer_is_cancelled_has_all_accepted_bytes_in_order(
    blob_service: BlobService, thread_id: UUID
) -> None:
    async with blob_service.spool() as spool:
        for number in range(20):
            writing = asyncio.create_task(spool.write(bytes([number]) * 70_000))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
        ref = await blob_service.put(spool, thread_id=thread_id, media_type="application/octet-stream")
    found = await bytes_of(blob_service, ref)
    assert hashlib.sha256(found).hexdigest() == ref.sha256
    assert found == b"".join(bytes([number]) * 70_000 for number in range(20))


async def test_a_spool_that_cannot_write_fails_each_write(db: Database, tmp_path: Path) -> None:
    blob_service = BlobService(db, FilesystemBlobStore(tmp_path), folder=tmp_path / "not there")
    async with blob_service.spool() as spool:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await spool.write(b"x" * 70_000)
        with pytest.raises(Unavailable):
            await spool.file()


async def test_uploads_are_attached_once_in_the_requested_order(
    db: Database, blob_service: BlobService, thread_id: UUID
) -> None:
    author = ids.new()
    refs = [
        await store_blob(blob_service, thread_id, data, author_id=author, attached=False) for data in (b"one", b"two")
    ]
    foreign = await store_blob(blob_service, await new_thread(db), author_id=author, attached=False)
    named = [ref.blob_id for ref in reversed(refs)]
    for wrong in ([foreign.blob_id], [ids.new()], [*named, named[0]]):
        with pytest.raises(InvalidInput):
            await attach(db, thread_id, wrong)
    assert await attach(db, thread_id, named) == list(reversed(refs))
    with pytest.raises(InvalidInput):
        await attach(db, thread_id, named[:1])
    async with db.driver() as driver:
        await driver.execute("UPDATE blobs SET expires_at = expires_at - interval '25 hours'")
    assert (await purge(db, WEEK))["blobs"] == 1, (
        "uploads expire a day after they were stored unless a message attaches them"
    )
    assert (await blob_service.find(refs[0].blob_id)).attached


async def test_the_number_of_pending_uploads_is_limited(
    db: Database, blob_service: BlobService, thread_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_UNATTACHED", 3)
    author = ids.new()
    for _ in range(3):
        await store_blob(blob_service, thread_id, author_id=author, attached=False)
    for place, who in ((thread_id, ids.new()), (await new_thread(db), author)):
        with pytest.raises(RateLimited):
            await store_blob(blob_service, place, author_id=who, attached=False)
    await store_blob(blob_service, thread_id)


async def test_concurrent_uploads_to_many_threads_do_not_exceed_the_limit_of_their_author(
    db: Database, blob_service: BlobService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "MAX_UNATTACHED", 3)
    author = ids.new()
    thread_ids = [await new_thread(db) for _ in range(12)]
    uploads = (store_blob(blob_service, each, author_id=author, attached=False) for each in thread_ids)
    outcomes = await asyncio.gather(*uploads, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(error) for error in refused] == [RateLimited] * 9


async def test_files_left_by_a_crash_are_not_objects_and_are_cleared(tmp_path: Path) -> None:
    store = FilesystemBlobStore(tmp_path)
    source = tmp_path / "source"
    source.write_bytes(b"whole")
    await store.put("ab" * 32, source)
    half = tmp_path / "new" / "half"
    half.write_bytes(b"wh")
    assert [key async for key, _ in store.list_older(-5)] == ["ab" * 32]
    assert not half.exists()
    assert oct((tmp_path / "ab").stat().st_mode)[-3:] == "700"
    await store.aclose()


def test_folders_of_dead_processes_are_cleared_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "half").write_bytes(b"wh")
    with temporary_folder.temporary_folder(tmp_path) as first, temporary_folder.temporary_folder(tmp_path) as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
    assert list(tmp_path.iterdir()) == []


async def test_a_bucket_has_presigned_urls_and_a_folder_has_none(blob_service: BlobService, thread_id: UUID) -> None:
    ref = await store_blob(blob_service, thread_id)
    url = await blob_service.store.signed_url(
        ref.sha256, media_type="text/plain", disposition='attachment; filename="a.txt"', seconds=60
    )
    if url is None:
        assert isinstance(blob_service.store, FilesystemBlobStore)
        return
    async with httpx.AsyncClient() as http:
        answer = await http.get(url)
    assert answer.content == b"En taro Adun"
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"] == 'attachment; filename="a.txt"'
    assert "X-Amz-Expires=60" in url


async def test_an_unreachable_store_is_reported_and_no_blob_is_half_stored(
    db: Database, thread_id: UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3
) -> None:
    for name, value in (s3.env | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "file").write_text("in the way")
    for store in (S3BlobStore(BUCKET, connect_timeout=1), FilesystemBlobStore(tmp_path / "file" / "blobs")):
        blob_service = BlobService(db, store, folder=tmp_path)
        with pytest.raises(Unavailable):
            await store_blob(blob_service, thread_id)
        with pytest.raises(Unavailable):
            await blob_service.check()
        assert not await blob_service.is_healthy()
        assert await count(db, "blobs") == 0
        await blob_service.aclose()
        await store.aclose()


async def test_a_missing_bucket_is_reported_as_unreachable(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    store = S3BlobStore("nothing-here")
    with pytest.raises(Unavailable):
        await store.check()
    await store.aclose()


async def test_closing_a_bucket_closes_its_connections(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"khala")

    server = web.Server(answer)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for name, value in (s3.env | {"AWS_ENDPOINT_URL": "http://{}:{}".format(*runner.addresses[0][:2])}).items():
        monkeypatch.setenv(name, value)
    unused, store = S3BlobStore(BUCKET), S3BlobStore(BUCKET)
    try:
        assert await store.register_owner("other") == "khala"
        assert len(server.connections) == 1
        await store.aclose()
        async with asyncio.timeout(10):
            while server.connections:
                await asyncio.sleep(0.01)
        await unused.aclose()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("url", ["https://bucket", "s3://", "s3://a:b@bucket", "s3://bucket?x=1", "bucket"])
def test_an_invalid_bucket_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket"):
        validated_store_url(url)


async def test_all_guests_share_a_daily_quota_that_does_not_affect_users(
    db: Database, blob_service: BlobService
) -> None:
    blob_service.quota = StorageQuota(thread=10_000, guest=10_000, guests_a_day=4096)
    for number in range(4):
        await store_blob(blob_service, await new_thread(db), bytes([number]) * 1000)
    with pytest.raises(RateLimited):
        await store_blob(blob_service, await new_thread(db), b"x" * 1000)
    owned = await owned_thread(db, await person(db))
    await store_blob(blob_service, owned, b"x" * 1000)
