"""The pump of one plan: decides what follows from what has happened, stores it, and waits for more."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from khala.domain import ids
from khala.domain.budgets import BudgetPolicy
from khala.domain.errors import BudgetExhausted, Forbidden, ThreadNotFound, Unavailable
from khala.domain.plans import engine
from khala.domain.plans.attempts import (
    Attempt,
    AttemptExpired,
    AttemptUnavailable,
    report,
)
from khala.domain.plans.events import Pausing, PlanEvent, StepStarted
from khala.domain.plans.plan import PauseReason
from khala.live.polling import wait_until_set
from khala.plans import plan_metrics
from khala.plans.step_tasks import StepTasks
from khala.store.plans import plan_rows, plans, step_runs
from khala.store.plans.plan_leases import PlanLease
from khala.store.plans.plan_rows import StoredPlan
from khala.store.plans.plans import PlanChanged
from khala.store.plans.step_runs import PlanPoll, StepTask
from khala.store.postgres.database import Database

log = structlog.get_logger()

MAX_WAIT_SECONDS = 30.0
"""The longest wait: then the pump looks whether it has missed a notification."""
MIN_WAIT_SECONDS = 1.0
"""The wait where something is due that has to wait for a person, or for other runs."""
RETRY_SECONDS = 1.0
"""The wait after the database was out of reach."""
SETTLE_SECONDS = 0.02
"""The time in which steps that end together are stored together."""
TIMED_OUT = "The step took longer than {seconds:,} seconds."

Probe = Callable[[StoredPlan, str], Awaitable[bool]]
"""Whether an agent of the plan can be used now."""


class PumpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits, how to make the task of a step, and how to probe an agent.

    A person may have `per_owner` active runs. Steps wait for that as long as it takes.
    """

    budgets: BudgetPolicy
    per_owner: int
    tasks: StepTasks
    probe: Probe


class PlanPump:
    """Drives one plan, under a lease that the caller renews, until the plan pauses or stops."""

    def __init__(self, db: Database, lease: PlanLease, options: PumpOptions) -> None:
        self.lease = lease
        self._db = db
        self._options = options
        self._changed = asyncio.Event()
        self._polled = datetime.now(UTC), time.monotonic()

    def wake(self) -> None:
        """Look at once: the plan has changed, or a run of a step has ended."""
        self._changed.set()

    async def run(self) -> None:
        """Drive the plan until it needs no driver, or another one has it."""
        stored: StoredPlan | None = None
        refusal: PauseReason | None = None
        while True:
            self._changed.clear()
            try:
                if refusal is not None:
                    reason, refusal = refusal, None
                    await self._pause(reason)
                stored = stored or await self._read()
                wait = None if stored is None else await self._turn(stored)
                if wait is None:
                    return
            except PlanChanged:
                stored = None
                continue
            except (BudgetExhausted, Forbidden) as error:
                stored, refusal = None, "budget" if isinstance(error, BudgetExhausted) else "access"
                continue
            except ThreadNotFound:
                return
            except Unavailable as error:
                log.warning("plan_waits_for_database", plan_id=str(self.lease.plan_id), error=str(error.__cause__))
                stored, wait = None, RETRY_SECONDS
            await wait_until_set(self._changed, wait)
            await asyncio.sleep(SETTLE_SECONDS)

    async def _read(self) -> StoredPlan | None:
        async with self._db.driver() as driver:
            return await plan_rows.read(driver, self.lease.thread_id, self.lease.plan_id)

    async def _turn(self, stored: StoredPlan) -> float | None:
        """Do all that is due. Returns the seconds until something is due again, None if the plan needs no driver."""
        poll = await self._poll(stored)
        if poll is None:
            return None
        step_runs.report_polled(stored, poll)
        waits = await self._report_expired(stored)
        places = self._options.per_owner - poll.own
        tasks = await self._advance(stored, places)
        if engine.needs_probe(stored.plan, self._now()):
            available = await self._probe(stored)
            if available is None:
                raise PlanChanged
            stored.apply(engine.report_probe(stored.plan, available=available, now=self._now()))
            tasks |= await self._advance(stored, places)
        if stored.unsaved:
            await self._save(stored, tasks)
        if stored.plan.status in ("idle", "paused", "stopped"):
            return None
        return self._seconds_to_wait(stored, waits, held_up=bool(waits) or len(tasks) >= places)

    async def _poll(self, stored: StoredPlan) -> PlanPoll | None:
        async with self._db.driver() as driver:
            poll = await step_runs.poll(driver, stored)
        if poll is not None:
            self._polled = poll.now, time.monotonic()
        if poll is None or poll.epoch != self.lease.epoch:
            return None
        if poll.event_seq != stored.event_seq:
            raise PlanChanged
        return poll

    async def _report_expired(self, stored: StoredPlan) -> dict[str, timedelta]:
        """Report the attempts that take too long. The time for which they waited for approvals does not count.

        Returns that time for the steps that would have reached their limit with it, and go on.
        """
        now = self._now()
        due = engine.expired_steps(stored.plan, now)
        if not due:
            return {}
        steps = {run_id: step_id for step_id in due if (run_id := stored.plan.steps[step_id].run_id) is not None}
        async with self._db.driver() as driver:
            waits = await step_runs.approval_waits(driver, stored.thread_id, list(steps))
        waited = {steps[run_id]: wait for run_id, wait in waits.items()}
        expired = engine.expired_steps(stored.plan, now, waited)
        for step_id in expired:
            step = stored.plan.steps[step_id]
            error = TIMED_OUT.format(seconds=stored.plan.config.step_timeout_seconds)
            attempt = Attempt(step_id=step_id, number=step.attempts, run_id=step.run_id)
            stored.apply(report(stored.plan, attempt, AttemptExpired(error=error), now))
        return {step_id: wait for step_id, wait in waited.items() if step_id not in expired}

    async def _advance(self, stored: StoredPlan, places: int) -> dict[UUID, StepTask]:
        """Apply all that is due. At most `places` steps start: returns their tasks, by their runs."""
        tasks: dict[UUID, StepTask] = {}
        while events := engine.advance(stored.plan, self._now(), max_started=max(0, places - len(tasks))):
            for event in events:
                if not await self._apply(stored, event, tasks):
                    break
        return tasks

    async def _apply(self, stored: StoredPlan, event: PlanEvent, tasks: dict[UUID, StepTask]) -> bool:
        """Apply an event. Returns False if the events that were to follow it have to be decided anew."""
        if not isinstance(event, StepStarted):
            stored.apply([event])
            return True
        task = await self._options.tasks.make(stored, event)
        if task is None:
            stored.apply([event])
            error = f"There is no agent {event.agent}."
            attempt = Attempt(step_id=event.step_id, number=event.attempt)
            unavailable = AttemptUnavailable(error=error, code="agent_not_found")
            stored.apply(report(stored.plan, attempt, unavailable, self._now()))
            return False
        run_id = ids.new()
        tasks[run_id] = task
        stored.apply([msgspec.structs.replace(event, run_id=run_id)])
        return True

    async def _probe(self, stored: StoredPlan) -> bool | None:
        """Whether the primary agent can be used again. None if the plan has changed before that was known."""
        probe = asyncio.ensure_future(self._options.probe(stored, stored.plan.config.agents[0]))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({probe, changed}, return_when=asyncio.FIRST_COMPLETED)
            return probe.result() if probe.done() else None
        finally:
            probe.cancel()
            changed.cancel()

    async def _save(self, stored: StoredPlan, tasks: dict[UUID, StepTask]) -> None:
        events = stored.unsaved
        await plans.save_driven(self._db, stored, self.lease.epoch, tasks, self._options.budgets)
        plan_metrics.count(stored.id, events)

    async def _pause(self, reason: PauseReason) -> None:
        """Pause the plan, because no step may start."""
        stored = await self._read()
        if stored is not None and stored.plan.status == "running":
            stored.apply([Pausing(at=self._now(), reason=reason)])
            await self._save(stored, {})

    def _seconds_to_wait(self, stored: StoredPlan, waits: Mapping[str, timedelta], *, held_up: bool) -> float:
        due = engine.next_time(stored.plan, waits)
        seconds = MAX_WAIT_SECONDS if due is None else max(0.0, (due - self._now()).total_seconds())
        return min(MAX_WAIT_SECONDS, max(seconds, MIN_WAIT_SECONDS if held_up else 0.0))

    def _now(self) -> datetime:
        """The time by the clock of the database, from the last poll on."""
        polled_at, seconds = self._polled
        return polled_at + timedelta(seconds=time.monotonic() - seconds)
