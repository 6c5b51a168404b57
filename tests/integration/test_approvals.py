"""Approvals: a call that needs approval waits without occupying an executor, and gets exactly one decision."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from khala.domain.parts import ToolStatus
from khala.runs import tool_executor
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from khala.store.runs import group_commit, parts
from khala.tools.invocation import invoke
from tests.support.agents import Agent, act, call, rules
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.people import make_member
from tests.support.store import batch, claim, write

ASK = call("delete_file", path="a.txt")


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url) as inside:
        yield inside
    db = Database(database_url)
    assert [found async for found in find_differences(db, VerifyProgress())] == []
    await db.close()


async def run_until_blocked(server: InProcessServer, text: str = ASK, **options: Any) -> tuple[Agent, str]:
    """A run that waits for the approval of its last call, and the id of that call."""
    thread = await server.thread()
    await (await act(thread, call("write_file", path="a.txt", content="one"))).ended()
    agent = await act(thread, text + " /say Over.", **options)
    await agent.status("blocked")
    return agent, (await agent.cards())[-1]["toolCallId"]


async def test_a_call_that_needs_approval_waits_without_an_executor(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    (card,) = await agent.cards()
    assert (card["state"], card["args"], len(card["digest"])) == ("blocked", {"path": "a.txt"}, 64)
    found = await server.http.get(f"/api/runs/{agent.run_id}/approvals", headers=agent.thread.headers)
    (approval,) = found.json()["items"]
    assert (approval["toolCallId"], approval["state"], approval["digest"]) == (call_id, "pending", card["digest"])
    db = Database(server.database_url)
    async with db.driver() as driver:
        row = await driver.fetchrow("SELECT lease_owner, lease_expires_at FROM runs WHERE id = $1", agent.run_id)
    await db.close()
    assert tuple(row) == (None, None)


async def test_an_approved_call_runs_and_the_answer_continues(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    assert (await agent.decide(call_id, approved=True)).json()["state"] == "approved"
    run = await agent.ended()
    assert (run["status"], await agent.states()) == ("final", ["completed"])
    assert await agent.text() == "Over."
    assert await agent.parts("notice") == []
    (receipt,) = await agent.receipts("tool")
    assert receipt["data"]["approval"]["state"] == "approved"


async def test_a_denied_call_fails_and_the_model_gets_the_reason(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    await agent.decide(call_id, approved=False, reason="not that one")
    await agent.ended()
    (card,) = await agent.cards()
    assert card["state"] == "failed"
    assert card["summary"] == "Denied by a user: not that one"
    found = await act(agent.thread, call("read_file", path="a.txt") + " /say Read.")
    await found.ended()
    assert await found.states() == ["completed"]


async def test_the_models_prompt_contains_a_denial(server: InProcessServer) -> None:
    thread = await server.thread()
    agent = await act(thread, ASK)  # the demo model's answer repeats the outcomes of its tools
    await agent.status("blocked")
    await agent.decide((await agent.cards())[0]["toolCallId"], approved=False, reason="never")
    await agent.ended()
    assert "never" in await agent.text()


async def test_calls_beside_a_blocked_one_run_and_keep_their_results(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server, f"{call('todo_add', text='x')} {ASK}")
    assert await agent.states() == ["completed", "blocked"]
    await agent.decide(call_id, approved=True)
    await agent.ended()
    assert await agent.states() == ["completed", "completed"]
    assert len(await agent.parts("tool-result")) == 2


async def test_each_of_several_blocked_calls_runs_as_soon_as_it_is_approved(server: InProcessServer) -> None:
    agent, last = await run_until_blocked(server, f"{call('delete_file', path='b.txt')} {ASK}")
    await agent.decide(last, approved=True)
    await agent.until("blocked", "completed")
    await agent.status("blocked")
    await agent.decide((await agent.cards())[0]["toolCallId"], approved=False)
    assert (await agent.ended())["status"] == "final"


async def test_changed_arguments_are_checked_shown_and_used(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    wrong = await agent.decide(call_id, approved=True, editedArgs={"file": "b"})
    assert (wrong.status_code, wrong.json()["errors"][0]["path"]) == (400, "editedArgs")
    assert (await agent.decide(call_id, approved=True, editedArgs={"path": "b.txt"})).status_code == 200
    await agent.ended()
    (card,) = await agent.cards()
    assert (card["args"], card["state"]) == ({"path": "b.txt"}, "failed")
    found = await act(agent.thread, call("read_file", path="a.txt"))
    await found.ended()
    assert await found.states() == ["completed"]


async def test_edited_arguments_that_cannot_be_stored_are_refused(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    for args in ({"path": "a\0"}, {"path": "a", "\0": 1}):
        refused = await agent.decide(call_id, approved=True, editedArgs=args)
        assert (refused.status_code, refused.json()["errors"][0]["message"]) == (400, "NUL characters can't be stored.")
    large = await agent.decide(call_id, approved=True, editedArgs={"path": "p" * 256 * 1024})
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
    # A backslash escape that is text is not a NUL.
    assert (await agent.decide(call_id, approved=True, editedArgs={"path": r"\u0000"})).status_code == 200
    assert (await agent.ended())["status"] == "final"
    assert (await agent.cards())[0]["args"] == {"path": r"\u0000"}


@pytest.mark.parametrize("call_id", ["%00", "call%00", "%F0%9F%98%80"])
async def test_a_decision_with_an_invalid_call_id_is_refused(server: InProcessServer, call_id: str) -> None:
    agent, _ = await run_until_blocked(server)
    assert (await agent.decide(call_id, approved=True)).status_code == (400 if "%00" in call_id else 404)


async def test_the_first_decision_is_final(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    found = await asyncio.gather(*(agent.decide(call_id, approved=number % 2 == 0) for number in range(20)))
    codes = [result.status_code for result in found]
    assert sorted(set(codes)) == [200, 409]
    assert len({result.json()["state"] for result in found if result.status_code == 200}) == 1
    assert {result.json()["code"] for result in found if result.status_code == 409} == {"already_decided"}
    await agent.ended()
    decided = next(result.json()["state"] for result in found if result.status_code == 200)
    assert await agent.states() == ["completed" if decided == "approved" else "failed"]
    assert (await agent.decide(call_id, approved=decided == "approved")).status_code == 200
    assert (await agent.decide(call_id, approved=decided != "approved")).status_code == 409


async def test_a_decision_is_bound_to_the_digest_of_the_call(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    (card,) = await agent.cards()
    other = await agent.decide(call_id, approved=True, digest="0" * 64)
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert (await agent.decide(call_id, approved=True, digest=card["digest"])).status_code == 200


async def test_an_approval_without_a_decision_expires(database_url: str) -> None:
    async with khala(database_url, KHALA_APPROVAL_HOURS="0.0002") as server:
        agent, call_id = await run_until_blocked(server)
        assert (await agent.ended())["status"] == "final"
        (card,) = await agent.cards()
        assert (card["state"], card["summary"]) == ("failed", "Nobody approved this in time.")
        assert (await agent.decide(call_id, approved=True)).status_code == 409


async def test_a_blocked_run_can_be_canceled(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    await agent.cancel()
    run = await agent.ended(within=2)
    assert (run["status"], await agent.states()) == ("canceled", ["cancelled"])
    late = await agent.decide(call_id, approved=True)
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert run["finish"]["usage"]["inputTokens"] > 0


async def test_a_call_with_invalid_arguments_fails_without_an_approval(server: InProcessServer) -> None:
    agent = await act(await server.thread(), call("delete_file", file="a.txt"))
    await agent.ended()
    assert await agent.states() == ["failed"]


async def test_rules_allow_ask_and_deny(server: InProcessServer) -> None:
    thread = await server.thread()
    await rules(thread, delete_file="allow", todo_add="ask", todo_list="deny")
    agent = await act(thread, f"{call('delete_file', path='x')} {call('todo_add', text='x')} {call('todo_list')}")
    await agent.until("failed", "blocked", "failed")
    assert "todo_list" in (await agent.cards())[2]["summary"]
    await agent.cancel()


async def test_unknown_calls_are_not_found_and_viewers_may_not_decide(server: InProcessServer) -> None:
    db = Database(server.database_url)
    owner, viewer, editor = [await person(db, name) for name in ("Owner", "Viewer", "Editor")]
    thread_id = await owned_thread(db, owner)
    thread = Thread(server.http, str(thread_id), "")
    thread.headers = owner.headers
    await make_member(db, thread_id, viewer.id, "viewer", owner.caller)
    await make_member(db, thread_id, editor.id, "editor", owner.caller)
    agent = await act(thread, ASK)
    await agent.status("blocked")
    call_id = (await agent.cards())[0]["toolCallId"]

    async def decide(headers: dict[str, str], **decision: Any) -> httpx.Response:
        return await server.http.post(f"/api/runs/{agent.run_id}/approvals/{call_id}", json=decision, headers=headers)

    assert (await agent.decide("call_none", approved=True)).status_code == 404
    assert (await decide(viewer.headers, approved=True)).status_code == 403
    assert (await decide({}, approved=True)).status_code == 403
    assert (await decide(editor.headers, approved=True, editedArgs={"path": "b"})).status_code == 403
    assert (await decide(editor.headers, approved=True)).json()["decidedName"] == "Editor"
    await agent.ended()
    await db.close()


HARMLESS = call("write_file", path="b.txt", content="two")


@pytest.mark.parametrize(("text", "card_state", "outcome"), [(ASK, "failed", "unknown"), (HARMLESS, "completed", "ok")])
async def test_an_approved_call_whose_executor_is_lost_is_repeated_only_if_it_is_idempotent(
    database_url: str, text: str, card_state: str, outcome: str
) -> None:
    db = Database(database_url)
    async with khala(database_url) as server:
        thread = await server.thread()
        await (await act(thread, call("write_file", path="a.txt", content="one"))).ended()
        await rules(thread, write_file="ask", delete_file="ask")
        first = await act(thread, text + " /say Over.")
        await first.status("blocked")
        call_id = (await first.cards())[-1]["toolCallId"]
    async with khala(database_url, with_executor=False) as server:
        thread = Thread(server.http, first.thread.id, first.thread.key)
        agent = Agent(thread, {"runId": first.run_id, "assistantMessageId": first.answer})
        assert (await agent.decide(call_id, approved=True)).status_code == 200
        (dead,) = await claim(db, lease=0.05)
        assert dead.next_seq
        began = ToolStatus(tool_call_id=call_id, state="running", reason="Approved.")
        await write(db, batch(dead.lease, dead.next_seq, began))
        async with khala(database_url):
            run = await agent.ended()
            (card,) = await agent.cards()
            read = await act(thread, call("read_file", path="a.txt"))
            await read.ended()
            assert await read.states() == ["completed"], "the file was not deleted"
        outcomes = [receipt["data"]["outcome"] for receipt in await agent.receipts("tool")]
        approvals = [part["state"] for part in await agent.parts("tool-status")].count("blocked")
    await db.close()
    assert (run["status"], run["attempt"]) == ("final", 3)
    assert (card["state"], outcomes, approvals) == (card_state, [outcome], 1)
    assert ("unknown" in card["summary"]) == (outcome == "unknown")


async def test_changed_arguments_that_are_too_long_for_a_part_are_used_all_the_same(server: InProcessServer) -> None:
    thread = await server.thread()
    await rules(thread, write_file="ask")
    agent = await act(thread, HARMLESS + " /say Over.")
    (card,) = await agent.until("blocked")
    changed = {"path": "c.txt", "content": "z" * 5000}
    assert (await agent.decide(card["toolCallId"], approved=True, editedArgs=changed)).status_code == 200
    await agent.ended()
    assert await agent.states() == ["completed"]
    found = await act(thread, f"{call('read_file', path='c.txt')} {call('read_file', path='b.txt')}")
    await found.ended()
    assert await found.states() == ["completed", "failed"]


async def test_the_start_of_a_call_is_stored_before_the_call_starts(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(database_url)
    found: list[list[str]] = []
    query = (
        "SELECT data->>'state' FROM message_parts WHERE kind = 'tool-status' AND data->>'toolCallId' = $1 ORDER BY seq"
    )

    async def invoked(tool: Any, args: Any, context: Any) -> Any:
        async with db.driver() as driver:
            found.append([row[0] for row in await driver.fetch(query, context.id)])
        return await invoke(tool, args, context)

    async def slowly(*given: Any, **how: Any) -> Any:
        await asyncio.sleep(0.3)
        return await parts.append(*given, **how)

    monkeypatch.setattr(tool_executor, "invoke", invoked)
    monkeypatch.setattr(group_commit, "append", slowly)
    async with khala(database_url) as server:
        agent = await act(await server.thread(), f"{call('todo_add', text='x')} {call('todo_list')}")
        assert (await agent.ended())["status"] == "final"
    await db.close()
    assert found == [["running"], ["running"]]


async def thread_rules(thread: Thread) -> list[dict[str, str]]:
    found = await thread.http.get(f"/api/threads/{thread.id}/tool-rules", headers=thread.headers)
    items: list[dict[str, str]] = found.raise_for_status().json()["items"]
    return items


async def test_an_approval_for_the_run_also_approves_its_other_calls_of_the_tool_and_no_others(
    server: InProcessServer,
) -> None:
    twice = f"{call('delete_file', path='b.txt')} {ASK} /then {call('delete_file', path='c.txt')}"
    agent, call_id = await run_until_blocked(server, twice)
    assert (await agent.decide(call_id, approved=False, allow="run")).status_code == 400
    decided = await agent.decide(call_id, approved=True, allow="run")
    assert decided.json()["allow"] == "run"
    assert (await agent.decide(call_id, approved=True, allow="run")).status_code == 200
    assert (await agent.decide(call_id, approved=True)).status_code == 409
    assert (await agent.ended())["status"] == "final"
    cards = await agent.cards()
    assert len(cards) == 3
    assert "blocked" not in {card["state"] for card in cards}
    assert await thread_rules(agent.thread) == []
    again = await act(agent.thread, ASK)
    await again.status("blocked")


async def test_an_approval_for_the_thread_is_a_rule_that_its_owner_sees_and_revokes(server: InProcessServer) -> None:
    agent, call_id = await run_until_blocked(server)
    (await agent.decide(call_id, approved=True, allow="thread")).raise_for_status()
    await agent.ended()
    assert await thread_rules(agent.thread) == [{"pattern": "delete_file", "action": "allow"}]
    free = await act(agent.thread, ASK)
    assert (await free.ended())["status"] == "final"
    await rules(agent.thread)
    asked = await act(agent.thread, ASK)
    await asked.status("blocked")


async def test_only_an_owner_allows_a_tool_in_the_thread_and_only_the_requester_in_the_run(
    server: InProcessServer,
) -> None:
    db = Database(server.database_url)
    owner, editor = await person(db), await person(db)
    thread = Thread(server.http, str(await owned_thread(db, owner)), "")
    thread.headers = owner.headers
    await make_member(db, UUID(thread.id), editor.id, "editor", owner.caller)
    agent = await act(thread, ASK)
    await agent.status("blocked")
    call_id = (await agent.cards())[-1]["toolCallId"]
    thread.headers = editor.headers
    for reach in ("thread", "run"):
        assert (await agent.decide(call_id, approved=True, allow=reach)).status_code == 403
    await db.close()
