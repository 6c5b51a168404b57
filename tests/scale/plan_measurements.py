"""Measurements of plans: to open a large one, the frame of its changes, and what idle plans cost a driver."""

from datetime import UTC, datetime

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.plans.commands import RetryStep, SkipStep
from khala.domain.plans.events import Created
from khala.domain.plans.plan import PlannedStep
from khala.live.catch_up_reader import CatchUpReader
from khala.live.feeds import ThreadFeed
from khala.store.plans import plan_feed, plan_leases, plans
from tests.bench.plans import CONFIG, MAX_FRAME_BYTES, MAX_OPEN_MS, change_all
from tests.scale.deployment import DEEP_THREAD_ID, HISTORIAN_ID
from tests.scale.figures import Figure, usage_figures
from tests.scale.stage import ScaleStage

EVENTS_PER_STEP = 10
PAGE_EVENTS = 100
KIB = "KiB"
TEXT = "Write the part of the program that this step is about, and its tests. " * 4
ADD_IDLE = """
    INSERT INTO plans
    SELECT (jsonb_populate_record(plans, jsonb_build_object('id', gen_random_uuid(), 'thread_id', threads.id))).*
    FROM plans CROSS JOIN threads WHERE plans.thread_id = $1 AND threads.id <> $1 AND threads.deleted_at IS NULL
"""
"""A plan for each thread, without steps: nothing that looks for work reads a step."""
MAX_IDLE_BUFFERS = 20.0


async def measure_plans(stage: ScaleStage) -> list[Figure]:
    """Reading a plan with its steps and last events, its changes in a frame, and the search for plans that are due."""
    steps, caller, plan_id = stage.effort.plan_steps, Caller(user_id=HISTORIAN_ID), ids.new()
    planned = [PlannedStep(id=f"s{number}", title=f"Step {number}", instructions=TEXT) for number in range(steps)]
    created = Created(
        at=datetime.now(UTC), title="Plan", config=CONFIG, mode="autopilot", max_iterations=10_000, steps=tuple(planned)
    )
    await plans.create(stage.db, plan_id, DEEP_THREAD_ID, caller, created)
    for _ in range(EVENTS_PER_STEP // 2):
        for command in (SkipStep, RetryStep):
            await change_all(stage.db, DEEP_THREAD_ID, plan_id, command)
    async with stage.connection() as driver:
        await driver.execute(ADD_IDLE, DEEP_THREAD_ID)
        await driver.execute("ANALYZE plans, plan_steps, plan_events")
        idle = await driver.fetchval("SELECT count(*) FROM plans WHERE status = 'idle'")
        events, revision = await driver.fetchrow("SELECT event_seq, revision FROM plans WHERE id = $1", plan_id)

    async def read() -> None:
        async with stage.db.driver() as driver:
            row = await plans.find(driver, plan_id, caller)
            assert plan_feed.detail(row).id == plan_id
            assert len(await plan_feed.steps(driver, row)) == steps
            assert await plan_feed.events(driver, row, after=events - PAGE_EVENTS, limit=PAGE_EVENTS)

    async def look() -> None:
        async with stage.db.driver() as driver:
            assert await plan_leases.seconds_until_due(driver) is None

    opened, looked = await stage.meter.repeated(read), await stage.meter.repeated(look)
    delta = await CatchUpReader(stage.db).read(ThreadFeed(), DEEP_THREAD_ID, revision - 1)
    assert delta is not None
    assert delta.body is not None
    size = f"{steps:,} steps, {events:,} events"
    async with stage.connection() as driver:
        await driver.execute("TRUNCATE plans, plan_steps, plan_events")
    return [
        *usage_figures("open a plan", size, opened, milliseconds=MAX_OPEN_MS),
        Figure(name="frame of all its steps", size=size, value=len(delta.body.text) / 1024, unit=KIB,
               target=MAX_FRAME_BYTES / 1024),
        *usage_figures("look for plans that are due", f"{idle:,} idle", looked, buffers=MAX_IDLE_BUFFERS),
    ]  # fmt: skip
