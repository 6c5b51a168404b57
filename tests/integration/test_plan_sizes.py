"""Large plans: what a client reads stays small, however many steps and events a plan has."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.frames import DeltaFrame
from khala.domain.plans.commands import Edit, RetryStep, SkipStep, Start
from khala.domain.plans.events import Created, StepCompleted, StepStarted
from khala.domain.plans.plan import (
    MAX_STEPS,
    MAX_SUMMARY_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    PlanConfig,
    PlannedStep,
)
from khala.domain.thread_changes import Delta
from khala.store.plans import plan_feed, plan_rows, plans
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from khala.store.threads import thread_feed, threads

MAX_FRAME_BYTES = 64 * 1024
WIDE = "\N{OGHAM LETTER BEITH}"
"""A character of three bytes."""


class LargePlan:
    """A plan of 1,000 steps in a thread of its own."""

    def __init__(self, db: Database, thread_id: UUID, caller: Caller) -> None:
        self.db = db
        self.thread_id = thread_id
        self.caller = caller
        self.id = ids.new()

    @classmethod
    async def create(cls, db: Database) -> "LargePlan":
        key = ids.new_secret()
        caller = Caller(anon_key_hash=key_hash(key))
        thread, _ = await threads.create(db, ids.new(), caller, title=None, welcome="")
        plan = cls(db, thread.id, caller)
        steps = tuple(planned(number) for number in range(MAX_STEPS))
        created = Created(
            at=datetime.now(UTC),
            title=WIDE * MAX_TITLE_CHARACTERS,
            config=PlanConfig(agents=("default",)),
            mode="autopilot",
            max_iterations=10_000,
            steps=steps,
            completed=tuple(step.id for step in steps[:500]),
        )
        await plans.create(db, plan.id, thread.id, caller, created)
        return plan

    async def delta(self, after: int) -> Delta:
        async with self.db.snapshot() as driver:
            found = await thread_feed.read_changes(driver, {self.thread_id: after})
        delta = found[self.thread_id].change
        assert isinstance(delta, Delta)
        return delta

    async def complete(self, db: Database, numbers: range) -> None:
        """Complete these steps, with long summaries, as one revision."""
        async with db.driver() as driver:
            stored = await plan_rows.read(driver, self.thread_id, self.id)
        assert stored is not None
        await apply_attempts(db, stored, numbers)


async def apply_attempts(db: Database, stored: StoredPlan, numbers: range) -> None:
    now = datetime.now(UTC)
    for number in numbers:
        step_id = stored.plan.steps[f"{number:064}"].planned.id
        attempt = stored.plan.steps[step_id].attempts + 1
        stored.apply(
            [
                StepStarted(at=now, step_id=step_id, attempt=attempt, agent="default"),
                StepCompleted(at=now, step_id=step_id, attempt=attempt, summary=WIDE * MAX_SUMMARY_CHARACTERS),
            ]
        )
    async with db.transaction() as connection:
        await threads.lock(connection, stored.thread_id)
        await plans.save(connection, stored)


def planned(number: int) -> PlannedStep:
    before = range(max(0, number - 9), number)
    return PlannedStep(id=f"{number:064}", title=str(number), depends_on=tuple(f"{one:064}" for one in before))


def frame_bytes(delta: Delta, thread_id: UUID) -> int:
    return len(msgspec.json.encode(DeltaFrame(thread_id=thread_id, **msgspec.structs.asdict(delta))))


@pytest.fixture
async def plan(db: Database) -> LargePlan:
    return await LargePlan.create(db)


async def test_the_creation_of_a_large_plan_is_a_small_frame(plan: LargePlan) -> None:
    delta = await plan.delta(1)
    assert delta.plan_steps is None
    assert delta.plan_events is not None
    assert [event.type for event in delta.plan_events] == ["created"]
    assert frame_bytes(delta, plan.thread_id) <= MAX_FRAME_BYTES


async def test_steps_and_events_with_long_texts_are_left_out_of_a_frame_before_it_is_large(plan: LargePlan) -> None:
    await plans.command(plan.db, plan.id, plan.caller, Start())
    for numbers, fits in ((range(500, 505), True), (range(505, 545), False)):
        async with plan.db.driver() as driver:
            before = (await plans.find(driver, plan.id, plan.caller))["revision"]
        await plan.complete(plan.db, numbers)
        delta = await plan.delta(before)
        assert (delta.plan_steps is not None, delta.plan_events is not None) == (fits, fits)
        assert frame_bytes(delta, plan.thread_id) <= MAX_FRAME_BYTES
        assert [one.counts.completed for one in delta.plans] == [numbers.stop]


async def test_events_of_edits_have_no_steps_and_no_lists_of_ids(plan: LargePlan) -> None:
    order = tuple(f"{number:064}" for number in reversed(range(MAX_STEPS)))
    edited = await plans.command(plan.db, plan.id, plan.caller, Edit(order=order))
    step_id = f"{MAX_STEPS - 1:064}"
    await plans.command(plan.db, plan.id, plan.caller, SkipStep(step_id=step_id))
    await plans.command(plan.db, plan.id, plan.caller, RetryStep(step_id=step_id))
    async with plan.db.driver() as driver:
        row = await plans.find(driver, plan.id, plan.caller)
        events = await plan_feed.events(driver, row, after=0, limit=500)
    assert [event.type for event in events] == ["created", "edited", "step_skipped", "step_reopened"]
    assert events[1].data == {}
    assert max(len(msgspec.json.encode(event)) for event in events) < 4096
    assert edited.event_seq == 2
