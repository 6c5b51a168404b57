"""Acting with another user's rights: a person's action in a thread never exceeds that person's rights.

The table of the same name in `docs/security.md` says for each case what decides.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import httpx
import openai
import pytest

from khala.domain.access import Caller, key_hash
from khala.domain.errors import Conflict, Forbidden
from khala.store.accounts import accounts, api_tokens
from khala.store.postgres.database import Database
from khala.store.sharing import sharing
from khala.store.threads import threads
from khala.store.tools import approvals, workspace_files
from khala.store.tools.approvals import ApprovalDecision
from tests.support.agents import Agent, act, call, rules
from tests.support.callers import Person, owned_thread, person
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.openai_api import Requester
from tests.support.people import make_member, sign_out, signed_in
from tests.support.store import ask

PRIVATE = "private.txt"
SECRET = b"nobody else's"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[InProcessServer]:
    async with khala(database_url) as inside:
        yield inside


def thread_as(server: InProcessServer, thread_id: UUID | str, headers: dict[str, str]) -> Thread:
    """The thread, requested with these headers."""
    thread = Thread(server.http, str(thread_id), "")
    thread.headers = headers
    return thread


async def shared_thread(server: InProcessServer, db: Database) -> tuple[Person, Person, Thread, Thread]:
    """The owner, an editor with a private file, and their thread as each requests it; every tool needs approval."""
    owner, editor = await person(db, "Mallory"), await person(db, "Victor")
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, editor.id, "editor", owner.caller)
    await workspace_files.write(db, editor.id, PRIVATE, SECRET)
    mine, theirs = (thread_as(server, thread_id, who.headers) for who in (owner, editor))
    await rules(mine, _all="ask")
    return owner, editor, mine, theirs


async def run_until_blocked(thread: Thread, text: str, **options: Any) -> tuple[Agent, str]:
    agent = await act(thread, text, **options)
    await agent.status("blocked")
    return agent, (await agent.cards())[-1]["toolCallId"]


async def decide(agent: Agent, call_id: str, headers: dict[str, str], **decision: Any) -> httpx.Response:
    path = f"/api/runs/{agent.run_id}/approvals/{call_id}"
    return await agent.thread.http.post(path, json=decision, headers=headers)


async def may_edit(agent: Agent, headers: dict[str, str]) -> bool:
    found = await agent.thread.http.get(f"/api/runs/{agent.run_id}/approvals", headers=headers)
    return bool(found.raise_for_status().json()["items"][-1].get("mayEdit"))


async def paths_of(db: Database, owner_id: UUID | str) -> list[str]:
    async with db.driver() as driver:
        return [entry.path for entry in await workspace_files.entries(driver, UUID(str(owner_id)))]


async def link_guest(server: InProcessServer, thread: Thread, role: str = "editor") -> tuple[dict[str, str], str]:
    """The headers of a guest with a new link, and the link's id."""
    made = (await thread.post("links", {"role": role})).raise_for_status().json()
    return {"X-Share-Key": made["shareKey"]}, made["id"]


async def test_an_owner_cannot_edit_a_members_call_to_reach_the_members_private_files(
    server: InProcessServer, db: Database
) -> None:
    owner, editor, _, theirs = await shared_thread(server, db)
    agent, call_id = await run_until_blocked(theirs, call("delete_file", path="harmless.txt") + " /say Over.")
    refused = await decide(agent, call_id, owner.headers, approved=True, editedArgs={"path": PRIVATE})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "Only the person who requested this run" in refused.json()["detail"]
    assert (await may_edit(agent, owner.headers), await may_edit(agent, editor.headers)) == (False, True)
    assert (await decide(agent, call_id, owner.headers, approved=True)).json()["decidedName"] == "Mallory"
    assert (await agent.ended())["status"] == "final"
    (card,) = await agent.cards()
    assert (card["args"], card["state"]) == ({"path": "harmless.txt"}, "failed")
    assert await paths_of(db, editor.id) == [PRIVATE]


async def test_the_requester_edits_the_arguments_even_in_a_thread_of_somebody_else(
    server: InProcessServer, db: Database
) -> None:
    _, editor, _, theirs = await shared_thread(server, db)
    agent, call_id = await run_until_blocked(theirs, call("delete_file", path="harmless.txt") + " /say Over.")
    decided = await decide(agent, call_id, editor.headers, approved=True, editedArgs={"path": PRIVATE})
    assert (decided.status_code, decided.json()["state"]) == (200, "approved")
    await agent.ended()
    assert await paths_of(db, editor.id) == []


async def test_a_regenerated_answer_acts_for_its_requester_and_not_for_the_author(
    server: InProcessServer, db: Database
) -> None:
    owner, editor, mine, theirs = await shared_thread(server, db)
    await rules(mine, _all="allow")
    await workspace_files.write(db, owner.id, PRIVATE, b"the owner's")
    sent = await theirs.send("/say Wait.")
    await theirs.ended(sent["runId"])
    question = await theirs.send(call("read_file", path=PRIVATE) + " /say Over.", options={"autopilot": True})
    await theirs.ended(question["runId"])
    body = {"messageId": question["userMessageId"], "options": {"autopilot": True}}
    again = Agent(mine, (await mine.post("regenerate", body)).raise_for_status().json())
    await again.ended()
    (card,) = await again.cards()
    assert "the owner's" in str(card["output"])
    assert SECRET.decode() not in str(card["output"])
    assert await paths_of(db, editor.id) == [PRIVATE]


async def test_a_guests_call_is_edited_by_the_same_key_only(server: InProcessServer, db: Database) -> None:
    keyed = await server.thread()
    await rules(keyed, _all="ask")
    guest, _ = await link_guest(server, keyed)
    other, _ = await link_guest(server, keyed)
    for requester, others in ((guest, (keyed.headers, other)), (keyed.headers, (guest, other))):
        agent, call_id = await run_until_blocked(
            thread_as(server, keyed.id, requester), call("delete_file", path="a") + " /say Over."
        )
        for headers in others:
            assert not await may_edit(agent, headers)
            refused = await decide(agent, call_id, headers, approved=True, editedArgs={"path": "b"})
            assert refused.status_code == 403
        # The holder of the key may be signed in by now; the key still proves that they are the requester.
        both = requester | (await person(db)).headers
        assert await may_edit(agent, both)
        assert (await decide(agent, call_id, both, approved=True, editedArgs={"path": "b"})).status_code == 200
        await agent.ended()


async def test_a_revoked_key_cannot_edit_a_call_with_another_credential(server: InProcessServer, db: Database) -> None:
    owner = await person(db)
    thread = thread_as(server, await owned_thread(db, owner), owner.headers)
    await rules(thread, _all="ask")
    guest, link_id = await link_guest(server, thread)
    agent, call_id = await run_until_blocked(thread_as(server, thread.id, guest), call("delete_file", path="a"))
    async with db.driver() as driver:  # as between the expiry of the link and the cancellation of its runs
        await driver.execute("UPDATE share_links SET expires_at = now() - interval '1 second' WHERE id = $1", link_id)
    both = guest | owner.headers
    assert (await decide(agent, call_id, both, approved=True, editedArgs={"path": "b"})).status_code == 403
    assert (await decide(agent, call_id, both, approved=False)).status_code == 200


async def test_an_ended_session_cannot_edit_a_call_although_a_link_still_grants_access(
    server: InProcessServer, db: Database
) -> None:
    owner, editor, mine, theirs = await shared_thread(server, db)
    agent, call_id = await run_until_blocked(theirs, call("delete_file", path="a"))
    guest, _ = await link_guest(server, mine)
    session = await signed_in(db, editor.id)
    caller = Caller(user_id=editor.id, credential=session.credential, share_key_hash=key_hash(guest["X-Share-Key"]))
    await sign_out(db, session)
    edited = ApprovalDecision(approved=True, edited_args={"path": PRIVATE})
    with pytest.raises(Forbidden, match="Only the person who requested"):
        await approvals.decide(db, UUID(agent.run_id), call_id, caller, edited)
    assert (await decide(agent, call_id, owner.headers, approved=False)).status_code == 200


async def test_an_account_that_sent_by_a_link_edits_its_own_call(server: InProcessServer, db: Database) -> None:
    _, _, mine, _ = await shared_thread(server, db)
    guest, _ = await link_guest(server, mine)
    visitor = await person(db, "Visitor")
    shown = visitor.headers | guest
    agent, call_id = await run_until_blocked(
        thread_as(server, mine.id, shown), call("delete_file", path="a") + " /say Over."
    )
    assert (await may_edit(agent, guest), await may_edit(agent, shown)) == (False, True)
    assert (await decide(agent, call_id, guest, approved=True, editedArgs={"path": "b"})).status_code == 403
    assert (await decide(agent, call_id, shown, approved=True, editedArgs={"path": "b"})).status_code == 200


async def test_a_claimed_call_is_edited_and_approved_by_the_claimer_alone(
    server: InProcessServer, db: Database
) -> None:
    keyed, claimer = await server.thread(), await person(db, "Claimer")
    await rules(keyed, _all="ask")
    guest, _ = await link_guest(server, keyed)
    await workspace_files.write(db, claimer.id, PRIVATE, SECRET)
    agent, call_id = await run_until_blocked(keyed, call("delete_file", path=PRIVATE) + " /say Over.")
    claim = {"anonKey": keyed.key}
    claimed = await server.http.post(f"/api/threads/{keyed.id}/claim", json=claim, headers=claimer.headers)
    assert claimed.status_code == 200
    agent.thread = thread_as(server, keyed.id, claimer.headers)
    refused = await decide(agent, call_id, guest, approved=True)
    assert (refused.status_code, "before the thread was claimed" in refused.json()["detail"]) == (403, True)
    assert (await decide(agent, call_id, guest, approved=True, editedArgs={"path": "b"})).status_code == 403
    assert (await may_edit(agent, guest), await may_edit(agent, claimer.headers)) == (False, True)
    given = await decide(agent, call_id, claimer.headers, approved=True, editedArgs={"path": "other.txt"})
    assert given.status_code == 200
    await agent.ended()
    assert await paths_of(db, claimer.id) == [PRIVATE]


async def test_a_claim_does_not_change_the_rights_of_runs_that_others_requested_by_a_link(
    server: InProcessServer, db: Database
) -> None:
    keyed, claimer = await server.thread(), await person(db, "Claimer")
    await rules(keyed, _all="ask")
    guest, _ = await link_guest(server, keyed)
    await workspace_files.write(db, claimer.id, PRIVATE, SECRET)
    agent, call_id = await run_until_blocked(
        thread_as(server, keyed.id, guest), call("read_file", path=PRIVATE) + " /say Over."
    )
    claim = {"anonKey": keyed.key}
    (await server.http.post(f"/api/threads/{keyed.id}/claim", json=claim, headers=claimer.headers)).raise_for_status()
    assert not await may_edit(agent, claimer.headers)
    assert (await decide(agent, call_id, guest, approved=True)).status_code == 200
    await agent.ended()
    (card,) = await agent.cards()
    assert card["state"] == "failed"
    assert SECRET.decode() not in str(await agent.message())


async def test_rules_of_another_owner_loosen_no_other_users_calls(server: InProcessServer, db: Database) -> None:
    owner, other = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, other.id, "owner", owner.caller)
    mine, theirs = (thread_as(server, thread_id, who.headers) for who in (owner, other))

    async def becomes_of_deletion(who: Thread) -> str:
        found = await server.http.get("/api/tools", params={"threadId": who.id}, headers=who.headers)
        return next(str(item["action"]) for item in found.json()["items"] if item["name"] == "delete_file")

    await rules(theirs, delete_file="allow")
    assert [await becomes_of_deletion(thread) for thread in (mine, theirs)] == ["ask", "ask"]
    await rules(mine, delete_file="allow")
    assert [await becomes_of_deletion(thread) for thread in (mine, theirs)] == ["allow", "ask"]
    async with db.driver() as driver:
        await driver.execute("UPDATE threads SET tool_rules_by = NULL WHERE id = $1", thread_id)
    assert await becomes_of_deletion(mine) == "ask", "rules without a known author loosen no calls"


async def test_a_guests_rules_apply_to_the_user_who_claims_the_thread_with_the_same_key(
    server: InProcessServer, db: Database
) -> None:
    keyed, claimer = await server.thread(), await person(db)
    await rules(keyed, delete_file="allow")
    claim = {"anonKey": keyed.key}
    (await server.http.post(f"/api/threads/{keyed.id}/claim", json=claim, headers=claimer.headers)).raise_for_status()
    await workspace_files.write(db, claimer.id, "a.txt", b"a")
    agent = await act(thread_as(server, keyed.id, claimer.headers), call("delete_file", path="a.txt"))
    await agent.ended()
    assert await agent.states() == ["completed"]


Loss = Callable[[Database, UUID, Person, Person], Awaitable[Any]]


async def removed(db: Database, thread_id: UUID, owner: Person, who: Person) -> None:
    await sharing.remove_member(db, thread_id, who.id, owner.caller)


async def left(db: Database, thread_id: UUID, owner: Person, who: Person) -> None:
    await sharing.remove_member(db, thread_id, who.id, who.caller)


async def demoted(db: Database, thread_id: UUID, owner: Person, who: Person) -> None:
    await sharing.set_role(db, thread_id, who.id, "viewer", owner.caller)


async def account_deleted(db: Database, thread_id: UUID, owner: Person, who: Person) -> None:
    await accounts.remove(db, who.caller)


@pytest.mark.parametrize("loses", [removed, left, demoted, account_deleted])
async def test_a_requesters_blocked_runs_end_when_they_lose_write_access(
    server: InProcessServer, db: Database, loses: Loss
) -> None:
    owner, editor, mine, theirs = await shared_thread(server, db)
    agent, call_id = await run_until_blocked(theirs, call("delete_file", path=PRIVATE) + " /say Over.")
    queued = await act(theirs, call("delete_file", path=PRIVATE), ifBusy="queue")
    kept = await act(mine, call("delete_file", path="own.txt"), ifBusy="queue")
    await loses(db, UUID(mine.id), owner, editor)
    for run in (agent, queued):
        run.thread = mine
        assert (await run.ended())["status"] == "canceled"
    late = await decide(agent, call_id, owner.headers, approved=True)
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    if loses is not account_deleted:
        assert await paths_of(db, editor.id) == [PRIVATE]
    # Runs of other requesters continue.
    await kept.status("blocked")
    (card,) = await kept.cards()
    assert (await decide(kept, card["toolCallId"], owner.headers, approved=False)).status_code == 200
    assert (await kept.ended())["status"] == "final"


async def test_no_call_is_approved_in_a_run_whose_requester_was_just_removed(db: Database) -> None:
    owner, editor = await person(db), await person(db)
    thread_id = await owned_thread(db, owner)
    await make_member(db, thread_id, editor.id, "editor", owner.caller)
    sent = await ask(db, thread_id, caller=editor.caller)
    async with db.driver() as driver:
        await driver.execute(
            """
            INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)
            VALUES ($1, 'call', $2, 'delete_file', '{"path": "a"}', '{}', '', now() + interval '1 hour')
            """,
            sent.run_id, thread_id,
        )  # fmt: skip
    await removed(db, thread_id, owner, editor)
    with pytest.raises(Conflict, match="is being canceled"):
        await approvals.decide(db, sent.run_id, "call", owner.caller, ApprovalDecision(approved=True))


@pytest.mark.parametrize("how", ["the link is revoked", "the thread is private"])
async def test_a_guests_blocked_runs_end_with_their_link(server: InProcessServer, db: Database, how: str) -> None:
    owner = await person(db)
    thread = thread_as(server, await owned_thread(db, owner), owner.headers)
    await rules(thread, _all="ask")
    guest, link_id = await link_guest(server, thread)
    member = await person(db)
    await make_member(db, UUID(thread.id), member.id, "editor", owner.caller)
    wish = call("delete_file", path="a") + " /say Over."
    agent, _ = await run_until_blocked(thread_as(server, thread.id, guest), wish)
    signed = await act(thread_as(server, thread.id, guest | (await person(db)).headers), wish, ifBusy="queue")
    members = await act(thread_as(server, thread.id, guest | member.headers), wish, ifBusy="queue")
    if how == "the link is revoked":
        await sharing.revoke_link(db, UUID(thread.id), UUID(link_id), owner.caller)
    else:
        await threads.update_thread(db, UUID(thread.id), owner.caller, visibility="private")
    for run in (agent, signed):
        run.thread = thread
        assert (await run.ended())["status"] == "canceled"
    # A member who came by the link has a role of their own.
    members.thread = thread
    await members.status("blocked")


async def test_a_run_outlives_the_token_that_asked_for_it_and_still_acts_for_its_user_only(
    server: InProcessServer, db: Database
) -> None:
    owner, editor, _, theirs = await shared_thread(server, db)
    agent, call_id = await run_until_blocked(theirs, call("delete_file", path=PRIVATE) + " /say Over.")
    _, another = await api_tokens.create(db, editor.caller, "another", ("read", "write"), None)
    await api_tokens.revoke(db, editor.token_id, editor.caller)
    agent.thread = thread_as(server, theirs.id, {"Authorization": f"Bearer {another}"})
    edited = {"approved": True, "editedArgs": {"path": "other.txt"}}
    assert (await decide(agent, call_id, editor.headers, **edited)).status_code == 401
    assert (await decide(agent, call_id, owner.headers, **edited)).status_code == 403
    assert (await decide(agent, call_id, agent.thread.headers, **edited)).status_code == 200
    assert (await agent.ended())["status"] == "final"
    assert await paths_of(db, editor.id) == [PRIVATE]


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


async def test_only_the_requester_reports_the_outcomes_of_their_own_tools(
    server: InProcessServer, db: Database
) -> None:
    requester, other = await Requester.new(server, db), await Requester.new(server, db)
    completion = await requester.ask('/call weather {"city": "Aiur"}', tools=[WEATHER])
    (made,) = completion.choices[0].message.tool_calls
    thread_id = completion.khala["threadId"]
    await make_member(db, UUID(thread_id), other.person.id, "editor", requester.person.caller)
    used = [{"id": made.id, "type": "function", "function": made.function.model_dump()}]
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": used},
        {"role": "tool", "tool_call_id": made.id, "content": "sunny"},
    ]
    with pytest.raises(openai.PermissionDeniedError, match="Only the requester may return"):
        await other.ask("", messages=messages, tools=[WEATHER], headers={"x-thread-id": thread_id})
    answer = await requester.ask("", messages=messages, tools=[WEATHER], headers={"x-thread-id": thread_id})
    assert answer.choices[0].finish_reason == "stop"


async def test_outcomes_that_a_requester_has_reported_are_final_also_where_the_thread_continues_from_them(
    server: InProcessServer, db: Database
) -> None:
    """The copy of an answer that has the outcomes belongs to no run, and every editor can make it the active leaf."""
    requester, other = await Requester.new(server, db), await Requester.new(server, db)
    task = '/call todo_add {"text": "Probe"} /call weather {"city": "Aiur"} /call weather {"city": "Shakuras"}'
    completion = await requester.ask(task, tools=[WEATHER], headers={"x-autopilot": "true"})
    thread_id = completion.khala["threadId"]
    await make_member(db, UUID(thread_id), other.person.id, "editor", requester.person.caller)
    cards = [block for block in (await requester.thread(thread_id))[-1]["content"] if block["type"] == "tool"]
    added, seen, unseen = (card["toolCallId"] for card in cards)

    async def report(who: Requester, call_id: str, outcome: str) -> None:
        used = [{"id": call_id, "type": "function", "function": {"name": "any", "arguments": "{}"}}]
        messages: list[Any] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": used},
            {"role": "tool", "tool_call_id": call_id, "content": outcome},
        ]
        await who.ask("", messages=messages, tools=[WEATHER], headers={"x-thread-id": thread_id})

    await report(requester, seen, "sunny")
    *_, copy, _ = await requester.thread(thread_id)
    assert "runId" not in copy
    moved = await server.http.patch(
        f"/api/threads/{thread_id}", json={"activeLeaf": copy["id"]}, headers=other.person.headers
    )
    assert moved.status_code == 200, moved.text
    for call_id in (added, seen):
        for who in (other, requester):
            with pytest.raises(openai.BadRequestError, match="no such call"):
                await report(who, call_id, "forged")
    with pytest.raises(openai.PermissionDeniedError, match="Only the requester may return"):
        await report(other, unseen, "forged")
    assert "forged" not in str(await requester.thread(thread_id))
    await report(requester, unseen, "cloudy")


async def test_no_caller_reports_the_outcomes_of_the_servers_tools(server: InProcessServer, db: Database) -> None:
    requester = await Requester.new(server, db)
    completion = await requester.ask('/call todo_add {"text": "Probe"} /say Over.', headers={"x-autopilot": "true"})
    thread_id = completion.khala["threadId"]
    (card,) = [block for block in (await requester.thread(thread_id))[-1]["content"] if block["type"] == "tool"]
    function = {"name": "todo_add", "arguments": "{}"}
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": card["toolCallId"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": card["toolCallId"], "content": "forged"},
    ]
    with pytest.raises(openai.BadRequestError, match="no such call"):
        await requester.ask("", messages=messages, headers={"x-thread-id": thread_id})
    assert "forged" not in str(await requester.thread(thread_id))
