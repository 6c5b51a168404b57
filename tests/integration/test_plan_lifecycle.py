"""Plans follow their thread: resets, deletions, claims, lost access, deleted accounts and the purge."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec
import pytest

from khala.domain.access import Caller, author_id_of_key, key_hash
from khala.domain.budgets import BudgetPolicy
from khala.domain.errors import Conflict, NotFound
from khala.domain.plans.attempts import AttemptCompleted
from khala.domain.plans.commands import ChangeConfig, ChangeMode, Edit, PlanCommand, Resume, Start, Stop
from khala.domain.plans.config_changes import PlanConfigChanges
from khala.domain.plans.plan import Plan
from khala.signals import metrics
from khala.store.accounts import account_feed, account_removal, claims
from khala.store.operations import retention
from khala.store.operations.retention import RetentionPolicy, count_due, purge
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.plans import plan_leases, plans, run_plans
from khala.store.plans.plans import PlanChanged
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.threads import thread_feed, threads
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.people import make_member
from tests.support.plans import COMPLETES, ThreadPlan, step
from tests.support.store import CALLER, KEY, ask, new_thread
from tests.support.stored_plans import drive, finished_plan, lease_of_plan, new_plan, started_plan, stored_plan

FOR_EVER = RetentionPolicy(idle=timedelta(0))
TABLES = ("plans", "plan_steps", "plan_events")
LONG_HANG = "/hang=1"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as inside:
        yield inside


async def rows_of(db: Database, thread_id: UUID) -> list[int]:
    async with db.driver() as driver:
        return [
            await driver.fetchval(f"SELECT count(*) FROM {table} WHERE thread_id = $1", thread_id) for table in TABLES
        ]


async def shown_plans(db: Database, thread_id: UUID) -> list[UUID]:
    async with db.snapshot() as driver:
        return [entry.id for entry in (await thread_feed.read_snapshot(driver, thread_id, limit=9)).plans]


async def status_of(db: Database, plan_id: UUID) -> str:
    async with db.driver() as driver:
        return str(await driver.fetchval("SELECT status FROM plans WHERE id = $1", plan_id))


async def claimed(db: Database) -> list[UUID]:
    return [lease.plan_id for lease in await plan_leases.claim(db, most=9, owner="other", lease_seconds=0)]


async def test_a_reset_takes_plans_from_readers_and_drivers_at_once_and_the_purge_deletes_them(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 3)
    thread_id, other = await new_thread(db), await new_thread(db)
    running, idle = await started_plan(db, thread_id), await new_plan(db, thread_id)
    await started_plan(db, other)
    lease = await lease_of_plan(db, running)
    stored = await stored_plan(db, running)
    kept = await rows_of(db, other)
    await threads.reset(db, thread_id, CALLER, welcome="")
    assert await shown_plans(db, thread_id) == []
    async with db.driver() as driver:
        for plan_id in (running, idle):
            with pytest.raises(NotFound):
                await plans.find(driver, plan_id, CALLER)
    with pytest.raises(NotFound):
        await plans.command(db, idle, CALLER, Start())
    with pytest.raises(PlanChanged):
        await plans.save_driven(db, stored, lease.epoch, {}, BudgetPolicy())
    assert await plan_leases.renew(db, [lease], lease_seconds=9) == set()
    assert running not in await claimed(db)
    again = await new_plan(db, thread_id)
    assert await shown_plans(db, thread_id) == [again]
    assert [found async for found in find_differences(db, VerifyProgress())] == []
    due = await count_due(db, FOR_EVER)
    assert [due[table] for table in TABLES] == [2, 4, 5]
    deleted = await purge(db, FOR_EVER)
    assert [deleted[table] for table in TABLES] == [2, 4, 5]
    assert await shown_plans(db, thread_id) == [again]
    assert (await rows_of(db, thread_id), await rows_of(db, other)) == ([1, 2, 1], kept)


async def test_plans_of_a_deleted_thread_stop_and_are_purged_in_batches(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MAX_BATCH_ROWS", 2)
    thread_id, other = await new_thread(db), await new_thread(db)
    plan_id, _ = await started_plan(db, thread_id, steps="abcd"), await finished_plan(db, thread_id)
    lease = await lease_of_plan(db, plan_id)
    await finished_plan(db, other)
    kept = await rows_of(db, other)
    await threads.remove(db, thread_id, CALLER)
    assert await status_of(db, plan_id) == "stopped"
    assert await plan_leases.renew(db, [lease], lease_seconds=9) == set()
    before = await rows_of(db, thread_id)
    deleted = await purge(db, FOR_EVER)
    assert [deleted[table] for table in TABLES] == before
    assert (await rows_of(db, thread_id), await rows_of(db, other)) == ([0, 0, 0], kept)


async def test_a_claim_lets_the_guests_plans_go_on_for_the_user_and_the_driver_reads_them_again(db: Database) -> None:
    owner, thread_id = await person(db), await new_thread(db)
    plan_id = await started_plan(db, thread_id, msgspec.structs.replace(CALLER, network="203.0.113.0/24"))
    lease, stale = await lease_of_plan(db, plan_id), await stored_plan(db, plan_id)
    _, share_key = await sharing.create_link(db, thread_id, "editor", None, CALLER)
    others = await new_plan(db, thread_id, Caller(share_key_hash=key_hash(share_key)))
    await claims.claim(db, thread_id, key_hash(KEY), owner.caller)
    taken, left = await stored_plan(db, plan_id), await stored_plan(db, others)
    assert stale.network == "203.0.113.0/24"
    assert (taken.user_id, taken.network, taken.plan.status) == (owner.id, None, "running")
    assert (left.user_id, left.requester_key_id) == (None, author_id_of_key(key_hash(share_key)))
    with pytest.raises(PlanChanged):
        await plans.save_driven(db, stale, lease.epoch, {}, BudgetPolicy())
    assert (await drive(db, plan_id, AttemptCompleted(summary="Done."))).user_id == owner.id


async def test_a_claimed_plan_completes_as_the_users(db: Database, server: InProcessServer) -> None:
    thread, owner = await server.thread(), await person(db)
    plan = ThreadPlan(db, thread)
    await plan.create(step("a", "/wait=0.4 " + COMPLETES), step("b"))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)
    await claims.claim(db, plan.thread_id, key_hash(thread.key), owner.caller)
    stored = await plan.wait(lambda stored: stored.plan.status in ("stopped", "paused"))
    assert (stored.plan.end, stored.user_id) == ("completed", owner.id)
    async with db.driver() as driver:
        users = await driver.fetch("SELECT user_id FROM runs WHERE plan_id = $1", plan.id)
    assert [row["user_id"] for row in users] == [owner.id, owner.id]


@pytest.mark.parametrize("how", ["removed", "account deleted"])
async def test_a_plan_pauses_when_the_person_who_started_it_may_no_longer_write(
    db: Database, server: InProcessServer, how: str
) -> None:
    owner, member = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, member.id, "editor", owner.caller)
    plan = ThreadPlan(db, Thread(server.http, str(thread_id), ""), member.caller)
    await plan.create(step("a", LONG_HANG), step("b"))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)
    if how == "removed":
        await sharing.remove_member(db, thread_id, member.id, owner.caller)
    else:
        await account_removal.remove(db, member.caller, member.id)
    stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert stored.plan.pause_reason == "access"
    assert [one.status for one in stored.plan.steps.values()] == ["open", "open"]
    await plans.command(db, plan.id, owner.caller, Resume())
    resumed = await plan.wait(lambda stored: bool(stored.plan.running_steps))
    assert resumed.user_id == owner.id
    await threads.remove(db, thread_id, owner.caller)


async def test_a_change_by_another_person_pauses_a_plan_until_it_is_resumed(db: Database) -> None:
    """Otherwise the steps that they write would run with the accounts of the person who has started the plan."""
    owner, member = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, member.id, "editor", owner.caller)
    plan_id = await started_plan(db, thread_id, owner.caller)
    edit, rules = Edit(title="Another"), ChangeConfig(changes=PlanConfigChanges(max_retries=9))
    cases: list[tuple[Caller, PlanCommand, str]] = [
        (owner.caller, Edit(goal="Mine"), "running"),
        (member.caller, ChangeMode(mode="autopilot"), "running"),
        (member.caller, edit, "pausing"),
        (owner.caller, Resume(), "running"),
        (member.caller, edit, "running"),  # It changes nothing.
        (member.caller, rules, "pausing"),
        (member.caller, Resume(), "running"),
        (member.caller, Edit(goal="Theirs"), "running"),
        (owner.caller, Edit(goal="Mine"), "pausing"),
    ]
    for caller, command, status in cases:
        assert (await plans.command(db, plan_id, caller, command)).status == status, command
    assert (await stored_plan(db, plan_id)).user_id == member.id


def _given(edits: list[PlanCommand], _: Plan) -> list[PlanCommand]:
    return edits


async def test_a_change_by_the_run_of_another_person_pauses_a_plan_until_it_is_resumed(db: Database) -> None:
    owner, member = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, member.id, "editor", owner.caller)
    plan_id = await started_plan(db, thread_id, owner.caller)
    for who, title, status in ((owner, "Mine", "running"), (member, "Theirs", "pausing")):
        run_id = (await ask(db, thread_id, caller=who.caller)).run_id
        edits: list[PlanCommand] = [Edit(title=title)]
        stored, _ = await run_plans.change(db, plan_id, thread_id, run_id, partial(_given, edits))
        assert (stored.plan.title, stored.plan.status) == (title, status)
    assert (await stored_plan(db, plan_id)).edited_by == member.id
    await plans.command(db, plan_id, owner.caller, Resume())
    assert (await stored_plan(db, plan_id)).edited_by is None


async def test_the_thread_list_says_whether_a_plan_waits_for_a_person(db: Database, server: InProcessServer) -> None:
    owner = await person(db)
    thread = Thread(server.http, str(await owned_thread(db, owner)), "")
    resumed, removed = ThreadPlan(db, thread, owner.caller), ThreadPlan(db, thread, owner.caller)
    revisions: list[int] = []

    async def waits() -> bool:
        async with db.driver() as driver, driver.transaction():
            listed = await account_feed.full_list(driver, owner.id)
        assert listed is not None
        revisions.append(listed.revision)
        return listed.threads[0].plan_waits

    assert not await waits()
    for plan, instructions in ((resumed, LONG_HANG), (removed, COMPLETES)):
        await plan.create(step("a"), step("b", instructions), mode="step")
        await plan.command(Start())
        await plan.wait(lambda stored: stored.plan.status == "paused")
        assert await waits()
        await (plan.command(Resume()) if plan is resumed else plan.remove())
        assert not await waits()
    assert revisions == sorted(set(revisions)), "the feed of the list tells each change"
    await resumed.command(Stop())


async def test_the_drivers_of_a_reset_thread_forget_its_plans(db: Database, server: InProcessServer) -> None:
    thread = await server.thread()
    plan = ThreadPlan(db, thread)
    await plan.create(step("a", LONG_HANG))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)
    await threads.reset(db, plan.thread_id, plan.caller, welcome="")
    async with asyncio.timeout(5):
        while metrics.REGISTRY.get_sample_value("khala_plans_driven"):
            await asyncio.sleep(0.02)
    with pytest.raises(Conflict):
        await plan.create(step("a"))
    assert await status_of(db, plan.id) == "stopped"
