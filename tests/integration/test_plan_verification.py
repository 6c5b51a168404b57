"""A damaged plan is found by `khala verify`, and named where it is read. Nothing else stops."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from khala.domain.errors import PlanDamaged
from khala.domain.plans.commands import Edit, Start
from khala.domain.thread_changes import Delta
from khala.store.operations import plan_checks
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.operations.verify_loop import VerificationLoop
from khala.store.operations.verify_pages import VerifySelection
from khala.store.plans import plan_feed, plans
from khala.store.postgres.database import Database
from khala.store.threads import thread_feed
from tests.support.in_process import khala
from tests.support.plans import ThreadPlan, step
from tests.support.store import CALLER, new_thread, revision_of
from tests.support.stored_plans import finished_plan, new_plan, planned, started_plan

DAMAGE = {
    "DELETE FROM plan_events WHERE plan_id = $1 AND seq = 3": "its event 3 is missing",
    "DELETE FROM plan_events WHERE plan_id = $1 AND seq = (SELECT event_seq FROM plans WHERE id = $1)":
        "it claims 10 events and has 9",
    "UPDATE plan_events SET data = data - 'stepId' WHERE plan_id = $1 AND seq = 3": "its event 3 is not readable",
    "UPDATE plan_events SET data = jsonb_set(data, '{stepId}', '\"z\"') WHERE plan_id = $1 AND seq = 3":
        "its event 3 does not follow the events before it",
    "UPDATE plan_events SET revision = revision + 100 WHERE plan_id = $1 AND seq = 3":
        "its event 3 has a revision that does not fit",
    "UPDATE plans SET state = jsonb_set(state, '{title}', '\"Other\"') WHERE id = $1":
        "its state is not what its events fold to",
    "UPDATE plans SET state = jsonb_set(state, '{counts,open}', '1') || jsonb_build_object('counts', "
    "state->'counts' || '{\"open\": 1, \"completed\": 2}') WHERE id = $1": "its counts are not those of its steps",
    "UPDATE plans SET status = 'paused' WHERE id = $1": "its status is paused, and its state says stopped",
    "UPDATE plan_steps SET progress = jsonb_set(progress, '{attempts}', '9') WHERE plan_id = $1 AND id = 'b'":
        "its step 'b' is not what its events fold to",
    "UPDATE plan_steps SET planned = jsonb_set(planned, '{title}', '\"?\"') WHERE plan_id = $1 AND id = 'b'":
        "its step 'b' is not what its events fold to",
    "UPDATE plan_steps SET position = 9 WHERE plan_id = $1 AND id = 'a'":
        "its steps are not those that its events name",
    "UPDATE plan_steps SET id = 'y' WHERE plan_id = $1 AND id = 'a'": "its steps are not those that its events name",
}  # fmt: skip
"""What damages a plan, and a difference that is found."""


async def execute(db: Database, query: str, *values: object) -> None:
    async with db.driver() as driver:
        await driver.execute(query, *values)


async def problems(db: Database, selection: VerifySelection | None = None) -> list[tuple[str, str]]:
    found = find_differences(db, VerifyProgress(), selection or VerifySelection())
    return [(difference.place, difference.problem) async for difference in found]


async def test_plans_in_every_state_equal_their_events(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_checks, "EVENTS", plan_checks.EVENTS.replace("LIMIT 1000", "LIMIT 2"))
    thread_id = await new_thread(db)
    edited = await new_plan(db, thread_id, steps="abc")
    edit = Edit(title="New", add=(planned("d"),), remove=("b", "c"), order=("d", "a"))
    await plans.command(db, edited, CALLER, edit)
    await started_plan(db, thread_id)
    await finished_plan(db, thread_id, steps="abcd")
    progress = VerifyProgress()
    assert [found async for found in find_differences(db, progress)] == []
    assert (progress.plans, progress.position.stage) == (3, "plans")


async def test_each_damage_of_a_plan_is_found_and_only_there(db: Database) -> None:
    thread_id = await new_thread(db)
    for query, expected in DAMAGE.items():
        damaged, _ = await finished_plan(db, thread_id, steps="abc"), await finished_plan(db, thread_id)
        await execute(db, query, damaged)
        found = await problems(db)
        assert (f"plan {damaged} of thread {thread_id}", expected) in found, query
        assert {place for place, _ in found} == {f"plan {damaged} of thread {thread_id}"}
        await execute(db, "DELETE FROM plans WHERE id = $1", damaged)


async def test_plans_are_selected_like_other_rows(db: Database) -> None:
    thread_id, other = await new_thread(db), await new_thread(db)
    for where in (thread_id, other):
        await execute(db, "DELETE FROM plan_events WHERE plan_id = $1", await new_plan(db, where))
    assert len(await problems(db)) == 2
    [(place, _)] = await problems(db, VerifySelection(thread_id=thread_id))
    assert str(thread_id) in place
    await execute(db, "UPDATE threads SET revision = 0 WHERE id = $1", other)
    assert (f"thread {other}", "it is at revision 0, a row at 2") in await problems(db)


async def test_the_background_verification_checks_a_plan_of_recent_steps(database_url: str, db: Database) -> None:
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as server:
        plan = ThreadPlan(db, await server.thread())
        await plan.create(step("a"))
        await plan.command(Start())
        await plan.wait(lambda stored: stored.plan.status == "stopped")
    soon = datetime.now(UTC) + timedelta(minutes=2)
    assert await VerificationLoop(db).check_recent(soon) == []
    await execute(db, "DELETE FROM plan_events WHERE plan_id = $1 AND seq = 3", plan.id)
    [difference] = await VerificationLoop(db).check_recent(soon)
    assert (difference.place, difference.problem) == (
        f"plan {plan.id} of thread {plan.thread_id}",
        "its event 3 is missing",
    )


Read = Callable[[Database, UUID], Awaitable[object]]


async def read_events(db: Database, plan_id: UUID) -> object:
    async with db.driver() as driver:
        return await plan_feed.events(driver, await plans.find(driver, plan_id, CALLER), after=0, limit=100)


async def read_steps(db: Database, plan_id: UUID) -> object:
    async with db.driver() as driver:
        return await plan_feed.steps(driver, await plans.find(driver, plan_id, CALLER))


async def read_detail(db: Database, plan_id: UUID) -> object:
    async with db.driver() as driver:
        return plan_feed.detail(await plans.find(driver, plan_id, CALLER))


async def start(db: Database, plan_id: UUID) -> object:
    return await plans.command(db, plan_id, CALLER, Start())


UNREADABLE: list[tuple[str, Read, str]] = [
    ('UPDATE plan_events SET data = \'{"type": "?"}\' WHERE plan_id = $1', read_events, "event 1 of plan {}"),
    ("UPDATE plan_steps SET progress = '{\"status\": 7}' WHERE plan_id = $1", read_steps, "step 'a' of plan {}"),
    ("DELETE FROM plan_steps WHERE plan_id = $1 AND id = 'a'", start, "plan {} is damaged: it has 1 of its 2 steps"),
    ("UPDATE plans SET state = '{}' WHERE id = $1", read_detail, "plan {} is damaged: its state is not readable"),
    ("UPDATE plans SET state = state - 'counts' WHERE id = $1", read_detail, "plan {} is damaged: its counts"),
]


async def test_a_read_of_a_damaged_plan_names_what_is_damaged_and_the_feed_goes_on(db: Database) -> None:
    for query, read, expected in UNREADABLE:
        thread_id = await new_thread(db)
        damaged, whole = await new_plan(db, thread_id), await new_plan(db, thread_id)
        await execute(db, query, damaged)
        with pytest.raises(PlanDamaged, match=expected.format(damaged)):
            await read(db, damaged)
        async with db.snapshot() as driver:
            found = (await thread_feed.read_changes(driver, {thread_id: 1}))[thread_id].change
            snapshot = await thread_feed.read_snapshot(driver, thread_id, limit=10)
        assert isinstance(found, Delta)
        assert found.revision == await revision_of(db, thread_id)
        assert whole in {entry.id for entry in found.plans}
        assert whole in {entry.id for entry in snapshot.plans}
        assert {step.plan_id for step in found.plan_steps or ()} >= {whole}
        assert {event.plan_id for event in found.plan_events or ()} >= {whole}
        await execute(db, "DELETE FROM plans WHERE id = $1", damaged)


async def test_a_driver_leaves_a_damaged_plan_alone_and_goes_on_with_the_others(
    db: Database, database_url: str
) -> None:
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as server:
        thread = await server.thread()
        damaged, whole = ThreadPlan(db, thread), ThreadPlan(db, thread)
        for plan in (damaged, whole):
            await plan.create(step("a"), step("b"))
        await execute(db, "UPDATE plans SET status = 'running', state = '{}' WHERE id = $1", damaged.id)
        with capture_logs() as logs:
            await whole.command(Start())
            stored = await whole.wait(lambda stored: stored.plan.status == "stopped")
        assert stored.plan.end == "completed"
        async with db.driver() as driver:
            claims = await driver.fetchval("SELECT epoch FROM plans WHERE id = $1", damaged.id)
        assert claims == 1, "it is claimed again only when the lease lapses"
        [entry] = [entry for entry in logs if entry["event"] == "plan_damaged" and "plan_id" in entry]
        assert entry["plan_id"] == str(damaged.id)
