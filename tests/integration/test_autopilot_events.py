"""The event stream of an autopilot run: steps as task groups, then text, then the end."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.api.threads import feed_reader
from khala.store.operations import retention
from khala.store.postgres.database import Database
from khala.store.runs import detail_tokens
from khala.store.threads import thread_feed
from tests.support import everything, postgres
from tests.support.agents import call, connected, peculiar
from tests.support.client import text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.openai_api import WEATHER, Requester
from tests.support.server import ROOT
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOP = '/pace=0 /call todo_add {"text": "Number {round}"} /loop'
THREE = (
    '/text First. /call todo_add {"text": "Warp in"} /call todo_list {} /then /call todo_list {} /then '
    "/text Third. /call list_directory {} /say All done."
)


def write_config(folder: Path, port: int) -> str:
    """A file with three MCP servers: `peculiar` over HTTP, `another` as a program, and the reference server."""
    node, *args = everything.command("stdio")
    program = ["-m", "tests.support.mcp_server", "stdio", str(folder / "journal of another")]
    servers = {
        "peculiar": {"url": f"http://127.0.0.1:{port}/mcp", "anonymous": True, "timeout": 30},
        "another": {"command": sys.executable, "args": program, "cwd": str(ROOT), "timeout": 2},
        "everything": {"command": node, "args": args},
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessServer]:
    folder = tmp_path_factory.mktemp("mcp")
    async with peculiar(folder) as (served, _):
        env: dict[str, Any] = {"KHALA_MCP_CONFIG": write_config(folder, served.port), "KHALA_COOLDOWN_MS": "0"}
        async with shared(postgres_url, template, **env) as inside:
            await connected(inside)
            yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def requester(server: InProcessServer, store: Database) -> Requester:
    requester = await Requester.new(server, store)
    await requester.allow(peculiar__all="allow", another__all="allow", everything__all="allow")
    return requester


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The types of these events in order, without immediate repetitions."""
    found: list[str] = []
    for event in events:
        if not found or found[-1] != event["type"]:
            found.append(event["type"])
    return found


def of_type(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def text_of_events(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in of_type(events, "autopilot_text"))


def final_states(events: list[dict[str, Any]]) -> list[str]:
    """The final states of the tasks, in the order in which they ended."""
    return [event["state"] for event in of_type(events, "task_update") if event["state"] not in ("running", "blocked")]


async def test_r1_a_run_streams_start_group_updates_group_end_text_end_and_done(requester: Requester) -> None:
    events = await requester.events("/call todo_list {} /say Nothing to do.")
    assert kinds(events) == [
        "autopilot_start", "task_group_start", "task_update", "task_group_end", "autopilot_text", "autopilot_end",
    ]  # fmt: skip
    start, end = events[0], events[-1]
    assert (start["maxSteps"], start["model"]) == (20, "khala")
    run = await requester.get(f"/api/runs/{start['runId']}")
    assert (run["threadId"], run["status"]) == (start["threadId"], "final")
    assert (end["reason"], end["steps"], end["finish"]) == ("stop", 1, run["finish"])
    assert (end["usage"], end["costUsd"]) == (run["finish"]["usage"], "0")


async def test_r2_several_steps_and_then_the_answer_come_in_one_request(requester: Requester) -> None:
    events = await requester.events(THREE)
    assert [event["step"] for event in of_type(events, "task_group_start")] == [1, 2, 3]
    assert [event["groupId"] for event in of_type(events, "task_group_end")] == [
        event["groupId"] for event in of_type(events, "task_group_start")
    ]
    assert text_of_events(events) == "First.Third.All done."
    assert events[-1]["steps"] == 3


async def test_r3_the_tools_of_a_step_run_concurrently_and_updates_come_as_they_end(requester: Requester) -> None:
    wish = " ".join([call("peculiar__slow"), *[call("peculiar__echo", text=f"{n}") for n in range(3)], "/say Over."])
    events = await requester.events(wish)
    (start,) = of_type(events, "task_group_start")
    slow, *quick = [task["taskId"] for task in start["tasks"]]
    order = [event["taskId"] for event in of_type(events, "task_update") if event["state"] == "completed"]
    assert (order[-1], set(order[:-1])) == (slow, set(quick))
    many = await requester.events("/times=12 " + call("peculiar__slow") + " /say Over.")
    took = sum(event.get("durationMs", 0) for event in of_type(many, "task_update"))
    assert of_type(many, "task_group_end")[0]["durationMs"] < took / 2


async def test_r4_all_tasks_are_listed_before_any_update_and_the_end_has_the_duration(requester: Requester) -> None:
    wish = "/times=100 " + call("peculiar__echo", text="{i}") + " " + call("peculiar__fail") + " /say Over."
    events = await requester.events(wish)
    group = events.index(of_type(events, "task_group_start")[0])
    assert group < events.index(of_type(events, "task_update")[0])
    tasks = events[group]["tasks"]
    assert [task["tool"] for task in tasks] == ["peculiar__echo"] * 100 + ["peculiar__fail"]
    assert {task["state"] for task in tasks} == {"queued"}
    assert len({task["detailToken"] for task in tasks}) == 101
    (end,) = of_type(events, "task_group_end")
    assert (end["completed"], end["failed"]) == (100, 1)
    assert end["durationMs"] > 0
    assert len(final_states(events)) == 101
    assert {event["taskId"] for event in of_type(events, "task_update")} == {task["taskId"] for task in tasks}


async def test_r5_summaries_are_one_short_line_and_the_full_result_is_in_the_detail(requester: Requester) -> None:
    text = "A line\nand another, " * 30
    events = await requester.events(f"{call('peculiar__echo', text=text)} {call('peculiar__big', n=50_000)} /say Over.")
    for event in of_type(events, "task_update"):
        summary = event.get("summary", "")
        assert len(summary) <= 120
        assert "\n" not in summary
    (start,) = of_type(events, "task_group_start")
    for task in start["tasks"]:
        assert len(task["args"]) <= 60
        assert "\n" not in task["args"]
    echo, big = [await requester.get(f"/autopilot/detail/{task['detailToken']}") for task in start["tasks"]]
    assert (echo["taskId"], echo["tool"], echo["state"]) == (start["tasks"][0]["taskId"], "peculiar__echo", "completed")
    assert (echo["args"], echo["output"], echo["blob"]) == ({"text": text}, text, None)
    assert big["blob"]["size"] == 50_000
    whole = await requester.inside.http.get(big["blob"]["url"], headers=requester.person.headers)
    assert whole.text == "x" * 50_000


async def first_detail(requester: Requester, wish: str = "/call todo_list {} /say Over.") -> tuple[str, dict[str, Any]]:
    """The detail token of the run's first task, and the run's start event."""
    events = await requester.events(wish)
    return of_type(events, "task_group_start")[0]["tasks"][0]["detailToken"], events[0]


async def test_r6_a_detail_token_is_unguessable_and_works_only_for_readers_of_the_thread(
    requester: Requester, server: InProcessServer, store: Database
) -> None:
    token, start = await first_detail(requester)
    assert len(token) >= 43, "256 bits"
    other = await Requester.new(server, store)
    path = f"/autopilot/detail/{token}"
    for headers, status in ((requester.person.headers, 200), (other.person.headers, 403), ({}, 403)):
        assert (await server.http.get(path, headers=headers)).status_code == status
    link = {"role": "viewer"}
    made = await server.http.post(
        f"/api/threads/{start['threadId']}/links", json=link, headers=requester.person.headers
    )
    shared_key = {"X-Share-Key": made.raise_for_status().json()["shareKey"]}
    assert (await server.http.get(path, headers=shared_key)).status_code == 200
    unknown = await server.http.get(f"/autopilot/detail/{token[:-1]}_", headers=requester.person.headers)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    async with store.driver() as driver:
        stored = await driver.fetch("SELECT * FROM detail_tokens")
    assert token not in str([dict(row) for row in stored])


async def test_r6_an_empty_result_is_a_result(requester: Requester) -> None:
    token, _ = await first_detail(requester, call("peculiar__echo", text="") + " /say Over.")
    found = await requester.get(f"/autopilot/detail/{token}")
    assert (found["state"], found["output"], found["blob"]) == ("completed", "", None)


async def test_r7_each_detail_token_has_its_own_expiry_and_expired_ones_are_purged(
    requester: Requester, store: Database
) -> None:
    token, start = await first_detail(requester)
    async with store.driver() as driver:
        run_id = await driver.fetchval("SELECT id FROM runs WHERE id = $1", start["runId"])
        thread_id = await driver.fetchval("SELECT thread_id FROM runs WHERE id = $1", run_id)
        made = [
            await detail_tokens.create(driver, thread_id=thread_id, run_id=run_id, calls=["call"], lifetime=lasts)
            for lasts in (timedelta(seconds=-1), timedelta(hours=1))
        ]
    gone = await requester.inside.http.get(f"/autopilot/detail/{made[0]['call']}", headers=requester.person.headers)
    assert gone.status_code == 404
    swept = await retention.purge(store, retention.RetentionPolicy(idle=timedelta()))
    assert swept["detail_tokens"] == 1
    assert (await requester.get(f"/autopilot/detail/{token}"))["state"] == "completed"


async def test_r8_a_tool_that_returns_an_error_is_a_failed_task(requester: Requester) -> None:
    events = await requester.events(call("peculiar__fail") + " /say Over.")
    update = of_type(events, "task_update")[-1]
    assert (update["state"], update["summary"]) == ("failed", "it went wrong")
    assert of_type(events, "task_group_end")[0]["failed"] == 1


async def test_the_detail_of_a_task_can_be_read_while_it_runs(requester: Requester) -> None:
    async with requester.stream(call("peculiar__hang") + " /say Over.") as stream:
        start = await stream.until("autopilot_start")
        (task,) = (await stream.until("task_group_start"))["tasks"]
        await stream.until("task_update")
        found = await requester.get(f"/autopilot/detail/{task['detailToken']}")
        assert (found["state"], found["output"], found["durationMs"]) == ("running", None, None)
        await requester.inside.http.post(f"/api/runs/{start['runId']}/cancel", headers=requester.person.headers)
        events = await stream.all()
    assert final_states(events) == ["cancelled"]
    assert (events[-1]["type"], events[-1]["reason"], stream.done) == ("autopilot_end", "canceled", True)


DELETE = '/call delete_file {"path": "a.txt"}'


async def decide(requester: Requester, paused: dict[str, Any], *, approved: bool, place: int = 0) -> None:
    approval = paused["approvals"][place]
    path = f"/api/runs/{paused['runId']}/approvals/{approval['toolCallId']}"
    decision = {"approved": approved, "digest": approval["digest"]}
    (await requester.inside.http.post(path, json=decision, headers=requester.person.headers)).raise_for_status()


@pytest.mark.parametrize(("approved", "state"), [(True, "completed"), (False, "failed")])
async def test_r10_a_blocked_tool_pauses_the_run_until_a_decision(
    requester: Requester, *, approved: bool, state: str
) -> None:
    wish = f'/call write_file {{"path": "a.txt", "content": "one"}} /then {DELETE} /call todo_list {{}}'
    async with requester.stream(wish) as stream:
        paused = await stream.until("autopilot_paused")
        (approval,) = paused["approvals"]
        assert (approval["tool"], approval["args"], len(approval["digest"])) == ("delete_file", {"path": "a.txt"}, 64)
        assert approval["expiresAt"]
        assert (await requester.get(f"/api/runs/{paused['runId']}"))["status"] in ("running", "blocked")
        await decide(requester, paused, approved=approved)
        events = await stream.all()
    assert stream.done
    updates = of_type(events, "task_update")
    assert {update["taskId"] for update in updates} == {approval["toolCallId"]}, (
        "only the blocked call has updates; its sibling keeps its result"
    )
    assert updates[-1]["state"] == state
    end = of_type(events, "task_group_end")[0]
    assert (end["completed"], end["failed"]) == ((2, 0) if approved else (1, 1))
    assert ("Denied by" in text_of_events(events)) is not approved, "the model is told"
    assert events[-1]["reason"] == "stop"


async def test_r10_the_stream_names_the_calls_that_wait_for_approval(requester: Requester) -> None:
    wish = f'{DELETE} /call delete_file {{"path": "b.txt"}} /say Over.'
    async with requester.stream(wish) as stream:
        first = await stream.until("autopilot_paused")
        assert len(first["approvals"]) == 2
        await decide(requester, first, approved=False, place=1)
        second = await stream.until("autopilot_paused")
        assert second["approvals"] == first["approvals"][:1]
        await decide(requester, second, approved=False)
        events = await stream.all()
    assert of_type(events, "autopilot_paused") == []
    assert events[-1]["reason"] == "stop"


async def test_a_waiting_stream_sends_keep_alives(requester: Requester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_reader, "KEEP_ALIVE_INTERVAL_SECONDS", 0.05)
    async with requester.stream(f"{DELETE} /say Over.") as stream:
        paused = await stream.until("autopilot_paused")
        async with asyncio.timeout(10):
            while (await requester.get(f"/api/runs/{paused['runId']}"))["status"] != "blocked":
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        await decide(requester, paused, approved=False)
        await stream.all()
    assert stream.comments > 1
    assert stream.done


@pytest.mark.parametrize(
    ("requested", "most"), [(None, 20), ("3", 3), ("99", 50), ("0", 20), ("many", 20), ("-1", 20), ("1.5", 20)]
)
async def test_r12_max_steps_is_20_by_default_at_most_50_and_20_for_invalid_values(
    requester: Requester, requested: str | None, most: int
) -> None:
    headers = {} if requested is None else {"x_max_steps": requested}
    assert (await requester.events("/echo Hello", **headers))[0]["maxSteps"] == most
    body: dict[str, Any] = (
        {} if requested is None else {"max_steps": int(requested) if requested.isdigit() else requested}
    )
    body |= {"model": "khala", "stream": True, "messages": [{"role": "user", "content": "/echo Hello"}]}
    first = (await requester.post(body, x_autopilot="true")).text.splitlines()[0]
    assert json.loads(first.removeprefix("data: "))["maxSteps"] == most


async def test_r12_at_the_limit_a_summary_says_so(requester: Requester) -> None:
    events = await requester.events(LOOP, x_max_steps="4")
    assert len(of_type(events, "task_group_end")) == 4
    assert (events[-1]["reason"], events[-1]["steps"]) == ("max_steps", 4)
    assert "Stopped after 4 rounds" in text_of_events(events)


async def test_r13_a_budget_ends_the_run_with_the_reason(requester: Requester) -> None:
    events = await requester.events(LOOP, x_budget_tokens="900")
    assert events[-1]["reason"] == "budget"
    assert events[-1]["message"] == "This answer has reached its budget."
    assert events[-1]["message"] not in text_of_events(events), "the message is not repeated in the text"


async def test_r14_a_client_that_disconnects_cancels_run_and_tools_if_it_asked_for_that(requester: Requester) -> None:
    async with requester.stream(call("peculiar__hang"), x_cancel_on_disconnect="true") as stream:
        start = await stream.until("autopilot_start")
        await stream.until("task_update")
    assert (await requester.ended(start["runId"]))["status"] == "canceled"
    (card,) = [block for block in (await requester.thread(start["threadId"]))[-1]["content"] if block["type"] == "tool"]
    assert card["state"] == "cancelled"


async def test_a_run_continues_when_its_client_disconnects(requester: Requester) -> None:
    async with requester.stream("/wait=0.2 " + THREE) as stream:
        start = await stream.until("autopilot_start")
    run = await requester.ended(start["runId"])
    assert (run["status"], run["steps"]) == ("final", 3)


async def test_r15_a_broken_stream_has_no_end_event(requester: Requester) -> None:
    async with requester.stream(call("peculiar__hang")) as stream:
        start = await stream.until("autopilot_start")
        await stream.until("task_update")
        gone = await requester.inside.http.delete(f"/api/threads/{start['threadId']}", headers=requester.person.headers)
        gone.raise_for_status()
        events = await stream.all()
    assert (of_type(events, "autopilot_end"), stream.done) == ([], False)


async def test_r15_a_stopping_server_closes_its_streams_and_the_run_continues_elsewhere(
    postgres_url: str, template: str
) -> None:
    async with contextlib.AsyncExitStack() as after:
        url = await after.enter_async_context(postgres.database(postgres_url, template))
        db = Database(url)
        after.push_async_callback(db.close)
        async with contextlib.AsyncExitStack() as stack:
            inside = await stack.enter_async_context(khala(url))
            requester = await Requester.new(inside, db)
            stream = await stack.enter_async_context(
                requester.stream("/call todo_list {} /say /words=400 /pace=50", x_cancel_on_disconnect="true")
            )
            start = await stream.until("autopilot_start")
            await stream.until("task_group_end")
            stopping = asyncio.create_task(stack.pop_all().aclose())
            with contextlib.suppress(httpx.HTTPError):
                events = await stream.all()
                assert of_type(events, "autopilot_end") == []
            assert not stream.done
            with contextlib.suppress(httpx.HTTPError, RuntimeError):
                await stopping
        async with khala(url) as inside:
            requester = Requester(inside, requester.person)
            run = await requester.ended(start["runId"])
        assert run["status"] == "final"


async def test_r16_each_piece_of_text_is_sent_once(requester: Requester) -> None:
    events = await requester.events(THREE.replace("/say All done.", "/words=300 /pace=500"))
    assert len(of_type(events, "autopilot_text")) > 2
    message = (await requester.thread(events[0]["threadId"]))[-1]
    assert text_of_events(events) == text_of(message)
    assert text_of_events(events) == "First.Third." + " ".join(f"word{number}" for number in range(1, 301))


async def test_a_failure_is_reported_once_at_the_end(requester: Requester) -> None:
    events = await requester.events("/call todo_list {} /failround=1")
    end = events[-1]
    assert (end["type"], end["reason"]) == ("autopilot_end", "error")
    assert end["message"] == "The demo model was told to lose the connection."
    assert text_of_events(events) == ""


async def test_three_steps_with_two_mcp_servers_in_one_request(requester: Requester) -> None:
    first, second = "peculiar__echo", "everything__echo"
    wish = (
        f'/call {first} {{"text": "one"}} /call {second} {{"message": "two"}} /then '
        f'/call {second} {{"message": "three"}} /then /call {first} {{"text": "four"}} /call another__json {{}}'
    )
    events = await requester.events(wish)
    groups = of_type(events, "task_group_start")
    assert [[task["tool"] for task in group["tasks"]] for group in groups] == [
        [first, second], [second], [first, "another__json"],
    ]  # fmt: skip
    assert final_states(events) == ["completed"] * 5
    assert "four" in text_of_events(events)
    details_ = [
        await requester.get(f"/autopilot/detail/{task['detailToken']}") for group in groups for task in group["tasks"]
    ]
    assert [str(detail["output"]) for detail in details_][:4] == ["one", "Echo: two", "Echo: three", "four"]


async def test_a_call_of_the_callers_function_is_a_task_whose_detail_has_the_arguments(requester: Requester) -> None:
    city = "Aiur " * 30
    messages = [{"role": "user", "content": "/call todo_list {} " + call("weather", city=city)}]
    body = {"model": "khala", "stream": True, "messages": messages, "tools": [WEATHER]}
    lines = [line for line in (await requester.post(body, x_autopilot="true")).text.splitlines() if line]
    assert lines.pop() == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    (group,) = of_type(events, "task_group_start")
    found = await requester.get(f"/autopilot/detail/{group['tasks'][1]['detailToken']}")
    assert (found["tool"], found["state"], found["args"]) == ("weather", "completed", {"city": city})
    assert (final_states(events), events[-1]["reason"]) == (["completed"] * 2, "tool_calls")


async def test_without_streaming_the_response_is_one_completion(requester: Requester) -> None:
    completion = await requester.ask(THREE, headers={"x-autopilot": "true"})
    assert completion.choices[0].message.content == "All done."
    assert (completion.khala["steps"], completion.khala["reason"]) == (3, "stop")


async def test_parts_that_the_feed_skips_are_read_from_the_tables(
    requester: Requester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_feed, "MAX_DELTA_PARTS", 3)  # more parts become a snapshot, which has none
    events = await requester.events("/pace=0 /times=200 " + call("todo_list") + " /then /call todo_list {} /words=300")
    assert final_states(events) == ["completed"] * 201
    assert text_of_events(events) == " ".join(f"word{number}" for number in range(1, 301))
