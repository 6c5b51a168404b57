"""The loop that fires schedules. Every process that executes runs has one; a lease lets one of them fire an occurrence.

A notification says that a schedule has a new time. Without one, the loop sleeps until the first schedule is due, and
looks now and then whether it has missed a notification. Idle schedules cost one probe of an index a look.
"""

import asyncio
from collections.abc import Callable

import structlog

from khala.domain.errors import (
    BudgetExhausted,
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    RateLimited,
    RunActive,
    ThreadNotFound,
    Unauthorized,
    Unavailable,
)
from khala.domain.schedules import MAX_FAILURES, decide_due, message_id
from khala.live.polling import poll
from khala.schedules.firing import fire
from khala.store.accounts.account_marks import BLOCKED
from khala.store.postgres.database import Database
from khala.store.schedules import schedule_claims
from khala.store.schedules.schedule_claims import ClaimedSchedule, FiredOccurrence
from khala.store.threads.sends import SendLimits

log = structlog.get_logger()

MAX_CLAIMED = 20
"""Schedules that one process fires at once."""
SWEEP_INTERVAL_SECONDS = 15.0
"""The longest time between two looks."""
MIN_INTERVAL_SECONDS = 0.05
"""The shortest time between two looks."""


class ScheduleRunner:
    """Fires the schedules that are due, for ever. `is_allowed` says whether a run may use a model."""

    def __init__(self, db: Database, limits: SendLimits, is_allowed: Callable[[str], bool]) -> None:
        self._db = db
        self._limits = limits
        self._is_allowed = is_allowed
        self._wake = asyncio.Event()

    def handle_notification(self, _payload: str) -> None:
        """Look again, because a schedule has a new time."""
        self._wake.set()

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        await poll(
            self._wake,
            self._look,
            failure_event="schedules_failed",
            retry_seconds=SWEEP_INTERVAL_SECONDS,
            min_interval_seconds=MIN_INTERVAL_SECONDS,
        )

    async def _look(self) -> float:
        """Fire what is due. Returns the seconds until the next look."""
        async with self._db.driver() as driver:
            seconds = await schedule_claims.seconds_until_due(driver)
        if seconds is None or seconds > 0:
            return SWEEP_INTERVAL_SECONDS if seconds is None else min(seconds, SWEEP_INTERVAL_SECONDS)
        claimed = await schedule_claims.claim(self._db, MAX_CLAIMED)
        async with asyncio.TaskGroup() as group:
            for one in claimed:
                group.create_task(self._handle(one))
        return 0

    async def _handle(self, claimed: ClaimedSchedule) -> None:
        """Fire one schedule and record it. Logs every error: the lease lapses, and the occurrence is tried again."""
        try:
            await self.fire_claimed(claimed)
        except Unavailable as error:
            log.warning("schedule_failed", schedule_id=str(claimed.schedule.id), error=str(error.__cause__))
        except Exception:
            # Caught, because it would end this loop for all schedules.
            log.exception("schedule_crashed", schedule_id=str(claimed.schedule.id))

    async def fire_claimed(self, claimed: ClaimedSchedule) -> None:
        """Fire the occurrence of a claimed schedule, and record what became of it."""
        schedule = claimed.schedule
        async with self._db.driver() as driver:
            has_owner = await schedule_claims.has_owner(driver, claimed)
            is_blocked = await schedule_claims.is_owner_blocked(driver, claimed)
            failed = await schedule_claims.last_run_failed(driver, claimed)
        failures = claimed.failures + 1 if failed else 0
        if not has_owner:
            await schedule_claims.end(self._db, claimed, "account_deleted")
            return
        if is_blocked:
            await schedule_claims.pause(self._db, claimed, Forbidden.code, BLOCKED)
            return
        if failures >= MAX_FAILURES:
            await schedule_claims.pause(self._db, claimed, "runs_failed", "The last runs ended with an error.")
            return
        due = decide_due(schedule.timing, claimed.occurrence, claimed.now)
        if due.fire is None:
            await schedule_claims.record_fired(self._db, claimed, fired=None, following=due.following)
            return
        try:
            self._check_model(claimed)
            message = schedule.message_id or message_id(schedule.id, due.fire)
            fired = await fire(self._db, schedule, message, self._limits)
        except Conflict:
            # Something has this id: the occurrence was fired before, and the schedule was changed since.
            fired = FiredOccurrence(thread_id=schedule.thread_id)
        except (ThreadNotFound, NotFound):
            await schedule_claims.end(self._db, claimed, "thread_deleted")
            return
        except Unauthorized:
            await schedule_claims.end(self._db, claimed, "account_deleted")
            return
        except (Forbidden, InvalidInput) as error:
            await schedule_claims.pause(self._db, claimed, error.code, error.message)
            return
        except (RunActive, RateLimited, BudgetExhausted) as error:
            await schedule_claims.record_failure(self._db, claimed, error.message)
            return
        log.info("schedule_fired", schedule_id=str(schedule.id), thread_id=str(fired.thread_id))
        await schedule_claims.record_fired(self._db, claimed, fired=fired, following=due.following, failures=failures)

    def _check_model(self, claimed: ClaimedSchedule) -> None:
        options = claimed.schedule.options
        if options is not None and options.model is not None and not self._is_allowed(options.model):
            raise InvalidInput("The model of this schedule is not offered any more.")
