"""Checks of stored plans: a plan, its steps and their counts must be the fold of its events."""

from uuid import UUID

import msgspec

from khala.domain.errors import PlanDamaged
from khala.domain.plans import fold
from khala.domain.plans.dependencies import count_steps
from khala.domain.plans.events import Created, PlanEvent
from khala.domain.plans.plan import Plan
from khala.store.operations.answer_checks import StoredDifference
from khala.store.plans import plan_rows
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.reset_marks import IS_PLAN

PAGE_EVENTS = 1_000
"""Events in memory at once."""
PLAN = f"SELECT * FROM plans WHERE id = $1 AND {IS_PLAN}"
EVENTS = f"SELECT seq, data, revision FROM plan_events WHERE plan_id = $1 AND seq > $2 ORDER BY seq LIMIT {PAGE_EVENTS}"
BEFORE_ALL = -(2**31)
"""Below the number of every event, however damaged."""


async def plan_differences(driver: Driver, plan_id: UUID) -> list[StoredDifference]:
    """All differences of one plan, unless it was deleted. The caller's transaction sees one state of the database."""
    row = await driver.fetchrow(PLAN, plan_id)
    if row is None:
        return []
    place = f"plan {row['id']} of thread {row['thread_id']}"
    try:
        expected = await _fold_events(driver, row)
        problems = _plan_problems(expected, row, await plan_rows.read_whole(driver, row))
    except _EventsDamagedError as error:
        problems = [str(error)]
    except PlanDamaged as error:
        problems = [error.message]
    return [StoredDifference(place, problem) for problem in problems]


class _EventsDamagedError(Exception):
    """The plan does not follow from its events, for the reason in the message."""


async def _fold_events(driver: Driver, row: Record) -> Plan:
    plan: Plan | None = None
    count, last_seq, revision = 0, BEFORE_ALL, 0
    while page := await driver.fetch(EVENTS, row["id"], last_seq):
        for event in page:
            count, last_seq = count + 1, event["seq"]
            if last_seq != count:
                raise _EventsDamagedError(f"its event {count} is missing")
            if not revision <= event["revision"] <= row["revision"]:
                raise _EventsDamagedError(f"its event {count} has a revision that does not fit")
            revision = event["revision"]
            plan = _apply(plan, event)
    if plan is None or count != row["event_seq"]:
        raise _EventsDamagedError(f"it claims {row['event_seq']} events and has {count}")
    return plan


def _apply(plan: Plan | None, row: Record) -> Plan:
    """The plan after the event of this row, which is the first one if there is no plan before it."""
    seq = row["seq"]
    try:
        event = msgspec.json.decode(row["data"], type=PlanEvent)
    except msgspec.DecodeError as error:
        raise _EventsDamagedError(f"its event {seq} is not readable") from error
    if isinstance(event, Created) != (plan is None) or event.at.tzinfo is None:
        raise _EventsDamagedError(f"its event {seq} does not follow the events before it")
    try:
        if isinstance(event, Created):
            return fold.create(event)
        assert plan is not None
        fold.apply(plan, event)
    except KeyError as error:  # a step that does not exist
        raise _EventsDamagedError(f"its event {seq} does not follow the events before it") from error
    return plan


def _plan_problems(expected: Plan, row: Record, stored: plan_rows.StoredPlan) -> list[str]:
    problems = []
    plan = stored.plan
    if row["status"] != plan.status:
        problems.append(f"its status is {row['status']}, and its state says {plan.status}")
    if msgspec.structs.replace(plan, steps={}) != msgspec.structs.replace(expected, steps={}):
        problems.append("its state is not what its events fold to")
    if list(plan.steps) != list(expected.steps):
        problems.append("its steps are not those that its events name")
    problems += [
        f"its step {step_id!r} is not what its events fold to"
        for step_id, step in plan.steps.items()
        if step_id in expected.steps and step != expected.steps[step_id]
    ]
    if plan_rows.decoded_counts(row) != count_steps(expected):
        problems.append("its counts are not those of its steps")
    return problems
