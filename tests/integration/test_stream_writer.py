"""The group commit of durable streams: appends to known streams, also to those that something else has changed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from khala.domain.errors import InvalidInput, NotFound, StorageExhausted, Unavailable
from khala.domain.streams import appends
from khala.domain.streams.appends import Accepted, AlreadyStored, StreamAppend, StreamIsClosed
from khala.domain.streams.producers import ProducerClaim, SequenceGap
from khala.store.postgres.database import Database
from khala.store.streams import append_transaction, creation, removal
from khala.store.streams.append_writer import StreamWriter
from khala.store.streams.creation import NewStream
from khala.store.streams.stream_rows import StreamLimits, StreamSpace

SPACE = StreamSpace(None)
LIMITS = StreamLimits(per_space=1_000, max_bytes=1 << 20, max_space_bytes=1 << 30)
KIND = "text/plain"


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()


@contextlib.asynccontextmanager
async def writer(db: Database, limits: StreamLimits = LIMITS) -> AsyncIterator[StreamWriter]:
    """A writer, as each process has one."""
    one = StreamWriter(db, limits)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})


async def create(
    db: Database, name: str, content_type: str = KIND, ttl: int | None = None, limits: StreamLimits = LIMITS
) -> None:
    new = NewStream(
        name=name, content_type=content_type, body=b"", ttl_seconds=ttl, expires_at=None, closed=False, source=None
    )
    await creation.create(db, SPACE, new, limits)


def of(body: bytes, seq: int | None = None, **more: Any) -> StreamAppend:
    claim = None if seq is None else ProducerClaim("p", 0, seq)
    return StreamAppend(body=body, content_type=more.pop("content_type", KIND), claim=claim, **more)


async def stored(db: Database, name: str) -> bytes:
    async with db.driver() as driver:
        rows = await driver.fetch(
            "SELECT c.position, c.data FROM stream_chunks c JOIN streams s ON s.id = c.stream_id WHERE s.name = $1 "
            "ORDER BY position",
            name,
        )
    position = 0
    for row in rows:
        assert row["position"] == position
        position += len(row["data"])
    return b"".join(row["data"] for row in rows)


@contextlib.contextmanager
def locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of appends in each transaction that locks streams first."""
    counts: list[int] = []
    lock = append_transaction.AppendTransaction.lock

    async def counted(self: Any, driver: Any, batch: Any) -> None:
        counts.append(len(batch))
        await lock(self, driver, batch)

    monkeypatch.setattr(append_transaction.AppendTransaction, "lock", counted)
    yield counts


async def test_appends_to_a_known_stream_need_no_lock_first(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(db, "a")
    with locks(monkeypatch) as counts:
        async with writer(db) as one:
            for seq in range(5):
                assert isinstance(await one.append(SPACE, "a", of(b"%d" % seq, seq)), Accepted)
            assert counts == [1]
            assert isinstance(await one.append(SPACE, "a", of(b"4", 4)), AlreadyStored)
            assert isinstance(await one.append(SPACE, "a", of(b"9", 9)), SequenceGap)
            assert isinstance(await one.append(SPACE, "a", of(b"5", 5, close=True)), Accepted)
            assert isinstance(await one.append(SPACE, "a", of(b"6")), StreamIsClosed)
    assert await stored(db, "a") == b"012345"
    assert counts == [1, 1, 1, 1]


async def test_writers_of_two_processes_lose_and_repeat_nothing(db: Database) -> None:
    for name in "abc":
        await create(db, name)
    async with writer(db) as one, writer(db) as other:

        async def append(each: StreamWriter, mark: bytes) -> None:
            for _ in range(30):
                results = await asyncio.gather(*(each.append(SPACE, name, of(mark)) for name in "cab"))
                assert all(isinstance(result, Accepted) for result in results)

        await asyncio.gather(append(one, b"1"), append(other, b"2"))
        # A producer that goes from one process to the other: each has to see what the other one has stored.
        for seq in range(20):
            each = (one, other)[seq % 2]
            assert isinstance(await each.append(SPACE, "a", of(b"p", seq)), Accepted)
            assert isinstance(await (one, other)[seq % 3 % 2].append(SPACE, "a", of(b"p", seq)), AlreadyStored)
    for name in "abc":
        content = (await stored(db, name)).replace(b"p", b"")
        assert (content.count(b"1"), content.count(b"2"), len(content)) == (30, 30, 60)
    assert (await stored(db, "a")).count(b"p") == 20


async def test_a_known_stream_that_was_deleted_expired_or_created_again_is_looked_at_again(db: Database) -> None:
    for name in ("gone", "again"):
        await create(db, name)
    await create(db, "expired", ttl=1_000)
    async with writer(db) as one:
        for name in ("gone", "again", "expired"):
            await one.append(SPACE, name, of(b"old", 0))
        await removal.delete(db, SPACE, "gone")
        await removal.delete(db, SPACE, "again")
        await create(db, "again")
        async with db.driver() as driver:
            await driver.execute("UPDATE streams SET expires_at = now() WHERE name = 'expired'")
        for name in ("gone", "expired"):
            with pytest.raises(NotFound):
                await one.append(SPACE, name, of(b"new", 1))
        assert isinstance(await one.append(SPACE, "again", of(b"new", 0)), Accepted), "it has no producers yet"
    assert await stored(db, "again") == b"new"


async def test_an_unforeseen_error_of_one_append_fails_no_other(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(db, "a")
    await create(db, "b", "application/json")
    decide = appends.decide

    def decide_or_crash(state: Any, append: StreamAppend, *rest: Any, **more: Any) -> Any:
        if append.body == b"crash":
            raise RuntimeError("unforeseen")
        return decide(state, append, *rest, **more)

    monkeypatch.setattr(appends, "decide", decide_or_crash)
    async with writer(db) as one:
        for _ in range(2):
            bodies = [("a", b"1"), ("a", b"crash"), ("b", b"[1]"), ("b", b"no JSON"), ("c", b"?")]
            results = await asyncio.gather(
                *(
                    one.append(SPACE, name, of(body, content_type="application/json" if name == "b" else KIND))
                    for name, body in bodies
                ),
                return_exceptions=True,
            )
            kinds = [type(result) for result in results]
            assert kinds == [Accepted, RuntimeError, Accepted, InvalidInput, NotFound]
    assert await stored(db, "a") == b"11"


async def test_appends_to_many_streams_use_the_limit_of_all_together_to_its_last_bytes(db: Database) -> None:
    """Each stream has a portion of the limit, and portions that are not used are taken back."""
    size, names = 700, "abcdefgh"
    limits = StreamLimits(per_space=1_000, max_bytes=1 << 20, max_space_bytes=100_000)
    for name in names:
        await create(db, name, limits=limits)
    reserved: list[int] = []

    async def fill(each: StreamWriter, name: str) -> int:
        """Append until the limit refuses it, and return the number of appends that were accepted."""
        for count in range(limits.max_space_bytes // size + 1):
            for _ in range(100):
                try:
                    assert isinstance(await each.append(SPACE, name, of(b"x" * size)), Accepted)
                    break
                except Unavailable:
                    continue  # another writer has used what was reserved for this append
                except StorageExhausted:
                    return count
        raise AssertionError("the limit was exceeded")

    async def watch() -> None:
        while True:
            async with db.driver() as driver:
                reserved.append(
                    await driver.fetchval("SELECT sum(greatest(reserved_bytes, stored_bytes)) FROM streams")
                )
            await asyncio.sleep(0.02)

    async with writer(db, limits) as one, writer(db, limits) as other:
        watching = asyncio.create_task(watch())
        # Concurrent appends of one client, too, some of which fit and some of which do not.
        counts = await asyncio.gather(*(fill(each, name) for each in (one, other) for name in names * 2))
        watching.cancel()
        contents = {name: await stored(db, name) for name in names}
        assert sum(map(len, contents.values())) == sum(counts) * size
        assert sum(counts) == limits.max_space_bytes // size
        await removal.delete(db, SPACE, "a")
        for _ in range(len(contents["a"]) // size):
            assert isinstance(await one.append(SPACE, "b", of(b"x" * size)), Accepted)
        with pytest.raises(StorageExhausted):
            await other.append(SPACE, "c", of(b"x" * size))
        assert isinstance(await other.append(SPACE, "c", of(b"x" * (limits.max_space_bytes % size))), Accepted)
    assert max(reserved) <= limits.max_space_bytes


async def test_a_full_space_refuses_all_appends_that_wait_in_few_transactions(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = StreamLimits(per_space=1_000, max_bytes=1 << 20, max_space_bytes=1_000)
    for name in "ab":
        await create(db, name, limits=limits)
    bodies = [b"x" * 900, *[b"x" * 500] * 50, b"y" * 60, *[b"x" * 500] * 50, b"y" * 40, b"y"]
    async with writer(db, limits) as one:
        with locks(monkeypatch) as counts:
            appends_to_a = [one.append(SPACE, "a", of(body)) for body in bodies]
            appends_to_b = [one.append(SPACE, "b", of(b"x" * 500)) for _ in range(20)]
            results = await asyncio.gather(*appends_to_a, *appends_to_b, return_exceptions=True)
    accepted = [body for body, result in zip(bodies, results, strict=False) if isinstance(result, Accepted)]
    assert accepted == [b"x" * 900, b"y" * 60, b"y" * 40]
    assert sum(isinstance(result, StorageExhausted) for result in results) == len(results) - len(accepted)
    assert await stored(db, "a") == b"".join(accepted)
    assert len(counts) <= 6


async def test_a_stream_without_a_reservation_from_before_the_limit_gets_one_with_its_next_append(db: Database) -> None:
    await create(db, "a")
    async with writer(db) as one:
        assert isinstance(await one.append(SPACE, "a", of(b"before")), Accepted)
        async with db.driver() as driver:
            await driver.execute("UPDATE streams SET reserved_bytes = 0")
        assert isinstance(await one.append(SPACE, "a", of(b"after")), Accepted)
        assert await stored(db, "a") == b"beforeafter"
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT reserved_bytes >= stored_bytes FROM streams")
