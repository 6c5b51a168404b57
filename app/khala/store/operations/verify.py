"""Verification: a finished answer must equal the fold of its parts, and a plan that of its events.

It has four stages: answers with their receipts, the revisions of threads, parts whose run is missing, and plans. Each
goes through its table in order of id, a page at a time, so that it can be continued at any page.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import msgspec

from khala.store.operations import verify_pages
from khala.store.operations.answer_checks import StoredDifference, answer_differences, read_answers
from khala.store.operations.plan_checks import plan_differences
from khala.store.operations.verify_pages import STAGES, VerifyPosition, VerifySelection, VerifyStage
from khala.store.postgres.database import Database

EVERYTHING = VerifySelection()


class VerifyProgress(msgspec.Struct):
    """The number of checked answers, threads and plans, of read messages, and the position up to which all is checked.

    A verification begins after `position`, so a progress with the position of an earlier one continues it.
    """

    answers: int = 0
    threads: int = 0
    plans: int = 0
    messages: int = 0
    position: VerifyPosition = VerifyPosition()


class _Page(msgspec.Struct, frozen=True):
    """A checked page: the id of its last row, whether more may follow, and what was found."""

    last: UUID
    full: bool
    differences: Sequence[StoredDifference] = ()


async def find_differences(
    db: Database, progress: VerifyProgress, selection: VerifySelection = EVERYTHING, *, jobs: int = 1
) -> AsyncIterator[StoredDifference]:
    """All differences, in order of id. It may run beside a live server: each answer is read in one statement.

    It uses `jobs` connections, and no more memory or time in a statement for a larger database.
    """
    verification = _Verification(db, progress, selection, jobs)
    for stage in STAGES[STAGES.index(progress.position.stage) :]:
        after = selection.start(stage)
        if progress.position.stage == stage:
            after = max(after, progress.position.id)
        page = _Page(after, full=True)
        while page.full:
            page = await verification.check_page(stage, page.last)
            for difference in page.differences:
                yield difference
            progress.position = VerifyPosition(stage, page.last)


class _Verification:
    """Checks single pages of each stage."""

    def __init__(self, db: Database, progress: VerifyProgress, selection: VerifySelection, jobs: int) -> None:
        self._db = db
        self._progress = progress
        self._selection = selection
        self._places = asyncio.Semaphore(jobs)
        self._checks: Mapping[VerifyStage, Callable[[UUID], Awaitable[_Page]]] = {
            "answers": self._check_answers,
            "threads": self._check_threads,
            "runs": self._check_runs,
            "plans": self._check_plans,
        }

    async def check_page(self, stage: VerifyStage, after: UUID) -> _Page:
        """Check the next page of this stage."""
        return await self._checks[stage](after)

    async def _check_answers(self, after: UUID) -> _Page:
        async with self._db.driver() as driver:
            page = await verify_pages.read_candidates(driver, self._selection, after)
        found = await asyncio.gather(*(self._check_chunk(chunk) for chunk in verify_pages.chunks(page)))
        self._progress.messages += len(page)
        differences = [difference for chunk in found for difference in chunk]
        return _Page(page[-1].id if page else after, len(page) == verify_pages.MAX_PAGE_ROWS, differences)

    async def _check_chunk(self, message_ids: Sequence[UUID]) -> list[StoredDifference]:
        async with self._places:
            async with self._db.driver() as driver:
                answers = await read_answers(driver, message_ids)
            self._progress.answers += len(answers)
            return [difference for answer in answers for difference in answer_differences(answer)]

    async def _check_threads(self, after: UUID) -> _Page:
        async with self._db.driver() as driver:
            page = await verify_pages.read_revisions(driver, self._selection, after)
        self._progress.threads += sum(row["selected"] for row in page)
        differences = [
            StoredDifference(f"thread {row['id']}", f"it is at revision {row['revision']}, a row at {row['newest']}")
            for row in page
            if row["newest"] is not None and row["newest"] > row["revision"]
        ]
        return _Page(page[-1]["id"] if page else after, len(page) == verify_pages.MAX_PAGE_ROWS, differences)

    async def _check_runs(self, after: UUID) -> _Page:
        async with self._db.driver() as driver:
            page = await verify_pages.read_strays(driver, self._selection, after)
        differences = [
            StoredDifference(f"run {row['id']} of thread {row['thread_id']}", "parts without a run")
            for row in page
            if row["thread_id"] is not None
        ]
        return _Page(page[-1]["id"] if page else after, len(page) == verify_pages.MAX_PAGE_ROWS, differences)

    async def _check_plans(self, after: UUID) -> _Page:
        async with self._db.driver() as driver:
            page = await verify_pages.read_plans(driver, self._selection, after)
        selected = [row["id"] for row in page if row["selected"]]
        found = await asyncio.gather(*(self._check_plan(plan_id) for plan_id in selected))
        differences = [difference for plan in found for difference in plan]
        return _Page(page[-1]["id"] if page else after, len(page) == verify_pages.MAX_PAGE_ROWS, differences)

    async def _check_plan(self, plan_id: UUID) -> list[StoredDifference]:
        async with self._places:
            self._progress.plans += 1
            async with self._db.snapshot() as driver:
                return await plan_differences(driver, plan_id)
