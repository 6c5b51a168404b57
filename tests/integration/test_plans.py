"""Plans that a driver executes: their steps are runs, and everything that happens is stored once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

import pytest

from khala.domain.budgets import BudgetPolicy
from khala.domain.errors import BudgetExhausted, ReachedLimit
from khala.domain.plans.commands import CancelStep, ChangeIterations, Pause, PlanCommand, Resume, Start, Stop
from khala.domain.plans.events import AttemptCharged, Paused, Pausing, StepStarted, Stopped, Stopping
from khala.domain.plans.fold import fold
from khala.plans import pump
from khala.plans.pump import PlanPump
from khala.store.plans import plan_leases, plans, step_runs
from khala.store.plans.plans import PlanChanged
from khala.store.postgres.database import Database
from khala.store.postgres.notifications import notify_drivers
from tests.support.agents import Agent
from tests.support.in_process import InProcessServer, khala
from tests.support.plans import COMPLETES, ThreadPlan, step

LONG_HANG = "/hang=1"
MAX_REACTION_SECONDS = 0.2
"""The longest time after which a pause or a stop takes effect while a plan waits."""


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as inside:
        yield inside


@pytest.fixture
async def plan(server: InProcessServer, db: Database) -> ThreadPlan:
    return ThreadPlan(db, await server.thread())


async def test_the_steps_of_a_plan_are_completed_in_order(plan: ThreadPlan) -> None:
    await plan.create(step("a"), step("b", depends_on=("a",)))
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.end == "completed"
    assert [one.summary for one in stored.plan.steps.values()] == ["done", "done"]
    events = await plan.events()
    assert [event.__struct_config__.tag for event in events] == [
        *("created", "started", "step_started", "step_completed", "step_started", "step_completed"),
        *("stopping", "stopped"),
    ]
    assert fold(events) == stored.plan
    assert stored.plan.spent.tokens > 0


async def test_a_stopped_plan_cancels_its_runs_and_starts_nothing(plan: ThreadPlan, server: InProcessServer) -> None:
    await plan.create(step("a", LONG_HANG), step("b"))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.steps["a"].status == "running")
    await plan.command(Stop())
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.end == "interrupted"
    assert [one.status for one in stored.plan.steps.values()] == ["open", "open"]
    assert len([event for event in await plan.events() if isinstance(event, Stopped)]) == 1


async def test_a_pause_waits_for_the_step_and_resume_goes_on(plan: ThreadPlan) -> None:
    await plan.create(step("a", "/wait=0.3 " + COMPLETES), step("b"))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.steps["a"].status == "running")
    await plan.command(Pause())
    stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert [one.status for one in stored.plan.steps.values()] == ["completed", "open"]
    await plan.command(Resume())
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.end == "completed"
    assert stored.plan.steps["a"].attempts == 1


async def test_a_stop_and_a_pause_end_the_wait_after_a_rate_limit_at_once(plan: ThreadPlan) -> None:
    await plan.create(step("a", "/ratelimit=60"), rate_limit_retries=100)
    await plan.command(Start())
    for number in range(1, 7):
        stored = await plan.wait(lambda stored, number=number: stored.plan.steps["a"].rate_limits == number)  # type: ignore[misc]
        not_before = stored.plan.steps["a"].not_before
        assert not_before is not None
        assert 3 < (not_before - datetime.now(UTC)).total_seconds() <= 60
        await plan.command(Pause() if number < 6 else Stop())
        stored = await plan.wait(lambda stored: stored.plan.status in ("paused", "stopped"))
        if number < 6:
            await plan.command(Resume())
    assert (stored.plan.status, stored.plan.steps["a"].status, stored.plan.steps["a"].attempts) == (
        "stopped",
        "open",
        6,
    )
    events = await plan.events()
    asked = [event.at for event in events if isinstance(event, Pausing | Stopping)]
    done = [event.at for event in events if isinstance(event, Paused | Stopped)]
    seconds = [(end - begin).total_seconds() for begin, end in zip(asked, done, strict=True)]
    assert min(seconds) < MAX_REACTION_SECONDS, "at least once, on a machine that may be busy"
    assert max(seconds) < 3, "always before the wait is over"


async def test_steps_go_side_by_side_and_beside_the_conversation(plan: ThreadPlan, server: InProcessServer) -> None:
    await plan.create(step("a", LONG_HANG), step("b", LONG_HANG), step("c"), parallel=2)
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.running_steps == ["a", "b"])
    sent = await plan.thread.send("/words=3")
    stored = await plan.wait(lambda _: True)
    assert sent["runId"] not in {str(one.run_id) for one in stored.plan.steps.values()}
    await plan.command(Stop())
    await plan.wait(lambda stored: stored.plan.status == "stopped")


async def test_steps_wait_for_a_place_among_the_runs_of_their_owner(database_url: str, db: Database) -> None:
    async with khala(database_url, KHALA_RUNS_PER_OWNER="2", KHALA_COOLDOWN_MS="0") as server:
        plan = ThreadPlan(db, await server.thread())
        await plan.create(step("a", LONG_HANG), step("b", LONG_HANG), step("c"), parallel=3)
        await plan.command(Start())
        stored = await plan.wait(lambda stored: len(stored.plan.running_steps) == 2)
        assert stored.plan.steps["c"].attempts == 0
        await plan.command(CancelStep(step_id="a"))
        await plan.wait(lambda stored: stored.plan.steps["c"].status == "completed")


async def test_the_steps_of_a_guests_plan_use_the_budget_of_the_guests_network(database_url: str, db: Database) -> None:
    async with khala(database_url, KHALA_NETWORK_RUNS_PER_HOUR="1", KHALA_COOLDOWN_MS="0") as server:
        plan = ThreadPlan(db, await server.thread())
        await plan.create(step("a", "/wait=0.2 " + COMPLETES), step("b"))
        started = await server.http.post(f"/api/plans/{plan.id}/start", headers=plan.thread.headers)
        started.raise_for_status()
        assert (await plan.read()).network == "127.0.0.0/24"
        stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert stored.plan.pause_reason == "budget"
    assert [one.status for one in stored.plan.steps.values()] == ["completed", "open"]
    assert stored.network is None


async def test_the_time_limit_of_a_step_does_not_count_the_wait_for_an_approval(
    plan: ThreadPlan, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = '/call delete_file {"path": "a.txt"} '
    await plan.create(step("a", asks + COMPLETES), step("b", LONG_HANG), step_timeout_seconds=60, max_retries=0)
    await plan.command(Start())
    run_id = (await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)).plan.steps["a"].run_id
    agent = Agent(plan.thread, {"runId": str(run_id), "assistantMessageId": ""})
    await agent.status("blocked")
    async with db.driver() as driver:
        call_id = await driver.fetchval(
            "UPDATE approvals SET created_at = created_at - interval '1 hour' RETURNING tool_call_id"
        )

    async def an_hour_passes() -> None:
        hours.append(timedelta(hours=1))
        await plan.command(ChangeIterations(by=1))

    hours: list[timedelta] = []
    monkeypatch.setattr(PlanPump, "_now", lambda _: datetime.now(UTC) + sum(hours, timedelta()))
    read_waits, waits = step_runs.approval_waits, asyncio.Event()

    async def observed_waits(*args: Any) -> dict[UUID, timedelta]:
        found = await read_waits(*args)
        waits.set()
        return found

    monkeypatch.setattr(step_runs, "approval_waits", observed_waits)
    await an_hour_passes()
    async with asyncio.timeout(10):
        await waits.wait()
    assert (await agent.decide(call_id, approved=True)).status_code == 200
    stored = await plan.wait(lambda stored: stored.plan.steps["b"].status == "running")
    assert (stored.plan.steps["a"].status, stored.plan.steps["a"].attempts) == ("completed", 1)
    await an_hour_passes()
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.steps["b"].error == "The step took longer than 60 seconds."


class FastClock(datetime):
    """A clock of a process that is two hours ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "FastClock":
        return super().now(tz) + timedelta(hours=2)


async def test_a_plan_goes_on_under_a_process_whose_clock_is_ahead(
    plan: ThreadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plan.create(step("a", COMPLETES), step("b", COMPLETES, depends_on=("a",)), step_delay_ms=10)
    with monkeypatch.context() as ahead:
        for module in (pump, plans, step_runs):
            ahead.setattr(module, "datetime", FastClock, raising=False)
        await plan.command(Start())
        await plan.wait(lambda stored: stored.plan.steps["a"].status == "completed")
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    assert stored.plan.last_ended_at is not None
    assert stored.plan.last_ended_at < datetime.now(UTC) + timedelta(minutes=1)


@pytest.mark.parametrize("command", [Pause(force=True), Stop(), CancelStep(step_id="a")])
async def test_the_cost_of_a_canceled_run_counts_once_if_it_ends_while_nobody_drives_the_plan(
    plan: ThreadPlan, db: Database, command: PlanCommand
) -> None:
    await plan.create(step("a", '/call delete_file {"path": "a.txt"}'))
    await plan.command(Start())
    run_id = (await plan.wait(lambda stored: stored.plan.steps["a"].run_id is not None)).plan.steps["a"].run_id
    agent = Agent(plan.thread, {"runId": str(run_id), "assistantMessageId": ""})
    await agent.status("blocked")
    set_lease = "UPDATE plans SET epoch = epoch + 1, lease_owner = 'dead', lease_expires_at = now() + $2 WHERE id = $1"
    async with db.driver() as driver:
        await driver.execute(set_lease, plan.id, timedelta(minutes=1))
    await plan.command(command)
    usage = (await agent.ended())["finish"]["usage"]
    assert (await plan.read()).plan.canceled_runs == {run_id: "a"}
    async with db.driver() as driver:
        await driver.execute(set_lease, plan.id, timedelta())
        await notify_drivers(driver, [plan.id])
    stored = await plan.wait(lambda stored: stored.plan.status in ("paused", "stopped"))
    assert stored.plan.spent.tokens == usage["inputTokens"] + usage["outputTokens"] > 0
    charged = [event for event in await plan.events() if isinstance(event, AttemptCharged)]
    assert [(event.run_id, event.spent) for event in charged] == [(run_id, stored.plan.spent)]


async def test_one_driver_at_a_time_holds_a_plan_and_a_lapsed_lease_is_taken_over(
    database_url: str, db: Database
) -> None:
    async with khala(database_url, with_executor=False) as server:
        plan = ThreadPlan(db, await server.thread())
        await plan.create(step("a"))
        assert await plan_leases.claim(db, most=1, owner="early", lease_seconds=30) == []
        await plan.command(Start())
        (first,) = await plan_leases.claim(db, most=1, owner="one", lease_seconds=30)
        assert await plan_leases.claim(db, most=1, owner="two", lease_seconds=30) == []
        assert await plan_leases.renew(db, [first], lease_seconds=0) == {plan.id}
        (second,) = await plan_leases.claim(db, most=1, owner="two", lease_seconds=30)
        assert second.epoch == first.epoch + 1
        assert await plan_leases.renew(db, [first], lease_seconds=30) == set()
        for lease, is_held in ((first, False), (second, True)):
            stored = await plan.read()
            stored.apply([Pausing(at=datetime.now(UTC), reason="requested")])
            with nullcontext() if is_held else pytest.raises(PlanChanged):
                await plans.save_driven(db, stored, lease.epoch, {}, BudgetPolicy())
        assert (await plan.read()).plan.status == "pausing"


async def test_a_change_at_the_same_moment_does_not_end_the_pause_for_a_budget(
    plan: ThreadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = ReachedLimit("usd_per_day", "account", 10)
    refusals: list[Exception] = [
        BudgetExhausted("It is used up.", limit=limit),
        PlanChanged(),
        BudgetExhausted("It is used up.", limit=limit),
    ]

    async def refuse(*args: Any) -> None:
        if refusals:
            raise refusals.pop(0)
        await save_driven(*args)

    save_driven = plans.save_driven
    monkeypatch.setattr(plans, "save_driven", refuse)
    await plan.create(step("a"))
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "paused", seconds=5)
    assert stored.plan.pause_reason == "budget"


async def test_a_step_that_has_ended_is_not_interrupted_before_its_driver_knows(
    plan: ThreadPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, commanded = asyncio.Event(), asyncio.Event()

    async def save_late(*args: Any) -> None:
        knows.set()
        await commanded.wait()
        await save_driven(*args)

    await plan.create(step("a", "/wait=0.3 " + COMPLETES), step("b"))
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.running_steps == ["a"])
    save_driven = plans.save_driven
    monkeypatch.setattr(plans, "save_driven", save_late)
    async with asyncio.timeout(10):
        await knows.wait()
    await plan.command(Pause(force=True))
    commanded.set()
    stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert (stored.plan.steps["a"].status, stored.plan.steps["a"].attempts) == ("completed", 1)
    assert stored.plan.spent.tokens > 0


async def test_no_step_starts_after_the_pause_for_agents_that_do_not_exist(plan: ThreadPlan) -> None:
    await plan.create(step("a"), step("b"), step("c"), parallel=3, agents=("gone", "lost"))
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "paused")
    assert stored.plan.pause_reason == "all_limited"
    assert {one.status for one in stored.plan.steps.values()} == {"open"}
    kinds = [type(event) for event in await plan.events()]
    assert StepStarted not in kinds[kinds.index(Pausing) :]
