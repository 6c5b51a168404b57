"""Drafts of plans over REST: a model makes a plan from a goal, in a run of the thread."""

import json
import uuid
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.test_plans_api import PlanClient, refusal, step
from tests.support.client import Thread
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(KHALA_COOLDOWN_MS="0")


@pytest_asyncio.fixture(loop_scope="module")
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def test_a_goal_becomes_a_plan_once_and_a_draft_that_makes_none_says_so(thread: Thread) -> None:
    made = {"title": "Made by a model", "goal": "Fly", "steps": [step("a")]}
    other = made | {"steps": [step("b")]}
    body = {
        "planId": str(uuid.uuid4()),
        "goal": f"/call plan_create {json.dumps(made)} /then /call plan_create {json.dumps(other)}",
        "title": "Trip",
        "config": {"maxRetries": 40, "budget": {"usd": 1}},
    }
    path = f"/api/threads/{thread.id}/plans/draft/{body['planId']}"
    assert refusal(await thread.http.get(path, headers=thread.headers))[:2] == (404, "not_found")
    first = await thread.post("plans/draft", body)
    assert first.status_code == 202, first.text
    run = await thread.ended(first.json()["run"]["id"])
    again = await thread.post("plans/draft", body)
    assert (again.status_code, again.json()["run"]) == (200, run)
    plan = again.json()["plan"]
    assert (plan["id"], plan["status"], plan["title"], plan["goal"]) == (body["planId"], "idle", "Trip", "Fly")
    assert [one["id"] for one in plan["steps"]] == ["a"], "a draft makes one plan"
    assert (plan["config"]["maxRetries"], plan["config"]["agents"], plan["budget"]) == (40, ["default"], {"usd": "1"})
    assert (await thread.http.get(path, headers=thread.headers)).json() == again.json()
    failed = [part["data"] for part in await thread.parts(run["id"]) if part["kind"] == "tool-result"]
    assert [one["ok"] for one in failed] == [True, False]
    assert "made already" in failed[1]["output"]
    taken = await thread.post("plans/draft", body | {"goal": "Other"})
    assert refusal(taken)[:2] == (409, "conflict")
    assert "planId" in taken.json()["detail"]
    none = (await thread.post("plans/draft", {"goal": "/words=3"})).json()
    assert (await thread.ended(none["run"]["id"]))["status"] == "final"
    path = f"/api/threads/{thread.id}/plans/draft/{none['planId']}"
    assert "plan" not in (await thread.http.get(path, headers=thread.headers)).json()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"goal": " "}, "goal"),
        ({"goal": "x" * 20_001}, "goal"),
        ({"title": " "}, "title"),
        ({"config": {"agents": ["nobody"]}}, "config.agents[0]"),
        ({"options": {"agent": "nobody"}}, "options.agent"),
        ({"options": {"tools": ["*"]}}, "options.tools"),
        ({"options": {"model": "openai:none"}}, "options.model"),
    ],
)
async def test_a_draft_that_cannot_be_made_is_refused_with_the_path(
    thread: Thread, fields: dict[str, Any], path: str
) -> None:
    assert refusal(await thread.post("plans/draft", {"goal": "Fly"} | fields)) == (400, "invalid_input", [path])


async def test_a_draft_takes_no_id_of_another_plan(thread: Thread) -> None:
    plan = await PlanClient.create(thread, step("a"))
    assert refusal(await thread.post("plans/draft", {"goal": "Fly", "planId": plan.id}))[:2] == (409, "conflict")


async def test_a_plan_takes_no_id_of_a_draft_that_is_being_written(thread: Thread) -> None:
    draft = (await thread.post("plans/draft", {"goal": "/words=5 /hang=1"})).json()
    plan = {"planId": draft["planId"], "title": "Trip", "steps": [step("a")]}
    assert refusal(await thread.post("plans", plan))[:2] == (409, "conflict")
    await thread.http.post(f"/api/runs/{draft['run']['id']}/cancel", headers=thread.headers)
    await thread.ended(draft["run"]["id"])
    assert (await thread.post("plans", plan)).status_code == 201
