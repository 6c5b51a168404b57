"""Verification checks all answers or a selection, continues where it was interrupted, and runs in the background."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import prometheus_client
import pytest
from click.testing import CliRunner

from khala.cli import main
from khala.domain import ids
from khala.domain.errors import Unavailable
from khala.domain.fold import TextBlock
from khala.operations import verification
from khala.operations.verification import ProgressLine
from khala.settings import Settings, load
from khala.signals import metrics
from khala.store.operations import verify_loop, verify_pages
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.operations.verify_loop import VerificationLoop
from khala.store.operations.verify_pages import AnswerCandidate, VerifyPosition, VerifySelection
from khala.store.postgres.database import Database, Driver
from khala.store.runs.leases import Lease
from tests.support.server import command
from tests.support.store import batch, ending, lease_of, new_thread, write

TEXT = "Some text."
SOON = timedelta(minutes=2)
"""After this, answers are old enough for the background verification."""


async def execute(db: Database, query: str, *arguments: object) -> None:
    async with db.driver() as driver:
        await driver.execute(query, *arguments)


async def answer(db: Database, thread_id: UUID | None = None) -> Lease:
    """A finished answer, in a new thread by default."""
    lease = await lease_of(db, thread_id or await new_thread(db))
    await write(db, batch(lease, 0, TEXT))
    await write(db, ending(lease, 1, (TextBlock(text=TEXT),)))
    return lease


async def tamper(db: Database, *leases: Lease) -> None:
    """Change the stored content of these answers."""
    for lease in leases:
        query = "UPDATE messages SET content = jsonb_set(content, '{0,text}', '\"else\"') WHERE id = $1"
        await execute(db, query, lease.message_id)


def place(lease: Lease) -> str:
    return f"message {lease.message_id} of thread {lease.thread_id}"


async def places(
    db: Database, selection: VerifySelection | None = None, progress: VerifyProgress | None = None, *, jobs: int = 1
) -> list[str]:
    """The places of all differences."""
    found = find_differences(db, progress or VerifyProgress(), selection or VerifySelection(), jobs=jobs)
    return [difference.place async for difference in found]


async def collect(db: Database, progress: VerifyProgress, found: list[str]) -> None:
    """Add the places of all differences, up to an interruption, to `found`."""
    async for difference in find_differences(db, progress):
        found.append(difference.place)  # noqa: PERF401  # `extend` would lose what came before an interruption


class FailingDatabase(Database):
    """A database that is lost after `uses` further uses of a connection."""

    uses = 10_000

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        self.uses -= 1
        if self.uses < 0:
            raise Unavailable("lost")
        async with super().driver() as driver:
            yield driver


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few rows, so that a verification of some answers has many."""
    monkeypatch.setattr(verify_pages, "MAX_PAGE_ROWS", 4)
    monkeypatch.setattr(verify_pages, "MAX_CHUNK_ANSWERS", 1)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("jobs", [1, 3])
async def test_differences_of_many_pages_are_found_once_each_in_order_of_id(db: Database, jobs: int) -> None:
    leases = [await answer(db) for _ in range(9)]
    await tamper(db, *leases[::2])
    progress = VerifyProgress()
    found = await places(db, progress=progress, jobs=jobs)
    assert found == sorted(place(lease) for lease in leases[::2])
    assert (progress.answers, progress.threads, progress.position.stage) == (9, 9, "plans")


@pytest.mark.usefixtures("small_pages")
async def test_threads_and_parts_beyond_the_first_page_are_checked(db: Database) -> None:
    leases = [await answer(db) for _ in range(9)]
    await execute(db, "UPDATE threads SET revision = 0 WHERE id = $1", leases[6].thread_id)
    stray = ids.new()
    await execute(
        db,
        "INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision) "
        "SELECT $1, n, $1, $2, 'text-delta', '{}', 1 FROM generate_series(0, 20) AS n",
        stray,
        leases[0].thread_id,
    )
    expected = [f"thread {leases[6].thread_id}", f"run {stray} of thread {leases[0].thread_id}"]
    assert await places(db) == expected
    assert await places(db, VerifySelection(thread_id=leases[0].thread_id)) == [], "nothing of the thread names the run"
    await execute(
        db, "UPDATE messages SET run_id = $1 WHERE thread_id = $2 AND role = 'user'", stray, leases[0].thread_id
    )
    assert await places(db, VerifySelection(thread_id=leases[0].thread_id)) == expected[1:]
    assert await places(db, VerifySelection(thread_id=leases[6].thread_id)) == expected[:1]
    await execute(db, "UPDATE threads SET deleted_at = now() WHERE id = $1", leases[0].thread_id)
    assert await places(db) == expected[:1], "the purge will delete parts of deleted threads"


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("uses", range(0, 18, 3))
async def test_an_interrupted_verification_that_is_continued_reports_each_difference_once(
    db: Database, database_url: str, uses: int
) -> None:
    leases = [await answer(db) for _ in range(9)]
    await tamper(db, *leases)
    await execute(db, "UPDATE threads SET revision = 0")
    losing = FailingDatabase(database_url, pool_size=2)
    losing.uses, progress, found = uses, VerifyProgress(), list[str]()
    with contextlib.suppress(Unavailable):
        await collect(losing, progress, found)
    assert losing.uses < 0, "the verification was interrupted"
    await losing.close()
    continued = VerifyProgress(position=VerifyPosition.parse(str(progress.position)))
    found += await places(db, progress=continued)
    assert found == sorted(place(lease) for lease in leases) + sorted(f"thread {lease.thread_id}" for lease in leases)


async def test_one_thread_is_checked_alone(db: Database) -> None:
    leases = [await answer(db) for _ in range(3)]
    leases.append(await answer(db, leases[1].thread_id))
    await tamper(db, *leases)
    progress = VerifyProgress()
    found = await places(db, VerifySelection(thread_id=leases[1].thread_id), progress)
    assert found == [place(leases[1]), place(leases[3])]
    assert (progress.answers, progress.threads) == (2, 1)


async def test_only_answers_and_threads_since_a_time_are_checked(db: Database) -> None:
    old, young = await answer(db), await answer(db)
    await tamper(db, old, young)
    await execute(db, "UPDATE messages SET created_at = now() - interval '3 days' WHERE id = $1", old.message_id)
    await execute(db, "UPDATE threads SET updated_at = now() - interval '3 days' WHERE id = $1", old.thread_id)
    progress, now = VerifyProgress(), datetime.now(UTC)
    assert await places(db, VerifySelection(since=now - timedelta(days=2)), progress) == [place(young)]
    assert (progress.answers, progress.threads) == (1, 1)
    assert len(await places(db, VerifySelection(since=now - timedelta(days=4)))) == 2
    progress = VerifyProgress()
    assert await places(db, VerifySelection(since=now + timedelta(days=1)), progress) == []
    assert progress.messages == 0, "messages with earlier ids are not read"


async def test_a_sample_is_always_the_same_part_and_a_larger_one_contains_it(db: Database) -> None:
    leases = [await answer(db) for _ in range(40)]
    await tamper(db, *leases)
    small, again, large = [await places(db, VerifySelection(sample_percent=percent)) for percent in (25, 25, 75)]
    assert small == again
    assert 0 < len(small) < len(large) < 40
    assert set(small) < set(large)
    assert len(await places(db)) == 40


async def test_content_that_is_not_readable_is_a_difference(db: Database) -> None:
    lease = await answer(db)
    await execute(db, 'UPDATE messages SET content = \'{"no": "blocks"}\' WHERE id = $1', lease.message_id)
    assert await places(db) == [place(lease)]


def test_chunks_bound_answers_parts_and_bytes() -> None:
    ordinary = [AnswerCandidate(UUID(int=n), 10, 1000, selected=True) for n in range(250)]
    assert [len(chunk) for chunk in verify_pages.chunks(ordinary)] == [100, 100, 50]
    large = [AnswerCandidate(UUID(int=n), 3000, 10, selected=True) for n in range(3)]
    assert [len(chunk) for chunk in verify_pages.chunks(large)] == [1, 1, 1]
    heavy = [AnswerCandidate(UUID(int=n), 1, 3_000_000, selected=n != 1) for n in range(3)]
    assert list(verify_pages.chunks(heavy)) == [[UUID(int=0)], [UUID(int=2)]]
    assert list(verify_pages.chunks([])) == []


@pytest.mark.parametrize("written", ["", "answers", "answers:1", "parts:" + str(UUID(int=1))])
def test_a_position_that_no_verification_has_printed_is_refused(written: str) -> None:
    assert CliRunner().invoke(main, ["verify", "--after", written]).exit_code == 2


@pytest.mark.parametrize(
    "options", [["--since", "soon"], ["--sample", "0"], ["--sample", "101"], ["--thread", "x"], ["--jobs", "0"]]
)
def test_a_bad_option_of_verify_is_refused(options: list[str]) -> None:
    assert CliRunner().invoke(main, ["verify", *options]).exit_code == 2


async def test_the_command_checks_a_selection_and_exits_with_1_for_differences(db: Database, database_url: str) -> None:
    wrong, right = await answer(db), await answer(db)
    await tamper(db, wrong)

    def verify(*options: str) -> tuple[int, str]:
        done = command({"DATABASE_URL": database_url}, "verify", *options)
        assert not done.stderr
        return done.returncode, done.stdout

    for everything in ([], ["--since", "1"], ["--since", "2026-01-31"], ["--sample", "100"], ["--jobs", "4"]):
        code, output = await asyncio.to_thread(verify, *everything)
        assert code == 1
        assert output.splitlines() == [
            f"{place(wrong)}: its content is not what its parts fold to",
            "2 answers in 2 threads and 0 plans checked, 1 differences.",
        ]
    position = str(VerifyPosition("answers", max(wrong.message_id, right.message_id)))
    for nothing in (["--thread", str(right.thread_id)], ["--after", position], ["--since", "2999-01-01"]):
        code, output = await asyncio.to_thread(verify, *nothing)
        assert code == 0
        assert output.endswith(" 0 differences.\n")


@pytest.mark.usefixtures("small_pages")
async def test_an_interrupted_command_prints_the_position(
    db: Database,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leases = [await answer(db) for _ in range(5)]
    await tamper(db, *leases)
    losing = FailingDatabase(database_url, pool_size=2)

    @asynccontextmanager
    async def open_database(_: Settings, *, pool_size: int) -> AsyncIterator[Database]:
        losing.uses = 3 + pool_size
        yield losing

    monkeypatch.setattr(verification, "open_database", open_database)
    with pytest.raises(Unavailable):
        await verification.verify_database(load(tmp_path), VerifySelection(), after=VerifyPosition(), jobs=1)
    await losing.close()
    shown = capsys.readouterr()
    before, _, position = shown.err.strip().rpartition(" --after ")
    assert before == "Interrupted. Continue with the same options and"
    found = [line.partition(": ")[0] for line in shown.out.splitlines()]
    assert 0 < len(found) < 5
    found += await places(db, progress=VerifyProgress(position=VerifyPosition.parse(position)))
    assert found == sorted(place(lease) for lease in leases)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_names_the_position(capsys: pytest.CaptureFixture[str], *, terminal: bool) -> None:
    position = VerifyPosition("answers", UUID(int=1))
    progress = VerifyProgress(answers=1500, threads=2, messages=3000, position=position)
    line = ProgressLine(progress, 4000, terminal=terminal)
    line.differences = 3
    line.show()
    line.clear()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.strip().startswith("1,500 answers (75 %), 2 threads, 0 plans, 3 differences, at ")
    if terminal:
        # Click omits the rest of the control sequence, since this is no terminal.
        assert shown.err.startswith("\r")
        assert shown.err.endswith("\r")
    else:
        assert f" at {position}, " in shown.err
        assert shown.err.endswith(" answers/s\n")


def value_of(counter: prometheus_client.Counter) -> float:
    return next(iter(counter.collect())).samples[0].value


async def counted(loop: VerificationLoop, *, after: timedelta = SOON) -> tuple[float, float]:
    """How many answers and differences a round counts."""
    answers, differences = value_of(metrics.VERIFIED_ANSWERS), value_of(metrics.VERIFY_DIFFERENCES)
    await loop.check_recent(datetime.now(UTC) + after)
    return value_of(metrics.VERIFIED_ANSWERS) - answers, value_of(metrics.VERIFY_DIFFERENCES) - differences


async def test_the_background_verification_finds_and_counts_a_difference_once(db: Database) -> None:
    leases = [await answer(db) for _ in range(3)]
    await tamper(db, leases[1])
    loop = VerificationLoop(db)
    assert await counted(loop, after=timedelta()) == (0, 0), "the answers are too young"
    assert await counted(loop) == (3, 1)
    assert await counted(loop) == (0, 0), "each answer is checked once"
    await answer(db)
    assert await counted(loop) == (1, 0)


async def test_a_round_in_the_background_is_bounded_and_the_next_one_continues(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_pages, "MAX_CHUNK_ANSWERS", 2)
    leases = [await answer(db) for _ in range(5)]
    await tamper(db, leases[4])
    loop = VerificationLoop(db)
    assert [await counted(loop) for _ in range(4)] == [(2, 0), (2, 0), (1, 1), (0, 0)]


async def test_answers_that_are_too_old_are_skipped_in_the_background(db: Database) -> None:
    await answer(db)
    assert await counted(VerificationLoop(db), after=verify_loop.RECENT_WINDOW + SOON) == (0, 0)


async def test_an_answer_that_has_not_ended_is_checked_in_a_later_round(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, TEXT))
    loop = VerificationLoop(db)
    assert await counted(loop) == (0, 0)
    await answer(db)
    assert await counted(loop) == (1, 0)
    await write(db, ending(lease, 1, (TextBlock(text="Other text."),)))
    assert await counted(loop) == (1, 1)


async def test_the_background_verification_reads_nothing_while_another_one_reads(db: Database) -> None:
    await tamper(db, await answer(db))
    loop = VerificationLoop(db)
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT pg_advisory_xact_lock($1)", verify_loop.VERIFY_LOCK_KEY)
        assert await counted(loop) == (0, 0)
    assert await counted(loop) == (1, 1)


async def test_the_background_verification_runs_by_itself_and_survives_a_lost_database(
    database_url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_loop, "VERIFY_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(verify_loop, "MIN_AGE", timedelta(seconds=-1))
    await tamper(db, await answer(db))
    losing = FailingDatabase(database_url, pool_size=2)
    losing.uses = 0
    before = value_of(metrics.VERIFY_DIFFERENCES)
    running = asyncio.create_task(VerificationLoop(losing).run())
    async with asyncio.timeout(30):
        while losing.uses > -2:
            await asyncio.sleep(0.01)
        losing.uses = 10_000
        while value_of(metrics.VERIFY_DIFFERENCES) == before:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    await losing.close()
