"""Plans over REST: people create, watch and command them, also while their steps run."""

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETES = '/call complete_step {"summary": "done"}'
HANGS = "/hang=1"
FAST = {"stepDelayMs": 0, "retryBaseMs": 1}
SECONDS = 20

server = server_fixture(KHALA_COOLDOWN_MS="0")


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


def step(step_id: str, instructions: str = COMPLETES, **fields: Any) -> dict[str, Any]:
    return {"id": step_id, "title": step_id.title(), "instructions": instructions, **fields}


def refusal(response: httpx.Response) -> tuple[int, str, list[str]]:
    problem = response.json()
    return response.status_code, problem["code"], [error["path"] for error in problem.get("errors", ())]


class PlanClient:
    """One plan of a thread over REST."""

    def __init__(self, thread: Thread, plan: dict[str, Any]) -> None:
        self.http = thread.http
        self.headers = thread.headers
        self.id = plan["id"]
        self.created = plan

    @classmethod
    async def create(cls, thread: Thread, *steps: dict[str, Any], **fields: Any) -> "PlanClient":
        config = FAST | fields.pop("config", {})
        response = await thread.post("plans", {"title": "Plan", "steps": steps, "config": config} | fields)
        assert response.status_code == 201, response.text
        return cls(thread, response.json())

    async def request(self, method: str, path: str = "", body: Any = None, **more: Any) -> httpx.Response:
        sending = {} if body is None else {"json": body}
        return await self.http.request(method, f"/api/plans/{self.id}{path}", headers=self.headers, **sending, **more)

    async def give(self, path: str, body: Any = None, method: str = "POST") -> dict[str, Any]:
        return dict((await self.request(method, path, body)).raise_for_status().json())

    async def read(self) -> dict[str, Any]:
        return dict((await self.request("GET")).raise_for_status().json())

    async def steps(self) -> dict[str, dict[str, Any]]:
        found = (await self.request("GET", "/steps")).raise_for_status().json()["items"]
        return {one["id"]: one for one in found}

    async def events(self) -> list[dict[str, Any]]:
        page = (await self.request("GET", "/events", params={"limit": 500})).raise_for_status().json()
        assert not page["hasMore"]
        return list(page["items"])

    async def wait(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            while not holds(plan := await self.read()):
                await asyncio.sleep(0.02)
        return plan

    async def wait_for(self, status: str) -> dict[str, Any]:
        return await self.wait(lambda plan: plan["status"] == status)

    async def wait_for_step(self, step_id: str, status: str) -> dict[str, Any]:
        async with asyncio.timeout(SECONDS):
            while (found := (await self.steps())[step_id])["status"] != status:
                await asyncio.sleep(0.02)
        return found


async def test_a_plan_is_created_once_started_and_read_to_its_end(thread: Thread) -> None:
    body = {
        "planId": str(uuid.uuid4()),
        "title": "Trip",
        "goal": "Aiur",
        "config": FAST,
        "steps": [step("a"), step("b", dependsOn=["a"])],
    }
    first, again = await thread.post("plans", body), await thread.post("plans", body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    plan = PlanClient(thread, first.json())
    assert plan.created["status"] == "idle"
    assert [one["planned"]["title"] for one in plan.created["steps"]] == ["A", "B"]
    started = await plan.give("/start")
    assert (started["status"], started["eventSeq"]) == ("running", 2)
    assert started["revision"] > plan.created["revision"]
    ended = await plan.wait_for("stopped")
    assert (ended["reason"], ended["counts"]["completed"]) == ("completed", 2)
    assert {one["summary"] for one in (await plan.steps()).values()} == {"done"}
    events = await plan.events()
    assert [event["seq"] for event in events] == list(range(1, ended["eventSeq"] + 1))
    assert events[-1]["type"] == "stopped"
    assert "steps" not in events[0]["data"]


async def test_plans_and_events_are_paged(thread: Thread) -> None:
    plans = [await PlanClient.create(thread, step("a")) for _ in range(3)]
    path = f"/api/threads/{thread.id}/plans"
    first = (await thread.http.get(path, params={"limit": 2}, headers=thread.headers)).json()
    rest = (
        await thread.http.get(path, params={"limit": 2, "cursor": first["nextCursor"]}, headers=thread.headers)
    ).json()
    assert [one["id"] for one in first["items"] + rest["items"]] == [plan.id for plan in reversed(plans)]
    assert "nextCursor" not in rest
    await plans[0].give("", {"mode": "all"}, "PATCH")
    page = (await plans[0].request("GET", "/events", params={"limit": 1})).json()
    assert (len(page["items"]), page["nextAfter"], page["hasMore"]) == (1, 1, True)
    page = (await plans[0].request("GET", "/events", params={"after": 1})).json()
    assert ([one["type"] for one in page["items"]], page["hasMore"]) == (["mode_changed"], False)


async def test_a_plan_pauses_and_resumes_and_repeated_commands_change_nothing(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a", HANGS), step("b"))
    await plan.give("/start")
    again = await plan.give("/start")
    assert again["status"] == "running"
    await plan.wait_for_step("a", "running")
    pausing = await plan.give("/pause")
    assert pausing["status"] == "pausing"
    assert (await plan.give("/pause"))["eventSeq"] == pausing["eventSeq"]
    forced = await plan.give("/pause", {"force": True})
    assert forced["counts"]["running"] == 0
    paused = await plan.wait_for("paused")
    assert paused["reason"] == "requested"
    assert (await plan.give("/pause", {"force": True}))["eventSeq"] == paused["eventSeq"]
    refused = await plan.request("POST", "/start")
    assert (refusal(refused)[:2], refused.json()["detail"][-10:]) == ((409, "conflict"), "Resume it.")
    await plan.give("/edit", {"change": [step("a")]})
    resumed = await plan.give("/resume")
    assert resumed["status"] == "running"
    assert (await plan.give("/resume"))["status"] == "running"
    assert (await plan.wait_for("stopped"))["reason"] == "completed"
    assert refusal(await plan.request("POST", "/resume"))[:2] == (409, "conflict")


async def test_a_stop_cancels_the_steps_under_way_and_can_be_repeated(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a", HANGS))
    await plan.give("/start")
    await plan.wait_for_step("a", "running")
    assert refusal(await plan.request("DELETE"))[:2] == (409, "conflict")
    await plan.give("/stop")
    ended = await plan.wait_for("stopped")
    assert ended["reason"] == "interrupted"
    assert (await plan.give("/stop"))["eventSeq"] == ended["eventSeq"]
    assert (await plan.request("DELETE")).status_code == 204
    assert refusal(await plan.request("GET"))[:2] == (404, "not_found")


async def test_steps_are_retried_skipped_and_cancelled_while_the_plan_runs(thread: Thread) -> None:
    steps = step("hangs", HANGS), step("skipped"), step("cancelled"), step("last", dependsOn=["skipped"])
    plan = await PlanClient.create(thread, *steps)
    await plan.give("/start")
    await plan.wait_for_step("hangs", "running")
    skipped = await plan.give("/steps/skipped/skip")
    assert (await plan.give("/steps/skipped/skip"))["eventSeq"] == skipped["eventSeq"]
    cancelled = await plan.give("/steps/cancelled/cancel")
    assert (await plan.give("/steps/cancelled/cancel"))["eventSeq"] == cancelled["eventSeq"]
    assert cancelled["counts"]["skipped"] == cancelled["counts"]["cancelled"] == 1
    assert refusal(await plan.request("POST", "/steps/cancelled/skip"))[:2] == (409, "conflict")
    assert refusal(await plan.request("POST", "/steps/nothing/retry"))[:2] == (404, "not_found")
    reopened = await plan.give("/steps/cancelled/retry")
    assert (await plan.give("/steps/cancelled/retry"))["eventSeq"] == reopened["eventSeq"]
    await plan.give("/steps/hangs/skip")
    ended = await plan.wait_for("stopped")
    states = [one["status"] for one in (await plan.steps()).values()]
    assert states == ["skipped", "skipped", "completed", "completed"]
    assert ended["reason"] == "completed"


async def test_a_failed_step_is_mended_and_retried_and_each_result_is_approved(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a", "/words=1"), step("b"), mode="step")
    await plan.give("/start")
    failed = await plan.wait_for("paused")
    assert (failed["reason"], failed["counts"]["failed"]) == ("step_failed", 1)
    assert (await plan.steps())["a"]["error"]
    page = (await plan.request("GET", "/events", params={"stepId": "a"})).json()
    assert [one["type"] for one in page["items"]] == ["step_started", "step_failed"]
    assert (await plan.request("GET", "/events", params={"stepId": "b", "limit": 1})).json()["items"] == []
    assert refusal(await plan.request("GET", "/events", params={"stepId": "\0"}))[:2] == (400, "invalid_input")
    await plan.give("/edit", {"change": [step("a")]})
    assert (await plan.give("/steps/a/retry"))["counts"]["open"] == 2
    for completed in (1, 2):
        await plan.give("/resume")
        paused = await plan.wait_for("paused")
        assert (paused["reason"], paused["counts"]["completed"]) == ("review", completed)
    await plan.give("/resume")
    assert (await plan.wait_for("stopped"))["reason"] == "completed"


async def test_steps_are_edited_while_the_plan_runs_and_a_lost_update_is_refused(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a", HANGS), step("b"), step("c"))
    await plan.give("/start")
    seen = await plan.wait(lambda now: now["counts"]["running"] == 1)
    edit = {
        "add": [step("d", dependsOn=["c"])],
        "remove": ["b"],
        "change": [step("c", title="Changed")],
        "order": ["a", "d", "c"],
        "ifEventSeq": seen["eventSeq"],
    }
    edited = await plan.give("/edit", edit)
    steps = await plan.steps()
    assert list(steps) == ["a", "d", "c"]
    assert steps["c"]["planned"]["title"] == "Changed"
    lost = await plan.request("POST", "/edit", {"remove": ["d"], "ifEventSeq": seen["eventSeq"]})
    assert refusal(lost)[:2] == (409, "conflict")
    assert str(edited["eventSeq"]) in lost.json()["detail"]
    assert refusal(await plan.request("POST", "/edit", {"change": [step("a")]}))[:2] == (409, "conflict")
    assert refusal(await plan.request("POST", "/edit", {"remove": ["d", "d"]})) == (400, "invalid_input", ["change"])
    assert refusal(await plan.request("POST", "/edit", {"remove": ["c"]})) == (400, "invalid_input", ["remove[0]"])
    cycle = {"change": [step("c", dependsOn=["d"])], "ifEventSeq": edited["eventSeq"]}
    assert refusal(await plan.request("POST", "/edit", cycle)) == (400, "invalid_input", ["change[0]"])
    await plan.give("/steps/a/skip")
    assert (await plan.wait_for("stopped"))["reason"] == "completed"


async def test_mode_budget_rules_and_texts_are_changed_while_the_plan_runs_all_or_none(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a", HANGS), step("b"))
    await plan.give("/start")
    await plan.wait_for_step("a", "running")
    changes = {
        "title": "New",
        "goal": "Newer",
        "mode": "step",
        "budget": {"tokens": 5_000_000},
        "config": {"maxRetries": 7},
    }
    changed = await plan.give("", changes, "PATCH")
    assert (changed["title"], changed["goal"], changed["mode"]) == ("New", "Newer", "step")
    assert changed["budget"] == {"tokens": 5_000_000}
    assert changed["config"]["maxRetries"] == 7
    assert changed["config"]["stepDelayMs"] == 0, "rules that are absent stay"
    assert (await plan.give("", changes, "PATCH"))["eventSeq"] == changed["eventSeq"]
    refused = await plan.request("PATCH", "", {"title": "Lost", "agent": "coder"})
    assert refusal(refused) == (400, "invalid_input", ["agent"])
    assert (await plan.read())["title"] == "New"
    assert refusal(await plan.request("PATCH", "", {})) == (400, "invalid_input", ["title"])
    await plan.give("/steps/a/skip")
    paused = await plan.wait_for("paused")
    assert (paused["reason"], (await plan.steps())["b"]["status"]) == ("review", "completed")
    await plan.give("/resume")
    assert (await plan.wait_for("stopped"))["reason"] == "completed"


async def test_another_agent_executes_the_next_steps(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    thread_id = str(await owned_thread(store, owner, welcome="Hello."))
    for name in ("first", "second"):
        agent = {"name": name, "title": name}
        (await server.http.post("/api/agents", json=agent, headers=owner.headers)).raise_for_status()
    thread = Thread(server.http, thread_id, "")
    thread.headers = owner.headers
    plan = await PlanClient.create(thread, step("a", HANGS), step("b"), config={"agents": ["first"]})
    await plan.give("/start")
    assert (await plan.wait_for_step("a", "running"))["agent"] == "first"
    switched = await plan.give("", {"agent": "second", "config": {"agents": ["first", "second"]}}, "PATCH")
    assert (switched["agent"], switched["agentReason"]) == ("second", "requested")
    assert (await plan.give("", {"agent": "second"}, "PATCH"))["eventSeq"] == switched["eventSeq"]
    await plan.give("/steps/a/skip")
    await plan.wait_for("stopped")
    assert (await plan.steps())["b"]["agent"] == "second"


async def test_iterations_are_added_once_also_if_the_request_is_repeated(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a"), maxIterations=1)
    assert (await plan.give("/iterations", {"by": 2}))["maxIterations"] == 3
    for _ in range(2):
        assert (await plan.give("/iterations", {"by": 4, "ifMaxIterations": 3}))["maxIterations"] == 7
    stale = await plan.request("POST", "/iterations", {"by": 1, "ifMaxIterations": 3})
    assert refusal(stale)[:2] == (409, "conflict")
    assert refusal(await plan.request("POST", "/iterations", {"by": -7})) == (400, "invalid_input", ["by"])
    assert (await plan.give("/iterations", {"by": -6}))["maxIterations"] == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"steps": []}, "steps"),
        ({"steps": [step("a b")]}, "steps[0].id"),
        ({"steps": [step("a"), step("a")]}, "steps[1]"),
        ({"steps": [step("a", dependsOn=["b"])]}, "steps[0]"),
        ({"steps": [step("a", dependsOn=["b"]), step("b", dependsOn=["a"])]}, "steps[0]"),
        ({"steps": [step("a", agent="nobody")]}, "steps[0].agent"),
        ({"steps": [step("a", priority="high")]}, "steps[0].priority"),
        ({"steps": [step("a") | {"title": " "}]}, "steps[0].title"),
        ({"title": " "}, "title"),
        ({"goal": "\0"}, "goal"),
        ({"config": {"agents": ["default", "nobody"]}}, "config.agents[1]"),
        ({"config": {"agents": ["default", "default"]}}, "config.agents[1]"),
        ({"config": {"parallel": 9}}, "config.parallel"),
        ({"mode": "fast"}, "mode"),
        ({"maxIterations": 0}, "maxIterations"),
    ],
)
async def test_a_plan_that_cannot_be_executed_is_refused_with_the_path(
    thread: Thread, fields: dict[str, Any], path: str
) -> None:
    response = await thread.post("plans", {"title": "Plan", "steps": [step("a")]} | fields)
    assert refusal(response) == (400, "invalid_input", [path])


async def test_a_body_over_the_limit_of_plans_is_refused_with_that_limit(thread: Thread) -> None:
    steps = [step(f"s{number}", "x" * 19_000) for number in range(220)]
    created = await thread.post("plans", {"title": "Plan", "steps": steps})
    assert created.status_code == 201, "4.18 MB are less than 4 MiB"
    refused = await thread.post("plans", {"title": "Plan", "steps": [*steps, step("last", "x" * 19_000)]})
    assert refusal(refused) == (413, "payload_too_large", [])
    assert refused.json()["detail"] == "A request has at most 4,194,304 bytes."


async def test_documents_become_plans_and_plans_documents(thread: Thread) -> None:
    text = "# Trip\n\nTo Aiur.\n\n- [x] Pack\n- [ ] Leave\n"
    response = await thread.post("plans/import", {"format": "markdown", "document": text})
    assert response.status_code == 201, response.text
    plan = PlanClient(thread, response.json())
    assert (plan.created["title"], plan.created["counts"]["completed"]) == ("Trip", 1)
    written = await plan.request("GET", "/export")
    assert written.headers["content-type"].startswith("text/markdown")
    assert "- [x]" in written.text
    assert "Leave" in written.text
    prd = (await plan.request("GET", "/export", params={"format": "prd"})).text
    assert [story["passes"] for story in json.loads(prd)["userStories"]] == [True, False]
    body = {"format": "prd", "document": prd, "title": "Again", "planId": str(uuid.uuid4()), "mode": "step"}
    answers = [await thread.post("plans/import", body) for _ in range(2)]
    assert [one.status_code for one in answers] == [201, 200]
    assert (answers[0].json()["title"], answers[0].json()["mode"]) == ("Again", "step")
    broken = await thread.post("plans/import", {"format": "prd", "document": '{"userStories": [{"id": "a"}]}'})
    assert refusal(broken) == (400, "invalid_input", ["document.userStories[0]"])


async def test_a_long_plan_has_iterations_for_all_of_its_steps(thread: Thread) -> None:
    long = await PlanClient.create(thread, *(step(f"s{number}") for number in range(60)))
    short = await PlanClient.create(thread, step("a"))
    assert [(await plan.read())["maxIterations"] for plan in (long, short)] == [180, 100]
