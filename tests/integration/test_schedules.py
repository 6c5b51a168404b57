"""Schedules: each occurrence fires once, as its owner, whatever dies and whatever is deleted meanwhile."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.domain.budgets import BudgetPolicy
from khala.domain.schedules import MAX_FAILURES, message_id
from khala.schedules.firing import fire
from khala.schedules.runner import ScheduleRunner
from khala.store.postgres.database import Database
from khala.store.schedules import schedule_claims
from khala.store.threads.sends import SendLimits
from tests.integration.test_api_threads import assert_problem
from tests.support.callers import Person, owned_thread, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.people import make_member
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOURLY = {"text": "/words=3 /pace=0", "cron": "0 * * * *"}

server = server_fixture(with_executor=False)
"""A server that fires nothing: the tests do."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def working(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def db(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


class Owner:
    """An account with a thread."""

    def __init__(self, http: httpx.AsyncClient, who: Person, thread_id: uuid.UUID) -> None:
        self.http = http
        self.who = who
        self.thread = Thread(http, str(thread_id), "")
        self.thread.headers = who.headers

    async def ask(self, method: str, path: str = "", **sending: Any) -> httpx.Response:
        return await self.http.request(method, f"/api/schedules{path}", headers=self.who.headers, **sending)

    async def create(self, **body: Any) -> dict[str, Any]:
        made = await self.ask("POST", json=HOURLY | {"threadId": self.thread.id} | body)
        assert made.status_code == 201, made.text
        return dict(made.json())

    async def read(self, schedule: dict[str, Any]) -> dict[str, Any]:
        return dict((await self.ask("GET", f"/{schedule['id']}")).raise_for_status().json())

    async def questions(self, thread_id: str | None = None) -> list[dict[str, Any]]:
        self.thread.id = thread_id or self.thread.id
        return [one for one in (await self.thread.snapshot())["messages"] if one["role"] == "user"]


async def owner(server: InProcessServer, db: Database) -> Owner:
    who = await person(db, "Artanis")
    return Owner(server.http, who, await owned_thread(db, who))


def runner(db: Database, *, limits: SendLimits | None = None) -> ScheduleRunner:
    return ScheduleRunner(db, limits or SendLimits(), lambda model: model != "demo:gone")


async def let_pass(db: Database, schedule: dict[str, Any], **time: float) -> None:
    """Let the schedule's next time be so long ago."""
    query = "UPDATE schedules SET occurrence_at = $2, due_at = $2, lease_expires_at = NULL WHERE id = $1"
    async with db.driver() as driver:
        moment = datetime.now(UTC).replace(microsecond=0) - timedelta(**time)
        await driver.execute(query, uuid.UUID(schedule["id"]), moment)


async def look(db: Database, *, limits: SendLimits | None = None) -> None:
    """Fire what is due, until nothing is."""
    one = runner(db, limits=limits)
    while await one._look() == 0:
        pass


async def end_all(db: Database) -> None:
    """So that the schedules of one test are not fired by another one."""
    async with db.driver() as driver:
        await driver.execute("DELETE FROM schedules")


async def test_a_delayed_send_becomes_a_run_at_its_time(working: InProcessServer) -> None:
    store = Database(working.database_url)
    mine = await owner(working, store)
    await store.close()
    body = {"text": "/words=3 /pace=0", "messageId": str(uuid.uuid4()), "after": 0.5}
    sent = await mine.thread.post("send", body)
    assert (sent.status_code, sent.json()["id"], sent.json()["status"]) == (202, body["messageId"], "active")
    assert (await mine.thread.post("send", body)).json()["id"] == body["messageId"]
    assert await mine.questions() == [], "it is sent later"
    async with asyncio.timeout(20):
        while (await mine.read(sent.json()))["status"] != "ended":
            await asyncio.sleep(0.05)
    schedule = await mine.read(sent.json())
    assert (await mine.thread.ended(schedule["lastRunId"]))["status"] == "final"
    [question] = await mine.questions()
    assert (question["id"], question["authorName"]) == (body["messageId"], "Artanis")
    again = await mine.thread.post("send", body)
    assert (again.status_code, again.json()["lastRunId"]) == (200, schedule["lastRunId"])


async def test_a_delayed_send_is_canceled_before_its_time(server: InProcessServer, db: Database) -> None:
    mine = await owner(server, db)
    sent = (await mine.thread.post("send", {"text": "Later", "sendAt": "2033-01-01T00:00:00Z"})).json()
    assert (sent["nextAt"], sent["text"]) == ("2033-01-01T00:00:00Z", "Later")
    assert (await mine.ask("DELETE", f"/{sent['id']}")).status_code == 204
    assert_problem(await mine.ask("DELETE", f"/{sent['id']}"), 404, "not_found")
    guest = await server.thread()
    assert_problem(await guest.post("send", {"text": "Later", "after": 5}), 401, "unauthorized")
    for wrong in ({"after": 1, "sendAt": sent["nextAt"]}, {"after": -1}, {"after": 1, "parentId": None}):
        assert_problem(await mine.thread.post("send", {"text": "x"} | wrong), 400, "invalid_input")


async def test_of_several_processes_one_fires_each_occurrence(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedules = [await mine.create(text=f"Number {number}") for number in range(5)]
    for schedule in schedules:
        await let_pass(db, schedule, seconds=1)
    await asyncio.gather(*(look(db) for _ in range(4)))
    assert sorted(one["content"][0]["text"] for one in await mine.questions()) == [f"Number {n}" for n in range(5)]
    for schedule in schedules:
        now = await mine.read(schedule)
        assert (now["status"], now["nextAt"] > now["lastAt"]) == ("active", True)


async def test_an_occurrence_whose_process_died_before_it_was_recorded_is_not_sent_twice(
    server: InProcessServer, db: Database
) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule = await mine.create(threadId=None, name="Report")
    await let_pass(db, schedule, seconds=1)
    [claimed] = await schedule_claims.claim(db, 10)
    assert await schedule_claims.claim(db, 10) == [], "another process holds it"
    assert_problem(await mine.ask("DELETE", f"/{schedule['id']}"), 409, "conflict")
    assert_problem(await mine.ask("PATCH", f"/{schedule['id']}", json={"paused": True}), 409, "conflict")
    # The process sends the message and is killed. Its lease lapses.
    due = message_id(claimed.schedule.id, claimed.occurrence)
    assert (await fire(db, claimed.schedule, due, SendLimits())).run_id is not None
    async with db.driver() as driver:
        await driver.execute("UPDATE schedules SET due_at = now(), lease_expires_at = now()")
    [again] = await schedule_claims.claim(db, 10)
    assert (again.occurrence, again.epoch) == (claimed.occurrence, claimed.epoch + 1)
    await runner(db).fire_claimed(again)
    first = await mine.read(schedule)
    # The first process was only slow: it fires the same occurrence, which adds nothing, and may not record it.
    await runner(db).fire_claimed(claimed)
    assert await mine.read(schedule) == first
    assert len(await mine.questions(first["lastThreadId"])) == 1
    assert (await mine.thread.snapshot())["thread"]["title"] == "Report"
    listed = await server.http.get("/api/threads", headers=mine.who.headers)
    assert [one["title"] for one in listed.json()["items"] if one.get("title")] == ["Report"]


@pytest.mark.parametrize(("missed", "sent"), [("skip", 0), ("once", 1), ("all", 10)])
async def test_missed_occurrences_fire_as_the_policy_says(
    server: InProcessServer, db: Database, missed: str, sent: int
) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule = await mine.create(missed=missed, cron="*/20 * * * *")
    async with db.driver() as driver:
        # As after an outage of two days.
        query = "UPDATE schedules SET occurrence_at = $1, due_at = $1"
        hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        await driver.execute(query, hour - timedelta(days=2))
        is_fresh = await driver.fetchval("SELECT extract(minute FROM now())::int % 20 < 3")
    await look(db)
    assert len(await mine.questions()) in ((sent, sent + 1) if is_fresh else (sent,))
    now = await mine.read(schedule)
    assert (now["status"], now.get("failures", 0)) == ("active", 0)
    assert datetime.fromisoformat(now["nextAt"]) > datetime.now(UTC) - timedelta(minutes=2)


async def test_failures_are_tried_again_and_pause_the_schedule_at_last(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule = await mine.create()
    full = SendLimits(waiting=0, budgets=BudgetPolicy())
    for failures in range(1, MAX_FAILURES):
        await let_pass(db, schedule, seconds=1)
        await look(db, limits=full)
        now = await mine.read(schedule)
        assert (now["status"], now["failures"]) == ("active", failures)
        assert "Too many answers" in now["error"]
    listed = await server.http.get("/api/threads", headers=mine.who.headers)
    assert [thread["id"] for thread in listed.json()["items"]] == [mine.thread.id], "no empty thread is left"
    async with db.driver() as driver:
        wait = await driver.fetchval("SELECT extract(epoch FROM due_at - clock_timestamp())::int FROM schedules")
    assert 400 < wait <= 480, "the delay doubles"
    await let_pass(db, schedule, seconds=1)
    await look(db, limits=full)
    now = await mine.read(schedule)
    assert (now["status"], now["reason"], "nextAt" in now) == ("paused", "failed", True)
    resumed = (await mine.ask("PATCH", f"/{schedule['id']}", json={"paused": False})).json()
    assert (resumed["status"], resumed.get("failures"), resumed.get("error")) == ("active", None, None)
    assert datetime.fromisoformat(resumed["nextAt"]) > datetime.now(UTC)


async def test_a_schedule_whose_runs_fail_pauses(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule = await mine.create()
    for number in range(MAX_FAILURES):
        await let_pass(db, schedule, seconds=90 - number)
        await look(db)
        async with db.driver() as driver:
            await driver.execute("UPDATE runs SET status = 'error' WHERE status = 'queued'")
    assert (await mine.read(schedule))["status"] == "active"
    await let_pass(db, schedule, seconds=1)
    await look(db)
    now = await mine.read(schedule)
    assert (now["status"], now["reason"]) == ("paused", "runs_failed")
    assert len(await mine.questions()) == MAX_FAILURES


async def test_another_agent_leaves_the_other_options(server: InProcessServer, db: Database) -> None:
    mine = await owner(server, db)
    schedule = await mine.create(options={"model": "demo", "instructions": "Be brief.", "maxOutputTokens": 70})
    path = f"/{schedule['id']}"

    async def options() -> dict[str, Any]:
        async with db.driver() as driver:
            stored = await driver.fetchval(
                "SELECT options::text FROM schedules WHERE id = $1", uuid.UUID(schedule["id"])
            )
        return dict(json.loads(stored))

    before = await options()
    changed = (await mine.ask("PATCH", path, json={"agent": "researcher"})).raise_for_status().json()
    assert (changed["agent"], changed["model"]) == ("researcher", "demo")
    after = await options()
    assert {name: after[name] for name in before} == before
    assert after["agentVersion"] is not None
    removed = (await mine.ask("PATCH", path, json={"agent": None})).raise_for_status().json()
    assert "agent" not in removed
    assert await options() == before
    for body, path_of_error in (
        ({"agent": "auto"}, "agent"), ({"agent": "nobody"}, "agent"), ({"agent": "researcher", "options": {}}, "agent"),
    ):  # fmt: skip
        refused = await mine.ask("PATCH", path, json=body)
        assert_problem(refused, 400, "invalid_input")
        assert refused.json()["errors"][0]["path"] == path_of_error
    async with db.driver() as driver:
        set_model = """UPDATE schedules SET options = options || '{"model": "demo:gone"}' WHERE id = $1"""
        await driver.execute(set_model, uuid.UUID(schedule["id"]))
    mended = (await mine.ask("PATCH", path, json={"agent": "researcher"})).raise_for_status().json()
    assert "model" not in mended
    assert (await options())["instructions"] == "Be brief."


async def test_rights_and_models_are_checked_when_it_fires(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine, other = await owner(server, db), await owner(server, db)
    thread_id = uuid.UUID(mine.thread.id)
    assert_problem(await other.ask("POST", json=HOURLY | {"threadId": mine.thread.id}), 403, "forbidden")
    await make_member(db, thread_id, other.who.id, "editor", mine.who.caller)
    schedule = await other.create(threadId=mine.thread.id)
    member = f"/api/threads/{mine.thread.id}/members/{other.who.id}"
    (await server.http.delete(member, headers=mine.who.headers)).raise_for_status()
    await let_pass(db, schedule, seconds=1)
    await look(db)
    now = await other.read(schedule)
    assert (now["status"], now["reason"], await mine.questions()) == ("paused", "forbidden", [])
    assert_problem(await mine.ask("GET", f"/{schedule['id']}"), 404, "not_found")
    withdrawn = await mine.create()
    async with db.driver() as driver:
        set_model = """UPDATE schedules SET options = options || '{"model": "demo:gone"}' WHERE id = $1"""
        await driver.execute(set_model, uuid.UUID(withdrawn["id"]))
    await let_pass(db, withdrawn, seconds=1)
    await look(db)
    now = await mine.read(withdrawn)
    assert (now["status"], now["reason"]) == ("paused", "invalid_input")


async def test_deleted_threads_and_accounts_end_their_schedules(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule, kept = await mine.create(), await mine.create(threadId=None)
    (await server.http.delete(f"/api/threads/{mine.thread.id}", headers=mine.who.headers)).raise_for_status()
    now = await mine.read(schedule)
    assert (now["status"], now["reason"], "nextAt" in now) == ("ended", "thread_deleted", False)
    assert_problem(await mine.ask("PATCH", f"/{schedule['id']}", json={"paused": False}), 409, "conflict")
    await let_pass(db, kept, seconds=1)
    (await server.http.delete("/api/me", headers=mine.who.headers)).raise_for_status()
    await look(db)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM schedules WHERE user_id = $1", mine.who.id) == 0
        assert await driver.fetchval("SELECT count(*) FROM runs WHERE user_id = $1", mine.who.id) == 0


async def test_a_plan_is_started_at_its_time(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    new = {"title": "Trip", "steps": [{"id": "a", "title": "Pack"}]}
    made = await server.http.post(f"/api/threads/{mine.thread.id}/plans", json=new, headers=mine.who.headers)
    plan_id = made.raise_for_status().json()["id"]
    wrong = {"planId": plan_id, "cron": "0 * * * *"}
    assert_problem(await mine.ask("POST", json=wrong), 400, "invalid_input")
    schedule = await mine.ask("POST", json={"planId": plan_id, "at": "2020-01-01T00:00:00Z"})
    assert schedule.status_code == 201, schedule.text
    await look(db)
    now = await mine.read(schedule.json())
    assert (now["status"], now["reason"], now["lastThreadId"]) == ("ended", "done", mine.thread.id)
    plan = await server.http.get(f"/api/plans/{plan_id}", headers=mine.who.headers)
    assert plan.json()["status"] == "running"


async def test_a_schedule_is_listed_changed_previewed_and_fired_now(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    first, second = await mine.create(), await mine.create(name="Second")
    page = (await mine.ask("GET", params={"limit": 1})).json()
    assert [one["id"] for one in page["items"]] == [second["id"]]
    page = (await mine.ask("GET", params={"limit": 1, "cursor": page["nextCursor"]})).json()
    assert ([one["id"] for one in page["items"]], "nextCursor" in page) == ([first["id"]], False)
    elsewhere = await mine.create(threadId=None, options={"model": "demo"})
    assert (elsewhere["model"], "agent" in elsewhere, "model" in first) == ("demo", False, False)
    ours = (await mine.ask("GET", params={"threadId": mine.thread.id})).json()["items"]
    assert [one["id"] for one in ours] == [second["id"], first["id"]]
    assert_problem(await mine.ask("GET", params={"threadId": "here"}), 400, "invalid_input")
    changes = {"cron": "30 7 * * *", "timeZone": "Asia/Kathmandu", "text": "Namaste", "name": None, "missed": "skip"}
    changed = (await mine.ask("PATCH", f"/{second['id']}", json=changes)).json()
    assert (changed["text"], "name" in changed, changed["nextAt"][11:16]) == ("Namaste", False, "01:45")
    at = (await mine.ask("PATCH", f"/{second['id']}", json={"at": "2033-01-01T00:00:00+01:00"})).json()
    assert ("cron" in at, at["nextAt"]) == (False, "2032-12-31T23:00:00Z")
    query = {"cron": "0 2 * * *", "timeZone": "Europe/Berlin", "count": 3}
    times = (await mine.ask("GET", "/preview", params=query)).raise_for_status().json()["times"]
    assert len(times) == 3
    body = {"messageId": str(uuid.uuid4())}
    fired = [await mine.ask("POST", f"/{first['id']}/run", json=body) for _ in range(2)]
    assert {one.status_code for one in fired} == {202}
    assert fired[0].json() == fired[1].json()
    assert [one["id"] for one in await mine.questions()] == [body["messageId"]]
    assert (await mine.read(first))["nextAt"] == first["nextAt"]
    for wrong in (
        {"text": "x"}, {"text": "x", "cron": "* * *"}, {"cron": "0 * * * *"}, {"text": "x", "cron": "99 * * * *"},
        {"text": "x", "cron": "0 * * * *", "timeZone": "Mars"}, {"text": "x", "at": "2033-01-01T00:00:00"},
        {"text": "x", "at": "2099-01-01T00:00:00Z"}, {"text": "x", "cron": "0 * * * *", "options": {"agent": "auto"}},
        {"text": "x", "cron": "0 * * * *", "endsAt": "2020-01-01T00:00:00Z"}, {"text": "a\0", "cron": "0 * * * *"},
    ):  # fmt: skip
        assert_problem(await mine.ask("POST", json=wrong), 400, "invalid_input")


async def test_an_account_has_a_limited_number_of_schedules(server: InProcessServer, db: Database) -> None:
    mine = await owner(server, db)
    schedule_id = str(uuid.uuid4())
    schedule = await mine.create(id=schedule_id)
    async with db.driver() as driver:
        copy = """
            INSERT INTO schedules (id, user_id, message, timing, status, occurrence_at, due_at)
            SELECT gen_random_uuid(), user_id, message, timing, status, occurrence_at, due_at
            FROM schedules, generate_series(1, 99) WHERE id = $1
        """
        await driver.execute(copy, uuid.UUID(schedule_id))
    assert_problem(await mine.ask("POST", json=HOURLY), 409, "conflict")
    again = await mine.ask("POST", json=HOURLY | {"threadId": mine.thread.id, "id": schedule_id})
    assert (again.status_code, again.json()) == (200, schedule), "a repetition is none"
    other = await owner(server, db)
    taken = await other.ask("POST", json=HOURLY | {"threadId": other.thread.id, "id": schedule_id})
    assert_problem(taken, 409, "conflict")


async def test_ten_thousand_idle_schedules_cost_one_probe_of_an_index_a_look(
    server: InProcessServer, db: Database
) -> None:
    await end_all(db)
    mine = await owner(server, db)
    await mine.create()
    async with db.driver() as driver:
        fill = """
            INSERT INTO schedules (id, user_id, message, timing, status, occurrence_at, due_at)
            SELECT gen_random_uuid(), user_id, message, timing, status, due_at + number * interval '1 minute',
                   due_at + number * interval '1 minute'
            FROM schedules, generate_series(1, 10000) AS number
        """
        await driver.execute(fill)
        await driver.execute("ANALYZE schedules")
        for query, arguments in (
            (schedule_claims.SECONDS_UNTIL_DUE, ()),
            (schedule_claims.CLAIM, (20, 30.0)),
        ):
            [row] = await driver.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *arguments)
            plan = row["QUERY PLAN"]
            assert "schedules_due_idx" in plan
            assert '"Node Type": "Seq Scan"' not in plan
            assert _buffers(plan) <= 10
    await end_all(db)


def _buffers(plan: str) -> int:
    """The pages that the whole statement has read."""
    top = json.loads(plan)[0]["Plan"]
    return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])


async def test_a_fired_message_can_be_sent_by_the_store_again(server: InProcessServer, db: Database) -> None:
    await end_all(db)
    mine = await owner(server, db)
    schedule = await mine.create(threadId=None)
    await let_pass(db, schedule, seconds=1)
    [claimed] = await schedule_claims.claim(db, 1)
    message = uuid.uuid4()
    fired = await asyncio.gather(*(fire(db, claimed.schedule, message, SendLimits()) for _ in range(5)))
    assert len({one.run_id for one in fired}) == 1
    await end_all(db)
