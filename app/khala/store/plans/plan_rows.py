"""Rows of plans: reads a plan from its tables, and writes what events change.

A plan is the fold of its events. Its row and the rows of its steps are that fold, stored, so that nobody has to read
all events: `khala verify` compares both.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.errors import PlanDamaged
from khala.domain.parts import json_text
from khala.domain.plans import fold
from khala.domain.plans.dependencies import count_steps
from khala.domain.plans.events import AgentSwitched, Edited, PlanEvent, Resumed
from khala.domain.plans.plan import Counts, Plan, PlanStep
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.reset_marks import IS_PLAN

READ = f"SELECT * FROM plans WHERE id = $1 AND thread_id = $2 AND {IS_PLAN}"
READ_EVENT_SEQ = f"SELECT event_seq FROM plans WHERE id = $1 AND thread_id = $2 AND {IS_PLAN}"
READ_TIME = "SELECT clock_timestamp()"
IS_OF_THREAD = "thread_id IS NOT DISTINCT FROM {0}"
"""The thread of rows that a statement finds by their plan, so that the tables can be distributed by thread. As in
`khala.store.runs.leases`, it can't make the planner choose an index of the thread's rows.
"""
READ_STEPS = f"""
    SELECT plan_id, id, planned, progress FROM plan_steps
    WHERE plan_id = $1 AND {IS_OF_THREAD.format("$2")} ORDER BY position
"""
INSERT = """
    INSERT INTO plans (id, thread_id, user_id, requester_key_id, status, state, event_seq, revision, edited_revision,
                       creator_id)
    VALUES ($1, $2, $3, $4, $5, $6::text::jsonb, $7, $8, $8, coalesce($3::uuid, $4::uuid))
"""
UPDATE = f"""
    UPDATE plans SET status = $2, state = $3::text::jsonb, event_seq = $4, revision = $5,
           edited_revision = CASE WHEN $6 THEN $5 ELSE edited_revision END, updated_at = clock_timestamp(),
           network = CASE WHEN $2 NOT IN ('idle', 'paused', 'stopped') THEN network END,
           lease_owner = CASE WHEN $2 NOT IN ('idle', 'paused', 'stopped') THEN lease_owner END,
           lease_expires_at = CASE WHEN $2 NOT IN ('idle', 'paused', 'stopped') THEN lease_expires_at END
    WHERE id = $1 AND {IS_OF_THREAD.format("$7")}
"""
INSERT_EVENTS = """
    INSERT INTO plan_events (plan_id, seq, thread_id, data, revision)
    SELECT $1, seq, $2, data::jsonb, $3 FROM unnest($4::int[], $5::text[]) AS event (seq, data)
"""
INSERT_STEPS = """
    INSERT INTO plan_steps (plan_id, id, thread_id, position, planned, progress, revision)
    SELECT $1, id, $2, position, planned::jsonb, progress::jsonb, $3
    FROM unnest($4::text[], $5::int[], $6::text[], $7::text[]) AS step (id, position, planned, progress)
    ON CONFLICT (plan_id, id) DO UPDATE SET position = excluded.position, planned = excluded.planned,
        progress = excluded.progress, revision = excluded.revision
"""
UPDATE_PROGRESS = f"""
    UPDATE plan_steps SET progress = step.progress::jsonb, revision = $2
    FROM unnest($3::text[], $4::text[]) AS step (id, progress)
    WHERE plan_id = $1 AND plan_steps.id = step.id AND {IS_OF_THREAD.format("$5")}
"""
REMOVE_STEPS = f"DELETE FROM plan_steps WHERE plan_id = $1 AND id = ANY($2::text[]) AND {IS_OF_THREAD.format('$3')}"


DRIVEN_STATUSES = ("running", "pausing", "stopping")
"""The statuses of plans that need a driver."""


class StoredPlan(msgspec.Struct, kw_only=True):
    """A plan as it is stored, and events that are applied to it and not stored yet: `save` stores them.

    `user_id` and `requester_key_id` identify the person for whom the plan is executed. `network` is that of a person
    without an account, while the plan goes on. `event_seq` is the number of the last event that is stored. `edited_by`
    is the author id of another person, if their edit has paused the plan.
    """

    id: UUID
    thread_id: UUID
    user_id: UUID | None
    requester_key_id: UUID | None
    network: str | None = None
    edited_by: UUID | None = None
    plan: Plan
    event_seq: int
    unsaved: list[PlanEvent] = []
    changed_steps: set[str] = set()
    canceled_runs: set[UUID] = set()
    """The runs that the plan has given up since."""

    def apply(self, events: Sequence[PlanEvent]) -> None:
        """Apply events to the plan."""
        before = set(self.plan.canceled_runs)
        for event in events:
            self.changed_steps |= _changed_steps(self.plan, event)
            fold.apply(self.plan, event)
        self.unsaved += events
        self.canceled_runs |= self.plan.canceled_runs.keys() - before

    def mark_saved(self) -> None:
        """Take note that the events were committed."""
        self.event_seq += len(self.unsaved)
        self.unsaved, self.changed_steps, self.canceled_runs = [], set(), set()


async def read(driver: Driver, thread_id: UUID, plan_id: UUID) -> StoredPlan | None:
    """The plan with its steps, or None."""
    row = await driver.fetchrow(READ, plan_id, thread_id)
    return None if row is None else await read_whole(driver, row)


async def read_time(driver: Driver) -> datetime:
    """The time for events, by the clock that all processes share: that of one may be wrong."""
    now: datetime = await driver.fetchval(READ_TIME)
    return now


async def read_event_seq(driver: Driver, thread_id: UUID, plan_id: UUID) -> int | None:
    """The number of the plan's last event, None if there is no such plan."""
    seq: int | None = await driver.fetchval(READ_EVENT_SEQ, plan_id, thread_id)
    return seq


async def read_stopped(driver: Driver, plan_ids: Collection[UUID]) -> dict[UUID, bool]:
    """For each of these plans that exists, whether it has stopped."""
    query = "SELECT id, status = 'stopped' AS stopped FROM plans WHERE id = ANY($1::uuid[])"
    return {row["id"]: row["stopped"] for row in await driver.fetch(query, list(plan_ids))}


async def read_whole(driver: Driver, row: Record) -> StoredPlan:
    """The plan of this row, with its steps. Raises `PlanDamaged`."""
    plan = decoded_plan(row)
    steps = await driver.fetch(READ_STEPS, row["id"], row["thread_id"])
    plan.steps = {step["id"]: decoded_step(step) for step in steps}
    counts = msgspec.structs.astuple(decoded_counts(row))
    if len(plan.steps) != sum(counts):
        raise PlanDamaged(f"The plan {row['id']} is damaged: it has {len(plan.steps)} of its {sum(counts)} steps.")
    return StoredPlan(
        id=row["id"],
        thread_id=row["thread_id"],
        user_id=row["user_id"],
        requester_key_id=row["requester_key_id"],
        network=row["network"],
        edited_by=row["edited_by"],
        plan=plan,
        event_seq=row["event_seq"],
    )


def decoded_plan(row: Record) -> Plan:
    """The plan of this row, without its steps. Raises `PlanDamaged`."""
    try:
        return msgspec.json.decode(row["state"], type=Plan)
    except msgspec.DecodeError as error:
        raise PlanDamaged(f"The plan {row['id']} is damaged: its state is not readable.") from error


def decoded_counts(row: Record) -> Counts:
    """The numbers of steps of the plan of this row. Raises `PlanDamaged`."""
    try:
        return msgspec.json.decode(row["state"], type=_StoredCounts).counts
    except msgspec.DecodeError as error:
        raise PlanDamaged(f"The plan {row['id']} is damaged: its counts are not readable.") from error


class _StoredCounts(msgspec.Struct, frozen=True):
    """The counts in the stored state of a plan."""

    counts: Counts


def decoded_step(row: Record) -> PlanStep:
    """The step of this row. Raises `PlanDamaged`."""
    try:
        return msgspec.json.decode(f'{row["progress"][:-1]}, "planned": {row["planned"]}}}', type=PlanStep)
    except msgspec.DecodeError as error:
        raise PlanDamaged(f"The step {row['id']!r} of plan {row['plan_id']} is damaged.") from error


async def create(driver: Driver, stored: StoredPlan, events: Sequence[PlanEvent], revision: int) -> None:
    """Insert a plan, which is the fold of these events, and its steps."""
    plan = stored.plan
    owner = stored.user_id, stored.requester_key_id
    state = encoded_state(plan)
    await driver.execute(INSERT, stored.id, stored.thread_id, *owner, plan.status, state, len(events), revision)
    await _insert_events(driver, stored, events, revision)
    await _insert_steps(driver, stored, revision)
    stored.event_seq = len(events)


async def save(driver: Driver, stored: StoredPlan, revision: int) -> None:
    """Store the events that were applied to the plan, and update all rows that they change.

    The caller holds the thread's lock, has given the thread this revision, and calls `mark_saved` after the commit.
    """
    plan, events = stored.plan, stored.unsaved
    edits = [event for event in events if isinstance(event, Edited)]
    await _insert_events(driver, stored, events, revision)
    changed = stored.changed_steps & plan.steps.keys()
    if edits:
        removed = [step_id for event in edits for step_id in event.removed if step_id not in plan.steps]
        await driver.execute(REMOVE_STEPS, stored.id, removed, stored.thread_id)
        await _insert_steps(driver, stored, revision)
    elif changed:
        progress = [_progress(plan.steps[step_id]) for step_id in changed]
        await driver.execute(UPDATE_PROGRESS, stored.id, revision, list(changed), progress, stored.thread_id)
    last_seq = stored.event_seq + len(events)
    state = encoded_state(plan)
    await driver.execute(UPDATE, stored.id, plan.status, state, last_seq, revision, bool(edits), stored.thread_id)


async def _insert_events(driver: Driver, stored: StoredPlan, events: Sequence[PlanEvent], revision: int) -> None:
    seqs = range(stored.event_seq + 1, stored.event_seq + 1 + len(events))
    await driver.execute(INSERT_EVENTS, stored.id, stored.thread_id, revision, list(seqs), list(map(json_text, events)))


async def _insert_steps(driver: Driver, stored: StoredPlan, revision: int) -> None:
    steps = stored.plan.steps.values()
    planned, progress = [json_text(step.planned) for step in steps], [_progress(step) for step in steps]
    rows = list(stored.plan.steps), list(range(len(steps))), planned, progress
    await driver.execute(INSERT_STEPS, stored.id, stored.thread_id, revision, *rows)


def _changed_steps(plan: Plan, event: PlanEvent) -> set[str]:
    """The steps whose progress this event changes. The steps of an edit are written whole."""
    if isinstance(event, Resumed | AgentSwitched):
        return {step_id for step_id, step in plan.steps.items() if step.not_before is not None or step.rate_limits}
    step_id: str | None = getattr(event, "step_id", None)
    return set() if step_id is None else {step_id}


def encoded_state(plan: Plan) -> str:
    """All of the plan but its steps, and their counts, as JSON text."""
    state: dict[str, Any] = msgspec.structs.asdict(plan) | {"counts": count_steps(plan)}
    del state["steps"]
    return json_text(state)


def _progress(step: PlanStep) -> str:
    progress = msgspec.structs.asdict(step)
    del progress["planned"]
    return json_text(progress)
