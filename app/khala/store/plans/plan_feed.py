"""Reads of plans: for the feed of their thread, and whole plans with their steps and events."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import structlog

from khala.domain.errors import PlanDamaged
from khala.domain.plans.dependencies import blocked_steps
from khala.domain.plans.views import (
    MAX_FEED_EVENTS,
    MAX_FEED_LIST_BYTES,
    MAX_FEED_PLANS,
    MAX_FEED_STEPS,
    MAX_FEED_TEXT_CHARACTERS,
    PlanChanges,
    PlanDetail,
    PlanEntry,
    PlanEventEntry,
    StepDetail,
    StepProgress,
    entry_fields,
    progress_of,
)
from khala.store.plans import plan_rows
from khala.store.postgres.database import Driver
from khala.store.postgres.rows import Record
from khala.store.threads.reset_marks import IS_PLAN

log = structlog.get_logger()
T = TypeVar("T")

OMITTED_FIELDS = ("added", "byRequester", "changed", "completed", "config", "goal", "order", "removed", "steps")
"""Fields of events that are not shown: they can have thousands of values, or texts that the plan has itself, or only
decide who is notified."""

WATCHED = "unnest($1::uuid[], $2::bigint[]) AS watched (thread_id, after)"
CHANGED_PLANS = f"""
    SELECT plans.* FROM {WATCHED} JOIN plans ON plans.thread_id = watched.thread_id AND plans.revision > watched.after
    ORDER BY plans.id
"""
CHANGED_STEPS = f"""
    SELECT step.* FROM {WATCHED} CROSS JOIN LATERAL (
        SELECT * FROM plan_steps WHERE plan_steps.thread_id = watched.thread_id AND revision > watched.after
        ORDER BY revision LIMIT {MAX_FEED_STEPS + 1}
    ) AS step ORDER BY step.plan_id, step.position
"""
EVENT = f"event.plan_id, event.seq, event.thread_id, event.data - '{{{','.join(OMITTED_FIELDS)}}}'::text[] AS data"
NEW_EVENTS = f"""
    SELECT {EVENT} FROM {WATCHED} CROSS JOIN LATERAL (
        SELECT * FROM plan_events WHERE plan_events.thread_id = watched.thread_id AND revision > watched.after
        ORDER BY revision, plan_id, seq LIMIT {MAX_FEED_EVENTS + 1}
    ) AS event ORDER BY event.plan_id, event.seq
"""
OF_THREAD = f"""
    SELECT * FROM plans WHERE thread_id = $1 AND {IS_PLAN} AND ($2::timestamptz IS NULL OR (created_at, id) < ($2, $3))
    ORDER BY created_at DESC, id DESC LIMIT $4
"""
EVENTS = f"""
    SELECT {EVENT} FROM plan_events AS event
    WHERE plan_id = $1 AND seq > $2 AND {plan_rows.IS_OF_THREAD.format("$3")}
          AND ($5::text IS NULL OR data->>'stepId' = $5) ORDER BY seq LIMIT $4
"""


async def read_changes(driver: Driver, cursors: Mapping[UUID, int]) -> dict[UUID, PlanChanges]:
    """The changes of the plans of each thread after the given revision."""
    arguments = list(cursors), list(cursors.values())
    changed = _by_thread(await driver.fetch(CHANGED_PLANS, *arguments))
    steps = _by_thread(await driver.fetch(CHANGED_STEPS, *arguments))
    events = _by_thread(await driver.fetch(NEW_EVENTS, *arguments))
    return {
        thread_id: PlanChanges(
            plans=_readable(entry, changed[thread_id]),
            steps=_bounded(_progress, steps[thread_id], MAX_FEED_STEPS),
            events=_bounded(_short_event, events[thread_id], MAX_FEED_EVENTS),
        )
        for thread_id in cursors
    }


def _by_thread(found: Iterable[Record]) -> dict[UUID, list[Record]]:
    groups: dict[UUID, list[Record]] = defaultdict(list)
    for row in found:
        groups[row["thread_id"]].append(row)
    return groups


def _bounded(decode: Callable[[Record], T], found: Sequence[Record], most: int) -> tuple[T, ...] | None:
    """The decoded rows; None if they are too many or too large for a frame."""
    if len(found) > most:
        return None
    items = _readable(decode, found)
    return items if len(msgspec.json.encode(items)) <= MAX_FEED_LIST_BYTES else None


def _readable(decode: Callable[[Record], T], found: Iterable[Record]) -> tuple[T, ...]:
    """The decoded rows. One that is damaged is left out: it must not end the feed of all threads."""
    decoded: list[T] = []
    for row in found:
        try:
            decoded.append(decode(row))
        except PlanDamaged as error:
            log.error("plan_damaged", thread_id=str(row["thread_id"]), error=error.message)
    return tuple(decoded)


async def of_thread(
    driver: Driver,
    thread_id: UUID,
    *,
    limit: int = MAX_FEED_PLANS,
    before: tuple[datetime, UUID] | tuple[None, None] = (None, None),
) -> list[PlanEntry]:
    """Plans of the thread, the newest first. `before`: the time and id of the plan after which they follow."""
    return list(_readable(entry, await driver.fetch(OF_THREAD, thread_id, *before, limit)))


def detail(row: Record) -> PlanDetail:
    """The plan of this row, without its steps."""
    plan = plan_rows.decoded_plan(row)
    return PlanDetail(**msgspec.structs.asdict(entry(row)), goal=plan.goal, config=plan.config)


async def steps(driver: Driver, row: Record) -> list[StepDetail]:
    """All steps of the plan of this row, in order. Raises `PlanDamaged`."""
    plan = (await plan_rows.read_whole(driver, row)).plan
    blocked = blocked_steps(plan)
    return [
        StepDetail(
            **progress_of(row["id"], step_id, step, whole=True), planned=step.planned, blocked=step_id in blocked
        )
        for step_id, step in plan.steps.items()
    ]


async def events(
    driver: Driver, row: Record, *, after: int, limit: int, step_id: str | None = None
) -> list[PlanEventEntry]:
    """The events after this one of the plan of this row, in order; those of one step, if it is given.

    Raises `PlanDamaged`, which names the event.
    """
    page = await driver.fetch(EVENTS, row["id"], after, row["thread_id"], limit, step_id)
    return [_event(event) for event in page]


def entry(row: Record) -> PlanEntry:
    """The plan of this row, as in the feed. Raises `PlanDamaged`."""
    plan = plan_rows.decoded_plan(row)
    return PlanEntry(
        id=row["id"],
        thread_id=row["thread_id"],
        event_seq=row["event_seq"],
        revision=row["revision"],
        edited_revision=row["edited_revision"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        **entry_fields(plan, plan_rows.decoded_counts(row)),
    )


class _EventHead(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that an event on the wire has outside of `data`."""

    type: str
    at: datetime
    step_id: str | None = None


def _progress(row: Record) -> StepProgress:
    return StepProgress(**progress_of(row["plan_id"], row["id"], plan_rows.decoded_step(row)))


def _event(row: Record) -> PlanEventEntry:
    try:
        head = msgspec.json.decode(row["data"], type=_EventHead)
    except msgspec.DecodeError as error:
        raise PlanDamaged(f"The event {row['seq']} of plan {row['plan_id']} is damaged.") from error
    data: dict[str, Any] = msgspec.json.decode(row["data"])
    return PlanEventEntry(
        plan_id=row["plan_id"],
        seq=row["seq"],
        type=head.type,
        step_id=head.step_id,
        at=head.at,
        data={name: value for name, value in data.items() if name not in _EventHead.__struct_encode_fields__},
    )


def _short_event(row: Record) -> PlanEventEntry:
    event = _event(row)
    return msgspec.structs.replace(event, data={name: _cut(value) for name, value in event.data.items()})


def _cut(value: Any) -> Any:
    return value[:MAX_FEED_TEXT_CHARACTERS] if isinstance(value, str) else value
