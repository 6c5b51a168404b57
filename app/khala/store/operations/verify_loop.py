"""Background verification of recent answers, and of plans whose steps they are: a few at a time, by one process."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import structlog
from prometheus_client import Counter

from khala.domain import ids
from khala.domain.errors import Unavailable
from khala.signals import metrics
from khala.store.operations import verify_pages
from khala.store.operations.answer_checks import StoredDifference, answer_differences, read_answers
from khala.store.operations.plan_checks import plan_differences
from khala.store.operations.verify_pages import VerifySelection
from khala.store.postgres import rows
from khala.store.postgres.database import Database

log = structlog.get_logger()

VERIFY_INTERVAL_SECONDS = 300.0
"""Seconds between two rounds of a process, on average."""
RECENT_WINDOW = timedelta(hours=1)
"""The age of the oldest answers that are checked. Older ones, which rounds have not reached, are skipped."""
MIN_AGE = timedelta(minutes=1)
"""The age from which answers are checked: most have ended by then, and all transactions that create them."""
MAX_UNFINISHED = 20
"""Answers that are checked again because they had not ended."""
VERIFY_LOCK_KEY = 0x6B68616C63
"""The key of the advisory lock that the verifying process holds."""


class VerificationLoop:
    """The loop that verifies. Any number of processes may run it, but only one of them reads at a time.

    A round is one page of messages, one chunk of answers (`verify_pages`) and one plan, so its cost does not depend on
    the load. The result is in the metrics; each difference is also logged.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._after = UUID(int=0)
        self._unfinished: Sequence[UUID] = ()

    async def run(self) -> None:
        """Verify regularly, for ever."""
        while True:
            await asyncio.sleep(VERIFY_INTERVAL_SECONDS * random.uniform(0.5, 1.5))
            try:
                await self.check_recent(datetime.now(UTC))
            except Unavailable as error:
                log.warning("verification_failed", error=str(error.__cause__))

    async def check_recent(self, now: datetime) -> list[StoredDifference]:
        """One round: check the next answers, and a plan of which some are steps.

        Returns the differences; none while another process verifies.
        """
        answers = await self._read_next(now)
        if answers is None:
            return []
        ended = [answer for answer in answers if answer["status"] != "streaming"]
        unfinished = [answer["id"] for answer in answers if answer["status"] == "streaming"]
        self._unfinished = unfinished[-MAX_UNFINISHED:]
        found: list[StoredDifference] = []
        for answer in ended:
            found += _count(answer_differences(answer), metrics.VERIFIED_ANSWERS)
            await asyncio.sleep(0)  # One long answer may take milliseconds, many of them must not stop the event loop.
        plan_ids = {answer["plan_id"] for answer in answers} - {None}
        if plan_ids:
            async with self._db.snapshot() as driver:
                differences = await plan_differences(driver, random.choice(list(plan_ids)))
            found += _count(differences, metrics.VERIFIED_PLANS)
        return found

    async def _read_next(self, now: datetime) -> Sequence[rows.Record] | None:
        """The next answers with their parts, and earlier ones that had not ended. None while another process reads."""
        recent = VerifySelection(since=now - RECENT_WINDOW)
        after, end = max(self._after, recent.start("answers")), ids.before(now - MIN_AGE)
        async with self._db.snapshot() as driver:
            if not await driver.fetchval("SELECT pg_try_advisory_xact_lock($1)", VERIFY_LOCK_KEY):
                return None
            page = await verify_pages.read_candidates(driver, recent, after)
            due = [candidate for candidate in page if candidate.id < end]
            chunk, *others = list(verify_pages.chunks(due)) or [[]]
            answers = await read_answers(driver, [*self._unfinished, *chunk])
        if due:
            self._after = chunk[-1] if others else due[-1].id
        return answers


def _count(differences: list[StoredDifference], verified: Counter) -> list[StoredDifference]:
    """Count and log the differences of one answer or plan, and count it as verified."""
    verified.inc()
    metrics.VERIFY_DIFFERENCES.inc(len(differences))
    for difference in differences:
        log.error("verification_found_difference", place=difference.place, problem=difference.problem)
    return differences
