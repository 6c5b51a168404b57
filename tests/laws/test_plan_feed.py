"""Laws of the feed of plans: whenever an observer joins, drops and resumes, it has the plans as they are stored."""

import asyncio
import contextlib
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from khala.domain.chat import Thread
from khala.domain.errors import KhalaError
from khala.domain.plans.attempts import AttemptCompleted, AttemptFailed, AttemptLimited, AttemptUnfinished, Outcome
from khala.domain.plans.commands import Edit, Pause, PlanCommand, Resume, RetryStep, SkipStep, Start, Stop
from khala.domain.plans.views import PlanChanges, PlanEntry, StepProgress
from khala.domain.thread_changes import Delta
from khala.store.plans import plan_feed, plans
from khala.store.postgres.database import Database, Driver
from khala.store.threads import thread_feed, threads
from tests.support.store import CALLER, ask, new_thread
from tests.support.stored_plans import drive, new_plan, planned

RARE = ("remove", "reset")
COMMANDS: dict[str, PlanCommand] = {
    "start": Start(),
    "edit": Edit(title="Edited", add=(planned("x"),), remove=("a",)),
    "skip": SkipStep(step_id="b"),
    "retry": RetryStep(step_id="b"),
    "pause": Pause(),
    "resume": Resume(),
    "stop": Stop(),
}
OUTCOMES: dict[str, Outcome] = {
    "complete": AttemptCompleted(summary="Done. " * 100),
    "fail": AttemptFailed(error="It failed."),
    "limit": AttemptLimited(),
    "unfinished": AttemptUnfinished(),
}
usual = st.sampled_from([*COMMANDS, *OUTCOMES, "create", "send", "rename"])
scripts = st.lists(st.tuples(st.integers(0, 1), st.one_of(usual, usual, usual, st.sampled_from(RARE))), max_size=14)
bounded = settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)


class PlanObserver:
    """The plans of a thread as an observer has them, by the rules of docs/protocol.md."""

    def __init__(self) -> None:
        self.revision = -1
        self.thread: Thread | None = None
        self.plans: dict[UUID, PlanEntry] = {}
        self.steps: dict[UUID, dict[str, StepProgress]] = {}
        self.events: dict[UUID, list[int]] = {}

    async def follow(self, driver: Driver, thread_id: UUID) -> None:
        """Read what has changed, as a subscription does, in the state of the database that the driver sees."""
        change = None
        if self.revision >= 0:
            change = (await thread_feed.read_changes(driver, {thread_id: self.revision}))[thread_id].change
        if isinstance(change, Delta):
            assert change.since == self.revision
            await self._apply(driver, change)
            self.revision = change.revision
        elif not isinstance(change, thread_feed.Unchanged):
            snapshot = await thread_feed.read_snapshot(driver, thread_id, limit=10)
            self.revision, self.thread = snapshot.revision, snapshot.thread
            self.plans = {entry.id: entry for entry in snapshot.plans}
            self.steps, self.events = {}, {}
            for entry in snapshot.plans:
                await self._read(driver, entry)

    async def _apply(self, driver: Driver, delta: Delta) -> None:
        if delta.thread is not None:
            assert named(delta.thread) != named(self.thread), "the thread is sent again, and is as before"
            self.thread = delta.thread
        changes = PlanChanges(plans=delta.plans, steps=delta.plan_steps, events=delta.plan_events)
        for entry in changes.plans:
            self.plans[entry.id] = entry
            if entry.edited_revision > self.revision or changes.steps is None or changes.events is None:
                await self._read(driver, entry)
        for step in changes.steps or ():
            self.steps[step.plan_id][step.id] = step
        for event in changes.events or ():
            known = self.events[event.plan_id]
            if event.seq > len(known):
                assert event.seq == len(known) + 1, "an event was left out"
                known.append(event.seq)

    async def _read(self, driver: Driver, entry: PlanEntry) -> None:
        """Read the steps and events over REST."""
        row = await plans.find(driver, entry.id, CALLER)
        self.steps[entry.id] = {
            step.id: StepProgress(**{name: getattr(step, name) for name in StepProgress.__struct_fields__})
            for step in await plan_feed.steps(driver, row)
        }
        self.events[entry.id] = [event.seq for event in await plan_feed.events(driver, row, after=0, limit=999)]


async def stored_in(driver: Driver, thread_id: UUID) -> PlanObserver:
    """The plans as they are stored."""
    observer = PlanObserver()
    await observer.follow(driver, thread_id)
    for entry in observer.plans.values():
        assert observer.events[entry.id] == list(range(1, entry.event_seq + 1))
        assert len(observer.steps[entry.id]) == sum(
            getattr(entry.counts, name) for name in entry.counts.__struct_fields__
        )
    return observer


def assert_equal(observer: PlanObserver, stored: PlanObserver) -> None:
    """The observer has all that is stored. Texts over the feed's limit are cut."""
    assert named(observer.thread) == named(stored.thread)
    assert observer.plans == stored.plans
    assert observer.events == stored.events
    assert observer.steps.keys() == stored.steps.keys()
    for plan_id, steps in stored.steps.items():
        assert observer.steps[plan_id].keys() == steps.keys()
        for step_id, step in steps.items():
            assert cut(observer.steps[plan_id][step_id]) == cut(step)


def named(thread: Thread | None) -> tuple[object, ...]:
    """What a delta sends a thread for."""
    assert thread is not None
    return thread.title, thread.active_leaf


def cut(step: StepProgress) -> list[object]:
    """The fields of a step; the first characters of its texts."""
    values = [getattr(step, name) for name in step.__struct_fields__]
    return [value[:300] if isinstance(value, str) else value for value in values]


async def act(db: Database, thread_id: UUID, known: list[UUID], plan_id: UUID, action: str) -> None:
    """Do this with the plan, if the plan allows it."""
    if action in COMMANDS:
        await plans.command(db, plan_id, CALLER, COMMANDS[action])
    elif action in OUTCOMES:
        await drive(db, plan_id, OUTCOMES[action])
    elif action == "create":
        known.append(await new_plan(db, thread_id, steps="abc"))
    elif action == "remove":
        await plans.remove(db, plan_id, CALLER)
        known.remove(plan_id)
    elif action == "send":
        await ask(db, thread_id)
    elif action == "rename":
        await threads.update_thread(db, thread_id, CALLER, title=str(len(known)))
    else:
        await threads.reset(db, thread_id, CALLER, welcome="")
        known.clear()


async def play(db: Database, script: list[tuple[int, str]]) -> None:
    thread_id = await new_thread(db)
    known = [await new_plan(db, thread_id, steps="abc") for _ in range(2)]
    always, resuming = PlanObserver(), [PlanObserver()]
    for place, action in script:
        plan_id = known[place % len(known)] if known else UUID(int=0)
        # Errors say that the plan is gone, needs no driver, or does not allow the command now.
        with contextlib.suppress(KhalaError, ValueError):
            await act(db, thread_id, known, plan_id, action)
        async with db.snapshot() as driver:
            await always.follow(driver, thread_id)
            assert_equal(always, await stored_in(driver, thread_id))
            joined = PlanObserver()
            await joined.follow(driver, thread_id)
            resuming.append(joined)
    async with db.snapshot() as driver:
        stored = await stored_in(driver, thread_id)
        for observer in resuming:
            await observer.follow(driver, thread_id)
            assert_equal(observer, stored)


async def with_database(url: str, script: list[tuple[int, str]]) -> None:
    db = Database(url, pool_size=4)
    try:
        await play(db, script)
    finally:
        await db.close()


def test_an_observer_that_joins_and_resumes_at_any_revision_has_the_plans_that_are_stored(database_url: str) -> None:
    @bounded
    @given(scripts)
    def law(script: list[tuple[int, str]]) -> None:
        asyncio.run(with_database(database_url, script))

    law()


async def test_a_removed_plan_is_gone_for_observers_with_an_older_cursor(db: Database) -> None:
    everything: list[tuple[int, str]] = [(0, "start"), (0, "complete"), (0, "stop"), (0, "complete"), (0, "remove")]
    await play(db, [*everything, (0, "start"), (0, "edit"), (0, "reset"), (0, "create"), (0, "start")])
