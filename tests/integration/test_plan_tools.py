"""The tools with which models make, change and read plans, and the run that makes a plan from a goal."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from khala.domain import ids
from khala.domain.access import Caller, key_hash
from khala.domain.chat import ClientFunction, PlanDraft, RunOptions, StoredRunOptions
from khala.domain.errors import Forbidden, InvalidInput
from khala.domain.parts import Step, ToolCall, ToolResult
from khala.domain.plans.commands import Start
from khala.domain.plans.planner import (
    MAX_ADDED_INSTRUCTIONS_CHARACTERS,
    MAX_PLANNER_STEPS,
    PLANNER_INSTRUCTIONS,
    planner_options,
)
from khala.domain.plans.results import COMPLETE_STEP
from khala.domain.tools import ToolActor
from khala.store.plans import plan_rows, plans, run_plans
from khala.store.plans.plan_rows import StoredPlan
from khala.store.postgres.database import Database
from khala.tools.plan_tools import PlanCreate, PlanStatusReport, PlanUpdate
from tests.integration.test_context import serve
from tests.support import store
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.plans import ThreadPlan, step
from tests.support.providers import Reply
from tests.support.tool_calls import call
from tests.support.wires import UseTool

STEPS: list[dict[str, Any]] = [
    {"id": "S1", "title": "Add the table", "acceptance": ["It is typed"]},
    {"id": "S2", "title": "Add the model", "dependsOn": ["S1"]},
]
PLAN: dict[str, Any] = {"title": "Albums", "goal": "Sort photos", "steps": STEPS}
CYCLE = PLAN | {"steps": [STEPS[0] | {"dependsOn": ["S2"]}, STEPS[1]]}


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as inside:
        yield inside


@pytest.fixture
async def thread(server: InProcessServer) -> Thread:
    return await server.thread()


async def run_tool(thread: Thread, name: str, args: dict[str, Any]) -> Any:
    """Let a run call this tool; returns the outcome of the call."""
    sent = await thread.send(f"/call {name} {json.dumps(args)}", options={"autopilot": True})
    await thread.ended(sent["runId"])
    return next(part["data"] for part in await thread.parts(sent["runId"]) if part["kind"] == "tool-result")


async def actor(thread: Thread) -> ToolActor:
    """A run of this thread, as its tools see it."""
    sent = await thread.send("/words=1")
    await thread.ended(sent["runId"])
    return ToolActor(owner_id=UUID(thread.id), thread_id=UUID(thread.id), run_id=UUID(sent["runId"]))


async def read(db: Database, thread_id: str, plan_id: str) -> StoredPlan:
    async with db.driver() as driver:
        stored = await plan_rows.read(driver, UUID(thread_id), UUID(plan_id))
    assert stored is not None
    return stored


async def count(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval("SELECT count(*) FROM plans"))


async def test_a_model_makes_a_plan_that_is_idle_changes_it_and_reads_it(thread: Thread, db: Database) -> None:
    created = await run_tool(thread, "plan_create", PLAN | {"mode": "all", "config": {"parallel": 2}})
    assert created["ok"], created
    stored = await read(db, thread.id, created["output"]["planId"])
    assert (stored.plan.status, stored.plan.mode, stored.plan.config.parallel) == ("idle", "all", 2)
    assert (stored.plan.config.agents, stored.plan.goal) == (("default",), "Sort photos")
    assert stored.requester_key_id is not None
    changed = await run_tool(
        thread,
        "plan_update",
        {
            "planId": str(stored.id),
            "add": [{"id": "S3", "title": "Write it down"}],
            "change": [{"id": "S2", "priority": 4}],
            "order": ["S3"],
            "skip": ["S1"],
        },
    )
    assert changed["summary"] == "Changed the plan"
    plan = (await read(db, thread.id, created["output"]["planId"])).plan
    assert list(plan.steps) == ["S3", "S1", "S2"]
    assert (plan.steps["S2"].planned.priority, plan.steps["S2"].planned.depends_on) == (4, ("S1",))
    assert plan.steps["S1"].status == "skipped"
    status = await run_tool(thread, "plan_status", {})
    assert status["output"]["overview"].split("\n") == [
        "Albums: idle, mode all; 0 of 3 steps completed, 1 skipped",
        "Goal: Sort photos",
        "[ ] S3 Write it down",
        "[-] S1 Add the table (skipped)",
        "[ ] S2 Add the model (after S1)",
    ]
    one = await run_tool(thread, "plan_status", {"stepId": "S1"})
    assert "Acceptance:\n- It is typed" in one["output"]


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("plan_create", CYCLE, "steps[0]: These steps depend on each other: S1 → S2 → S1."),
        ("plan_create", PLAN | {"steps": [STEPS[1]]}, "steps[0]: Step 'S2' depends on 'S1', which does not exist."),
        ("plan_create", PLAN | {"steps": [STEPS[0] | {"id": "a b"}]}, "steps[0].id: The id of a step has 1 to 64"),
        ("plan_create", PLAN | {"steps": [STEPS[0] | {"depends": []}]}, "depends"),
        (
            "plan_create",
            PLAN | {"config": {"agents": ["nobody"]}},
            "config.agents[0]: There is no agent 'nobody'. There are: default, ",
        ),
        ("plan_update", {"planId": "x"}, "planId: This is not the id of a plan."),
        ("plan_update", {"planId": str(UUID(int=1)), "retry": ["a"]}, "This conversation has no such plan."),
        ("plan_update", {"planId": str(UUID(int=1)), "add": [{"id": "a", "titel": ""}]}, "add[0].titel: There is no"),
        ("plan_update", {"planId": str(UUID(int=1)), "add": [{"id": "a"}]}, "add[0]: Object missing required field"),
        ("plan_status", {"planId": str(UUID(int=1))}, "This conversation has no such plan."),
    ],
)
async def test_bad_calls_say_what_is_wrong(
    thread: Thread, db: Database, name: str, args: dict[str, Any], message: str
) -> None:
    needs_plan = name != "plan_create"
    if needs_plan:  # Without one, the tools that change and read plans are not offered.
        assert (await run_tool(thread, "plan_create", PLAN))["ok"]
    refused = await run_tool(thread, name, args)
    assert not refused["ok"]
    assert message in refused["output"]
    assert await count(db) == needs_plan


async def test_the_same_call_again_makes_one_plan_and_changes_nothing(thread: Thread, db: Database) -> None:
    caller = await actor(thread)
    first = await call(PlanCreate(db), caller, key="call 1", **PLAN)
    again = await call(PlanCreate(db), caller, key="call 1", **PLAN)
    other = await call(PlanCreate(db), caller, key="call 2", **PLAN)
    plan_id = first.json["planId"]
    assert (again.json["planId"] == plan_id, other.json["planId"] == plan_id) == (True, False)
    changes = {
        "planId": plan_id, "title": "Other", "add": [{"id": "S3", "title": "c"}], "remove": ["S2"],
        "change": [{"id": "S1", "title": "a"}], "order": ["S3"], "skip": ["S1"],
    }  # fmt: skip
    once = await call(PlanUpdate(db), caller, **changes)
    stored = await read(db, thread.id, plan_id)
    twice = await call(PlanUpdate(db), caller, **changes)
    assert (once.result.summary, twice.result.summary) == ("Changed the plan", "Nothing had to be changed")
    assert await read(db, thread.id, plan_id) == stored
    listed = (await call(PlanStatusReport(db), caller, planId=plan_id)).json["otherPlans"]
    assert [plan["planId"] for plan in listed] == [other.json["planId"]]


async def test_an_update_makes_all_changes_or_none(thread: Thread, db: Database) -> None:
    caller = await actor(thread)
    plan_id = (await call(PlanCreate(db), caller, **PLAN)).json["planId"]
    before = await read(db, thread.id, plan_id)
    refused = await call(PlanUpdate(db), caller, planId=plan_id, title="Other", skip=["S1", "missing"])
    assert (refused.ok, refused.text) == (False, "The plan has no step 'missing'. It has: 'S1', 'S2'.")
    assert await read(db, thread.id, plan_id) == before


async def test_the_run_of_a_step_reads_its_plan_and_makes_none(server: InProcessServer, db: Database) -> None:
    plan = ThreadPlan(db, await server.thread())
    completes = '/then /call complete_step {"summary": "done"}'
    calls = f"/call plan_create {json.dumps(PLAN)} /call plan_status {{}} {completes}"
    await plan.create(step("a", calls))
    await run_tool(plan.thread, "plan_create", PLAN)  # The newest plan is not the one of the step.
    await plan.command(Start())
    stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
    run_id = stored.plan.steps["a"].run_id
    assert run_id is not None
    parts = await plan.thread.parts(str(run_id))
    tools = {part["data"]["toolCallId"]: part["data"]["tool"] for part in parts if part["kind"] == "tool-call"}
    results = {tools[part["data"]["toolCallId"]]: part["data"] for part in parts if part["kind"] == "tool-result"}
    assert "available" in results["plan_create"]["output"], results
    assert results["plan_status"]["output"]["planId"] == str(plan.id)
    with pytest.raises(Forbidden, match="run of a step"):
        await run_plans.change(db, plan.id, plan.thread_id, run_id, lambda _: ())
    assert await count(db) == 2


async def test_a_run_of_a_person_without_access_makes_no_plan(thread: Thread, db: Database) -> None:
    caller = await actor(thread)
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET anon_key_hash = $2 WHERE id = $1", UUID(thread.id), key_hash("other"))
    refused = await call(PlanCreate(db), caller, **PLAN)
    assert (refused.ok, refused.result.code) == (False, "forbidden")
    assert await count(db) == 0


async def test_a_call_outside_of_a_conversation_is_refused(db: Database) -> None:
    refused = await call(PlanStatusReport(db), ToolActor(owner_id=ids.new()))
    assert (refused.ok, refused.result.code) == (False, "forbidden")


async def test_a_plan_from_a_goal_is_corrected_after_an_error_and_waits_for_a_person(
    database_url: str, db: Database
) -> None:
    replies = [
        Reply(calls=(UseTool(name="plan_create", args=args, id=f"use-{n}"),)) for n, args in enumerate((CYCLE, PLAN))
    ]
    async with serve(database_url, *replies, Reply(tokens=("Planned.",)), KHALA_CONTEXT_TOKENS="20000") as (
        server,
        model,
    ):
        thread = await server.thread()
        body = {
            "goal": "Sort my photos",
            "mode": "step",
            "maxIterations": 7,
            "config": {"parallel": 3},
            "options": {"instructions": "In English."},
        }
        draft = (await thread.post("plans/draft", body)).raise_for_status().json()
        assert "plan" not in draft
        run = await thread.ended(draft["run"]["id"])
        assert (run["status"], run["steps"]) == ("final", 2)
        first, second, _ = model.calls
        assert PLANNER_INSTRUCTIONS in json.loads(json.dumps(first.body["messages"][0]["content"]))
        offered = {tool["function"]["name"] for tool in first.body["tools"]}
        assert {"plan_create", "read_file"} <= offered
        assert not offered & {"plan_update", "write_file", "todo_add"}
        assert "S1 → S2 → S1" in second.body["messages"][-1]["content"]
        path = f"/api/threads/{thread.id}/plans/draft/{draft['planId']}"
        made = (await thread.http.get(path, headers=thread.headers)).json()
        assert (made["run"]["status"], made["plan"]["id"], len(made["plan"]["steps"])) == ("final", draft["planId"], 2)
    stored = await read(db, thread.id, draft["planId"])
    assert (stored.plan.status, list(stored.plan.steps), await count(db)) == ("idle", ["S1", "S2"], 1)
    assert (stored.plan.mode, stored.plan.max_iterations, stored.plan.config.parallel) == ("step", 7, 3)
    assert stored.plan.goal == "Sort photos", "the model may put the goal in other words"
    caller = Caller(anon_key_hash=key_hash(thread.key))
    assert (await plans.command(db, stored.id, caller, Start())).status == "running"


def test_the_options_of_a_planner_are_bounded_and_keep_what_the_person_chose() -> None:
    draft = PlanDraft(plan_id=ids.new())
    options = planner_options(RunOptions(model="openai:local", agent="researcher", max_steps=50), draft)
    assert (options.model, options.agent, options.autopilot) == ("openai:local", "researcher", True)
    assert (options.step_limit, options.draft) == (MAX_PLANNER_STEPS, draft)
    longest = planner_options(RunOptions(instructions="x" * MAX_ADDED_INSTRUCTIONS_CHARACTERS), draft)
    assert msgspec.json.decode(msgspec.json.encode(longest), type=StoredRunOptions).draft == draft
    for refused, path in (
        (RunOptions(tools=("*",)), "options.tools"),
        (RunOptions(functions=(ClientFunction(name="look"),)), "options.functions"),
        (RunOptions(instructions="x" * (MAX_ADDED_INSTRUCTIONS_CHARACTERS + 1)), "options.instructions"),
    ):
        with pytest.raises(InvalidInput) as found:
            planner_options(refused, draft)
        assert found.value.path == path


async def test_a_run_that_was_killed_after_its_step_was_complete_calls_no_model_again(
    database_url: str, db: Database
) -> None:
    thread_id = await store.new_thread(db)
    sent = await store.ask(db, thread_id, "/pace=0 /echo asked again")
    (claimed,) = await store.claim(db, lease=0.2)
    completed = ToolResult(tool_call_id="a", ok=True, summary="Completed.", duration_ms=1)
    call = ToolCall(tool_call_id="a", step=1, tool=COMPLETE_STEP, args={"summary": "done"})
    parts = (Step(step=1, max_steps=20, tool_count=1), call, completed)
    await store.write(db, store.batch(claimed.lease, 0, *parts))
    async with khala(database_url, KHALA_COOLDOWN_MS="0") as taking_over:
        thread = Thread(taking_over.http, str(thread_id), store.KEY)
        assert (await thread.ended(str(sent.run_id)))["status"] == "final"
        kinds = [part["kind"] for part in await thread.parts(str(sent.run_id))]
    assert kinds == ["step", "tool-call", "tool-result", "notice", "finish"], "without text of a model"
