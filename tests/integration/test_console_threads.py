"""The console's threads: metadata, grants, every past state as observers saw it, and forks."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.fold import fold
from khala.domain.parts import Part
from khala.store.postgres import rows
from khala.store.runs import packed_parts
from khala.store.runs.packed_parts import PackCandidate
from tests.support.agents import act, call
from tests.support.callers import owned_thread, person
from tests.support.client import Thread
from tests.support.console import MARKER, ConsoleScene, console_scene

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(postgres_url: str, template: str) -> AsyncIterator[ConsoleScene]:
    async with console_scene(postgres_url, template, with_executor=True) as made:
        yield made


async def opened(scene: ConsoleScene, thread_id: str | UUID) -> str:
    """A grant for the thread."""
    grant: str = (await scene.post(f"/threads/{thread_id}/open"))["grant"]
    return grant


async def say(thread: Thread, text: str) -> dict[str, Any]:
    """Send a message, and wait until it is answered."""
    sent = await thread.send(text)
    await thread.ended(sent["runId"])
    return sent


async def test_threads_are_listed_without_titles_and_found_by_ids(scene: ConsoleScene) -> None:
    owner = await person(scene.db, "Selendis")
    made = [await owned_thread(scene.db, owner) for _ in range(5)]
    path = f"/api/threads/{made[0]}"
    await scene.server.http.patch(path, json={"title": MARKER}, headers=owner.headers)
    newest = [str(thread_id) for thread_id in reversed(made)]
    assert [each["id"] for each in await scene.all_pages("/threads", account=str(owner.id), limit=2)] == newest
    assert [each["id"] for each in await scene.all_pages("/threads", limit=3)][:5] == newest
    assert MARKER not in (await scene.get("/threads")).text
    thread = await scene.server.thread()
    sent = await say(thread, "/echo Hello")
    for q in (thread.id, sent["runId"], sent["userMessageId"]):
        (found,) = await scene.all_pages("/threads", q=q)
        assert (found["id"], found["owner"], found["activeRuns"]) == (thread.id, None, 0)
    for q in ("%", MARKER, str(ids.new())):
        assert await scene.all_pages("/threads", q=q) == []
    assert (await scene.read(f"/threads/{made[0]}"))["owner"]["name"] == "Selendis"
    assert (await scene.get(f"/threads/{ids.new()}")).json()["code"] == "thread_not_found"


async def test_a_thread_is_read_only_with_a_grant_of_ones_own_which_is_audited(scene: ConsoleScene) -> None:
    thread, other = await scene.server.thread(), await scene.server.thread()
    assert (await scene.get(f"/threads/{thread.id}/at")).status_code == 400
    granted = await scene.post(f"/threads/{thread.id}/open", {"reason": "Ticket 7"})
    assert granted["expiresAt"]
    assert (await scene.get(f"/threads/{thread.id}/at", grant=granted["grant"])).status_code == 200
    wrong = [str(ids.new()), await opened(scene, other.id)]
    async with scene.db.driver() as driver:
        moved = await opened(scene, thread.id)
        await driver.execute("UPDATE audit SET user_id = $1 WHERE id = $2", scene.user.id, UUID(moved))
        old = await opened(scene, thread.id)
        await driver.execute("UPDATE audit SET created_at = now() - interval '61 min' WHERE id = $1", UUID(old))
    for grant in (*wrong, moved, old):
        assert (await scene.get(f"/threads/{thread.id}/at", grant=grant)).status_code == 403
        fork = await scene.send("POST", f"/threads/{thread.id}/fork", {"revision": 1, "grant": grant})
        assert fork.status_code == 403
    entries = [each for each in await scene.audited("console_thread_opened") if each["thread"] == UUID(thread.id)]
    assert {"thread": UUID(thread.id), "reason": "Ticket 7"} in entries
    assert (await scene.send("POST", f"/threads/{ids.new()}/open")).status_code == 404


async def test_every_past_state_is_the_one_that_observers_saw(scene: ConsoleScene) -> None:
    """At each revision, the console shows the text that a client had that followed the thread until then."""
    thread = await scene.server.thread()
    observer = scene.server.observer(thread)
    seen: dict[int, dict[str, str]] = {}
    async with observer.following():
        await observer.until(lambda view: view.revision is not None)
        sent = await thread.send("/words=60 /pace=30")

        def look(view: Any) -> bool:
            seen[view.revision] = {key: view.text(key) for key in view.messages}
            return sent["assistantMessageId"] in view.finished

        await observer.until(look)
    assert len(seen) > 3
    grant = await opened(scene, thread.id)
    for revision, texts in seen.items():
        shown = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=revision)
        assert (shown["revision"], shown["gaps"]) == (revision, [])
        assert {each["id"]: text_of(each) for each in shown["messages"]} == texts, revision
    before = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=sent["revision"] - 1)
    assert sent["userMessageId"] not in [each["id"] for each in before["messages"]]
    whole = (await scene.read(f"/threads/{thread.id}/at", grant=grant))["messages"]
    assert whole[-1]["status"] == "final"
    assert whole[-1]["finish"]["reason"] == "stop"


def text_of(message: dict[str, Any]) -> str:
    return "".join(block.get("text", "") for block in message["content"] or [] if block["type"] == "text")


async def test_scrub_positions_lead_to_each_change_of_a_run_with_tools(scene: ConsoleScene) -> None:
    thread = await scene.server.thread()
    await say(thread, "/echo First")
    agent = await act(thread, call("write_file", path="a.txt", content=MARKER))
    await agent.ended()
    listing = await scene.get(f"/threads/{thread.id}/revisions")
    assert MARKER not in listing.text
    entries = await scene.all_pages(f"/threads/{thread.id}/revisions", limit=2)
    assert entries == listing.json()["items"]
    answer = entries[0]
    assert (answer["role"], answer["state"], answer["packed"]) == ("assistant", "final", False)
    assert {"tool-call", "tool-result", "finish"} <= {kind for each in answer["changes"] for kind in each["kinds"]}
    assert entries[1]["createdRevision"] == answer["createdRevision"] < answer["revision"]
    grant = await opened(scene, thread.id)
    async with scene.db.driver() as driver:
        query = "SELECT * FROM message_parts WHERE run_id = $1 ORDER BY seq"
        stored = await driver.fetch(query, UUID(answer["runId"]))
    for change in answer["changes"]:
        shown = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=change["revision"])
        parts: list[Part] = [rows.part(row) for row in stored if row["revision"] <= change["revision"]]
        last = shown["messages"][-1]
        assert (last["id"], last["seq"]) == (answer["messageId"], len(parts))
        states = [block.state for block in fold((), (part.read() for part in parts)) if hasattr(block, "state")]
        assert [block["state"] for block in last["content"] if block["type"] == "tool"] == states
    page = await scene.read(f"/threads/{thread.id}/at", grant=grant, limit=2)
    assert page["hasMore"] is True
    older = await scene.read(f"/threads/{thread.id}/at", grant=grant, before=page["messages"][0]["id"])
    assert older["hasMore"] is False
    assert len(older["messages"]) + 2 == len(entries)


async def test_lost_states_are_named_and_not_invented(scene: ConsoleScene) -> None:
    thread = await scene.server.thread()
    sent = await say(thread, "/words=30 /pace=60")
    grant = await opened(scene, thread.id)
    run_id = UUID(sent["runId"])
    async with scene.db.driver() as driver, driver.transaction():
        await packed_parts.pack_runs(driver, [PackCandidate(run_id, UUID(thread.id), None, True)])
    between = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=sent["revision"])
    assert [each["kind"] for each in between["gaps"]] == ["packed"]
    assert between["gaps"][0]["runId"] == sent["runId"]
    last = between["messages"][-1]
    assert (last["content"], last["status"], last["finish"]) == (None, "streaming", None)
    now = await scene.read(f"/threads/{thread.id}/at", grant=grant)
    assert (now["gaps"], now["messages"][-1]["status"]) == ([], "final")
    assert (await scene.read(f"/runs/{run_id}"))["packed"] is True
    assert (await scene.read(f"/threads/{thread.id}/revisions"))["items"][0]["packed"] is True
    async with scene.db.driver() as driver:
        await driver.execute(
            "UPDATE messages SET revision = (SELECT revision + 1 FROM threads WHERE id = $2) WHERE id = $1",
            *(UUID(sent["userMessageId"]), UUID(thread.id)),
        )
        await driver.execute("UPDATE threads SET revision = revision + 1 WHERE id = $1", UUID(thread.id))
    changed = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=now["revision"])
    assert [each["kind"] for each in changed["gaps"]] == ["changed"]
    (await thread.post("reset")).raise_for_status()
    reset = await scene.read(f"/threads/{thread.id}/at", grant=grant, revision=now["revision"])
    assert ([each["kind"] for each in reset["gaps"]], reset["messages"]) == (["reset"], [])
    assert reset["oldestRevision"] > now["revision"]
    future = await scene.get(f"/threads/{thread.id}/at", grant=grant, revision=str(10**6))
    assert (future.status_code, future.json()["code"]) == (400, "invalid_input")


async def test_a_fork_has_the_branch_of_its_revision_and_is_the_administrators(scene: ConsoleScene) -> None:
    thread = await scene.server.thread()
    first = await say(thread, "/echo One")
    kept = (await thread.snapshot())["revision"]
    await say(thread, "/echo Two")
    grant = await opened(scene, thread.id)
    made = await scene.post(f"/threads/{thread.id}/fork", {"revision": kept, "grant": grant, "reason": "Bug"})
    copied = (await scene.server.http.get(f"/api/threads/{made['threadId']}", headers=scene.admin.headers)).json()
    texts = [text_of(message) for message in copied["messages"]]
    assert texts[-2:] == ["/echo One", "One"]
    assert made["messages"] == len(texts)
    assert {message["id"] for message in copied["messages"]}.isdisjoint(first.values())
    assert all("runId" not in message for message in copied["messages"])
    others = await scene.server.http.get(f"/api/threads/{made['threadId']}", headers=scene.user.headers)
    assert others.status_code == 403
    (entry,) = await scene.audited("console_thread_forked")
    assert (entry["fork"], entry["revision"], entry["reason"]) == (made["threadId"], kept, "Bug")
    mine = (await scene.server.http.get("/api/threads", headers=scene.admin.headers)).json()["items"]
    assert made["threadId"] in [each["id"] for each in mine]
    bodies = ({"revision": 10**6, "grant": grant}, {"revision": -1, "grant": grant}, {"grant": grant}, {"revision": 1})
    for body in bodies:
        assert (await scene.send("POST", f"/threads/{thread.id}/fork", body)).status_code == 400, body


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/threads", {"cursor": "x"}), ("/threads", {"q": "\0"}), ("/threads", {"limit": "0"}),
        ("/threads", {"account": "%"}), ("/threads/{0}/revisions", {"cursor": "AAAA"}),
        ("/threads/{0}/at", {"grant": "x"}), ("/threads/{0}/at", {"grant": str(UUID(int=1)), "revision": "-1"}),
        ("/threads/{0}/at", {"grant": str(UUID(int=1)), "limit": "201"}),
    ],
)  # fmt: skip
async def test_bad_parameters_of_threads_are_refused(scene: ConsoleScene, path: str, params: dict[str, str]) -> None:
    thread_id = await owned_thread(scene.db, scene.user)
    response = await scene.get(path.format(thread_id), **params)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_input")
