"""Leases of runs: renewed while an executor works, released by a blocked run, and given up when the run is canceled."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from unittest import mock
from uuid import UUID

import msgspec
import pytest

from khala import components
from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.chat import RunOptions
from khala.domain.errors import AlreadyDecided, Conflict, Forbidden, RunActive
from khala.domain.parts import Step, ToolCall, ToolStatus
from khala.runs.executor_options import ExecutorOptions
from khala.store.accounts import claims
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    THREADS_CHANNEL,
)
from khala.store.runs import run_queue, runs
from khala.store.runs.leases import Lease
from khala.store.runs.parts import ApprovalRequest, Batch, append
from khala.store.sharing import sharing
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendRequest
from khala.store.tools import approvals
from khala.store.tools.approvals import ApprovalDecision
from tests.support.callers import owned_thread, person
from tests.support.client import text_of
from tests.support.in_process import khala
from tests.support.store import CALLER, HIGH_LIMITS, KEY, ask, batch, claim, lease_of, new_thread, write

CALL = "call_1"


async def request_approval(db: Database, lease: Lease) -> None:
    """Let the run ask for the approval of a tool call while its executor still works."""
    ends = datetime.now(UTC) + timedelta(hours=1)
    status = ToolStatus(tool_call_id=CALL, state="blocked", digest="d" * 64, expires_at=ends)
    called = ToolCall(tool_call_id=CALL, step=1, tool="delete_file", args={"path": "a"})
    announced = batch(lease, 0, Step(step=1, max_steps=20, tool_count=1), called, status)
    request = ApprovalRequest(
        tool_call_id=CALL, tool="delete_file", args='{"path":"a"}', parameters="{}", digest="d" * 64, expires_at=ends
    )
    async with db.driver() as driver:
        result = await append(driver, [Batch(lease=lease, parts=announced.parts, approvals=[request])])
    assert result.stored == {lease.run_id: 3}


async def status_of(db: Database, run_id: UUID) -> str:
    async with db.driver() as driver:
        return str(await driver.fetchval("SELECT status FROM runs WHERE id = $1", run_id))


async def decide(db: Database, lease: Lease, *, approved: bool, **decision: Any) -> approvals.Approval:
    return await approvals.decide(db, lease.run_id, CALL, CALLER, ApprovalDecision(approved=approved, **decision))


async def lapse_lease(db: Database, lease: Lease) -> None:
    """Let the run's lease lapse, as if its executor had been silent for too long."""
    async with db.driver() as driver:
        await driver.execute("UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE id = $1", lease.run_id)


async def by_link(db: Database, thread_id: UUID, role: Literal["viewer", "editor"]) -> Caller:
    _, key = await sharing.create_link(db, thread_id, role, None, CALLER)
    return Caller(share_key_hash=key_hash(key))


@contextlib.asynccontextmanager
async def sweep_interval(seconds: float) -> AsyncIterator[None]:
    """Executors that start in this context sweep for runs only at this interval."""

    def options(**given: Any) -> ExecutorOptions:
        return ExecutorOptions(**given, sweep_interval_seconds=seconds)

    with mock.patch.object(components, "ExecutorOptions", options):
        yield


@contextlib.asynccontextmanager
async def notifications_on(db: Database, channel: str) -> AsyncIterator[list[str]]:
    """The notifications on this channel while the context is open."""
    payloads: list[str] = []
    async with db.driver() as driver:

        def hear(*notification: object) -> None:
            payloads.append(str(notification[-1]))

        await driver.add_listener(channel, hear)
        try:
            yield payloads
        finally:
            await driver.remove_listener(channel, hear)


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_a_heartbeat_prolongs_only_the_leases_that_are_held(db: Database) -> None:
    held, lost = [await lease_of(db, await new_thread(db)) for _ in range(2)]
    earlier = msgspec.structs.replace(lost, epoch=lost.epoch - 1)
    elsewhere = msgspec.structs.replace(lost, thread_id=held.thread_id)
    query = "SELECT id, extract(epoch FROM lease_expires_at - clock_timestamp())::float AS left FROM runs"
    async with db.driver() as driver:
        await driver.execute("UPDATE runs SET lease_expires_at = clock_timestamp() + interval '5 seconds'")
        assert await run_queue.renew_leases(driver, [held, earlier], lease_seconds=100) == {held.run_id}
        assert await run_queue.renew_leases(driver, [elsewhere], lease_seconds=100) == set()
        left = {row["id"]: row["left"] for row in await driver.fetch(query)}
    assert 90 < left[held.run_id] <= 100
    assert left[lost.run_id] <= 5


async def test_the_lease_of_a_running_run_is_renewed_repeatedly(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, KHALA_LEASE_SECONDS="1") as server:
        thread = await server.thread()
        sent = await thread.send("/words=3 /pace=0 /hang=3")
        ends: set[datetime] = set()

        async def renewed() -> bool:
            async with db.driver() as driver:
                row = await driver.fetchrow(
                    "SELECT epoch, lease_expires_at FROM runs WHERE id = $1", UUID(sent["runId"])
                )
            if row["epoch"] == 1:
                ends.add(row["lease_expires_at"])
            return len(ends) >= 4

        await until(renewed)
        await thread.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
        run = await thread.ended(sent["runId"])
    await db.close()
    assert (run["status"], run["attempt"]) == ("canceled", 1)
    assert max(ends) - min(ends) > timedelta(seconds=0.5), "each renewal prolongs the lease"


async def test_a_cancel_reaches_the_executor_without_waiting_for_its_next_sweep(database_url: str) -> None:
    async with sweep_interval(30), khala(database_url) as server:
        thread = await server.thread()
        async with server.observer(thread).following() as observer:
            sent = await thread.send("/words=3 /pace=0 /hang=3")
            answer = sent["assistantMessageId"]
            await observer.until(lambda view: view.text(answer).endswith("word3"))
            began = time.monotonic()
            canceled = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
            assert canceled.status_code == 202
            await observer.until(lambda view: answer in view.finished, within=5)
            assert time.monotonic() - began < 0.5
        assert (await thread.ended(sent["runId"], within=1))["status"] == "canceled"


@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_cancel_notifies_executors_and_if_it_ends_the_run_observers_too(db: Database, state: str) -> None:
    thread_id = await new_thread(db)
    run_id = (await lease_of(db, thread_id)).run_id if state == "running" else (await ask(db, thread_id)).run_id
    async with notifications_on(db, RUNS_CHANNEL) as woken, notifications_on(db, THREADS_CHANNEL) as sent_to_observers:
        _, changed = await runs.cancel(db, run_id, CALLER)

        async def all_told() -> bool:
            return bool(woken) and (state == "running" or sent_to_observers == [str(thread_id)])

        await until(all_told, within=5)
    assert changed
    assert await status_of(db, run_id) == {"queued": "canceled", "running": "running"}[state]


async def test_a_send_that_waits_is_not_claimed_while_the_run_before_it_awaits_approval(db: Database) -> None:
    thread_id = await new_thread(db)
    lease = await lease_of(db, thread_id)
    waiting = await ask(db, thread_id)
    assert await claim(db) == [], "it is not claimed while an earlier run is executed"
    await request_approval(db, lease)
    await run_queue.release(db, lease, [], awaited_approvals=[CALL])
    assert await status_of(db, lease.run_id) == "blocked"
    assert await claim(db) == [], "nor while an earlier run waits for approval"
    await decide(db, lease, approved=True)
    assert [claimed.lease.run_id for claimed in await claim(db)] == [lease.run_id], "the approved run goes first"
    assert await claim(db) == []
    await lapse_lease(db, lease)
    await runs.cancel(db, lease.run_id, CALLER)
    assert [claimed.lease.run_id for claimed in await claim(db)] == [waiting.run_id]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("held", [True, False])
async def test_a_decision_cannot_be_changed_while_its_run_is_unfinished(
    db: Database, *, first: bool, held: bool
) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    if not held:
        await run_queue.release(db, lease, [], awaited_approvals=[CALL])
    stands = await decide(db, lease, approved=first)
    assert stands.state == ("approved" if first else "denied")
    with pytest.raises(AlreadyDecided):
        await decide(db, lease, approved=not first)
    assert await decide(db, lease, approved=first) == stands
    async with db.driver() as driver:
        assert (await approvals.of_run(driver, lease.thread_id, lease.run_id))[CALL] == stands
    assert await status_of(db, lease.run_id) == ("running" if held else "queued")


async def test_a_run_canceled_between_its_approval_request_and_the_hand_over_is_not_blocked(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    run, changed = await runs.cancel(db, lease.run_id, CALLER)
    assert changed
    assert run.cancel_requested_at is not None
    async with notifications_on(db, RUNS_CHANNEL) as woken:
        await run_queue.release(db, lease, [], awaited_approvals=[CALL])

        async def waking() -> bool:
            return bool(woken)

        await until(waking, within=5)
    assert await status_of(db, lease.run_id) == "queued"
    (again,) = await claim(db)
    assert (again.lease.run_id, again.canceled) == (lease.run_id, True), "the executor that claims it ends it"


async def test_a_cancel_that_crosses_the_hand_over_ends_the_run(database_url: str) -> None:
    db = Database(database_url)
    async with sweep_interval(30), khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("Hello?")
        (claimed,) = await claim(db)
        await request_approval(db, claimed.lease)
        canceled = await server.http.post(f"/api/runs/{sent['runId']}/cancel", headers=thread.headers)
        assert (canceled.status_code, canceled.json()["status"]) == (202, "running")
        async with khala(database_url):
            await run_queue.release(db, claimed.lease, [], awaited_approvals=[CALL])
            run = await thread.ended(sent["runId"], within=5)
        message = (await thread.snapshot())["messages"][-1]
    await db.close()
    assert (run["status"], run["finish"]["reason"]) == ("canceled", "canceled")
    assert [block["state"] for block in message["content"]] == ["cancelled"]


async def test_a_run_with_a_decision_before_the_hand_over_continues_at_once(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    await decide(db, lease, approved=False)
    await run_queue.release(db, lease, [], awaited_approvals=[CALL])
    assert await status_of(db, lease.run_id) == "queued"


async def test_a_send_treats_a_run_that_awaits_approval_as_unfinished(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    await run_queue.release(db, lease, [], awaited_approvals=[CALL])
    with pytest.raises(RunActive):
        await ask(db, lease.thread_id, if_busy="reject")
    assert await status_of(db, lease.run_id) == "blocked"
    sent = await ask(db, lease.thread_id, if_busy="interrupt")
    assert await status_of(db, lease.run_id) == "canceled"
    assert [claimed.lease.run_id for claimed in await claim(db)] == [sent.run_id]


async def test_an_owner_without_running_runs_is_served_before_one_with_some(db: Database) -> None:
    busy, idle = [await person(db) for _ in range(2)]
    for _ in range(2):
        await ask(db, await owned_thread(db, busy), caller=busy.caller)
    (under_way,) = await claim(db, most=1)
    late = await ask(db, await owned_thread(db, idle), caller=idle.caller)
    assert [claimed.lease.run_id for claimed in await claim(db, most=1)] == [late.run_id]
    (last,) = await claim(db, most=1)
    assert last.lease.run_id != under_way.lease.run_id


async def test_an_executor_without_the_lease_cannot_hand_over_the_run(db: Database) -> None:
    zombie = await lease_of(db, await new_thread(db))
    await lapse_lease(db, zombie)
    (taken,) = await claim(db, owner="another")
    await run_queue.release(db, zombie, [])
    await run_queue.release(db, zombie, [], awaited_approvals=[CALL])
    async with db.driver() as driver:
        row = await driver.fetchrow("SELECT status, epoch, lease_owner FROM runs WHERE id = $1", zombie.run_id)
    assert tuple(row) == ("running", taken.lease.epoch, "another")


async def test_only_lapsed_leases_count_as_lost_executors(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    for _ in range(3):
        await run_queue.release(db, lease, [])
        (again,) = await claim(db)
        assert (again.lost, again.taken_over) == (0, False)
        lease = again.lease
    for number in range(1, 3):
        await lapse_lease(db, lease)
        (again,) = await claim(db)
        assert (again.lost, again.taken_over) == (number, True)
        lease = again.lease


async def test_a_run_whose_executor_is_gone_is_canceled_at_once(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await write(db, batch(lease, 0, "said"))
    await lapse_lease(db, lease)
    run, changed = await runs.cancel(db, lease.run_id, CALLER)
    assert (run.status, changed) == ("canceled", True)
    assert await write(db, batch(lease, 2, "too late")) == {}


async def test_a_viewer_cannot_send(db: Database) -> None:
    thread_id = await new_thread(db)
    viewer, editor = [await by_link(db, thread_id, role) for role in ("viewer", "editor")]
    with pytest.raises(Forbidden):
        await ask(db, thread_id, caller=viewer)
    sent = await ask(db, thread_id, caller=editor)
    again = SendRequest(
        thread_id=thread_id, message_id=sent.user_message_id, text="", options=RunOptions(if_busy="queue")
    )
    with pytest.raises(Forbidden):
        await sends.regenerate(db, again, ids.new(), viewer, HIGH_LIMITS)
    assert (await sends.regenerate(db, again, ids.new(), editor, HIGH_LIMITS))[1]


async def test_an_answer_id_belongs_to_one_question(db: Database) -> None:
    thread_id = await new_thread(db)
    one, other = [
        SendRequest(
            thread_id=thread_id,
            message_id=(await ask(db, thread_id)).user_message_id,
            text="",
            options=RunOptions(if_busy="queue"),
        )
        for _ in range(2)
    ]
    answer_id = ids.new()
    sent, new = await sends.regenerate(db, one, answer_id, CALLER, HIGH_LIMITS)
    assert new
    assert await sends.regenerate(db, one, answer_id, CALLER, HIGH_LIMITS) == (sent, False)
    with pytest.raises(Conflict):
        await sends.regenerate(db, other, answer_id, CALLER, HIGH_LIMITS)


async def test_a_viewer_cannot_cancel(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    viewer, editor = [await by_link(db, lease.thread_id, role) for role in ("viewer", "editor")]
    with pytest.raises(Forbidden):
        await runs.cancel(db, lease.run_id, viewer)
    assert (await runs.cancel(db, lease.run_id, editor))[1]


async def test_an_editor_cannot_change_access(db: Database) -> None:
    thread_id = await new_thread(db)
    editor = await by_link(db, thread_id, "editor")
    assert (await threads.update_thread(db, thread_id, editor, title="Aiur")).title == "Aiur"
    for visibility in ("public", "private"):
        with pytest.raises(Forbidden):
            await threads.update_thread(db, thread_id, editor, title="Shakuras", visibility=visibility)
    assert (await threads.update_thread(db, thread_id, editor)).title == "Aiur"


async def test_a_run_is_not_taken_over_while_its_thread_is_written_to(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await lapse_lease(db, lease)
    async with db.driver() as driver, driver.transaction():
        await driver.execute("SELECT FROM threads WHERE id = $1 FOR NO KEY UPDATE", lease.thread_id)
        assert await claim(db) == []
    assert [claimed.lease.run_id for claimed in await claim(db)] == [lease.run_id]


async def test_runs_that_were_canceled_taken_over_or_deleted_are_reported_to_their_executor(db: Database) -> None:
    leases = [await lease_of(db, await new_thread(db)) for _ in range(4)]
    held, canceled, taken, deleted = leases
    await runs.cancel(db, canceled.run_id, CALLER)
    await lapse_lease(db, taken)
    await claim(db, owner="another")
    await threads.remove(db, deleted.thread_id, CALLER)
    async with db.driver() as driver:
        found = await run_queue.find_revoked(driver, leases)
        assert await run_queue.renew_leases(driver, leases, lease_seconds=10) == {held.run_id, canceled.run_id}
    assert found == {canceled.run_id, taken.run_id, deleted.run_id}


async def test_approval_requests_expire_and_decisions_and_running_runs_do_not(db: Database) -> None:
    answered, running, blocked = [await lease_of(db, await new_thread(db)) for _ in range(3)]
    for lease in (answered, running, blocked):
        await request_approval(db, lease)
    await decide(db, answered, approved=True)
    await run_queue.release(db, blocked, [], awaited_approvals=[CALL])
    another = """
        INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)
        SELECT run_id, 'call_2', thread_id, tool, args, parameters, digest, expires_at FROM approvals WHERE run_id = $1
    """
    async with db.driver() as driver:
        await driver.execute(another, answered.run_id)
        await driver.execute("UPDATE approvals SET expires_at = now() - interval '1 s'")
    assert await approvals.expire(db) == 3
    assert await approvals.expire(db) == 0
    async with db.driver() as driver:
        rows = await driver.fetch("SELECT run_id, tool_call_id, state FROM approvals")
    assert {(row["run_id"], row["tool_call_id"]): row["state"] for row in rows} == {
        (answered.run_id, CALL): "approved",
        (answered.run_id, "call_2"): "expired",
        (running.run_id, CALL): "expired",
        (blocked.run_id, CALL): "expired",
    }
    found = [await status_of(db, lease.run_id) for lease in (answered, running, blocked)]
    assert found == ["running", "running", "queued"]


async def test_a_decision_with_other_arguments_is_another_decision(db: Database) -> None:
    lease = await lease_of(db, await new_thread(db))
    await request_approval(db, lease)
    stands = await decide(db, lease, approved=True, edited_args={"path": "b"})
    for decision in ({}, {"edited_args": {"path": "c"}}):
        with pytest.raises(AlreadyDecided):
            await decide(db, lease, approved=True, **decision)
    assert await decide(db, lease, approved=True, edited_args={"path": "b"}) == stands


async def test_an_answer_interrupted_after_its_last_word_is_complete(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server:
        thread = await server.thread()
        sent = await thread.send("/words=3 /pace=0")
        (dead,) = await claim(db, lease=0.05)
        await write(db, batch(dead.lease, 0, "word1 word2 word3"))
        async with khala(database_url):
            run = await thread.ended(sent["runId"])
        message = (await thread.snapshot())["messages"][-1]
    await db.close()
    assert run["status"] == "final"
    assert text_of(message) == "word1 word2 word3"


async def test_a_claim_leaves_the_run_of_another_account_to_that_account(db: Database) -> None:
    thread_id = await new_thread(db)
    guest = await ask(db, thread_id)
    member, owner = [await person(db) for _ in range(2)]
    editor = await by_link(db, thread_id, "editor")
    theirs = await ask(db, thread_id, caller=msgspec.structs.replace(editor, user_id=member.id))
    by_key = await ask(db, thread_id, caller=msgspec.structs.replace(CALLER, user_id=member.id))
    await claims.claim(db, thread_id, key_hash(KEY), owner.caller)
    async with db.driver() as driver:
        requesters = dict(await driver.fetch("SELECT id, user_id FROM runs"))
    assert requesters == {guest.run_id: owner.id, theirs.run_id: member.id, by_key.run_id: member.id}
