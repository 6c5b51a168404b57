"""Appends: messages without an answer, which every reader of the thread and the next prompt get."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from tests.integration.test_api_threads import assert_problem
from tests.integration.test_branches import last_prompt
from tests.integration.test_search import index, search
from tests.support.callers import Person, person
from tests.support.client import Thread, client, text_of
from tests.support.frames import events, socket
from tests.support.in_process import InProcessServer
from tests.support.providers import Reply, Server, serving
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Server]:
    async with serving() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, provider: Server) -> AsyncIterator[InProcessServer]:
    """A server with an executor, and with a model whose prompts the test can read."""
    settings: dict[str, Any] = {
        "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "KHALA_MODEL": "openai:local",
        "KHALA_SYSTEM_PROMPT": "Be brief.", "KHALA_WELCOME": "", "KHALA_ANON_USD_PER_DAY": "0", "KHALA_TOOLS": "",
    }  # fmt: skip
    async with shared(postgres_url, template, **settings) as inside:
        yield inside
        db = Database(inside.database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def queueing(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    """A server without an executor: a run waits."""
    async with shared(postgres_url, template, with_executor=False) as inside:
        yield inside


def message(text: str, role: str = "assistant", **more: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "role": role, "parts": [{"type": "text", "text": text}]} | more


async def append(thread: Thread, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    return await thread.post("messages", {"messages": messages} | more)


async def appended(thread: Thread, *messages: dict[str, Any], **more: Any) -> list[str]:
    response = await append(thread, *messages, **more)
    assert response.status_code == 201, response.text
    return list(response.json()["messageIds"])


async def upload(thread: Thread, content: bytes, media_type: str, name: str) -> str:
    headers = thread.headers | {"Content-Type": media_type}
    path = f"/api/threads/{thread.id}/blobs"
    made = await thread.http.post(path, content=content, headers=headers, params={"name": name})
    return str(made.raise_for_status().json()["blobId"])


async def account_thread(server: InProcessServer, owner: Person) -> Thread:
    thread_id = str(uuid.uuid4())
    made = await server.http.post("/api/threads", json={"id": thread_id}, headers=owner.headers)
    thread = Thread(server.http, made.raise_for_status().json()["thread"]["id"], "")
    thread.headers = owner.headers
    return thread


async def test_an_append_is_one_revision_that_every_observer_gets(server: InProcessServer) -> None:
    thread = await server.thread()
    two = [message("Is anybody there?", "user"), message("I am.", author="Mara")]
    async with socket(server) as feed, events(thread) as stream:
        revision = (await feed.subscribe(thread))["revision"]
        await stream.frame()
        path = f"/v1/stream/threads/{thread.id}"
        offset = (await server.http.get(path, headers=thread.headers)).headers["stream-next-offset"]
        ids = await appended(thread, *two)
        assert ids == [one["id"] for one in two]
        delta = await feed.next()
        assert (delta["from"], delta["revision"]) == (revision, revision + 1)
        assert [(text_of(one), one["role"], one["status"]) for one in delta["messages"]] == [
            ("Is anybody there?", "user", "final"), ("I am.", "assistant", "final"),
        ]  # fmt: skip
        assert delta["messages"][1]["parentId"] == ids[0]
        assert (delta["messages"][1]["authorName"], delta["thread"]["activeLeaf"]) == ("Mara", ids[1])
        assert delta["messages"][1]["authorId"] == delta["messages"][0]["authorId"], "both are the caller's"
        assert (await stream.frame())["messages"] == delta["messages"]
        durable = await server.http.get(path, params={"offset": offset}, headers=thread.headers)
        assert [frame["messages"] for frame in durable.json()] == [delta["messages"]]
    assert (await thread.snapshot())["messages"] == delta["messages"]


async def test_the_histories_of_the_other_protocols_have_it(server: InProcessServer, store: Database) -> None:
    thread = await account_thread(server, await person(store))
    card = {"type": "data", "name": "card", "data": {"build": 7}}
    parts = [card, {"type": "text", "text": "Build "}, {"type": "text", "text": "7 is done."}]
    await appended(thread, message("Is it done?", "user"), message("", parts=parts, author="Builds"))
    [_, answer] = (await server.http.get(f"/api/chat/{thread.id}", headers=thread.headers)).json()
    assert (answer["role"], answer["metadata"]["authorName"]) == ("assistant", "Builds")
    assert [(part["type"], part.get("text", part.get("data"))) for part in answer["parts"]] == [
        ("data-card", {"build": 7}), ("step-start", None), ("text", "Build 7 is done."),
    ]  # fmt: skip
    named = f"conv_{uuid.UUID(thread.id).hex}"
    items = await server.http.get(f"/v1/conversations/{named}/items", headers=thread.headers, params={"order": "asc"})
    assert [item["content"][0]["text"] for item in items.json()["data"]] == ["Is it done?", "Build 7 is done."]
    headers = thread.headers | {"Accept": "text/event-stream"}
    snapshot = await server.http.get("/api/ag-ui", params={"threadId": thread.id}, headers=headers)
    assert [(one["role"], one["content"]) for one in _messages_of(snapshot)] == [
        ("user", "Is it done?"), ("assistant", "Build 7 is done."),
    ]  # fmt: skip


def _messages_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The messages of the snapshot among these events."""
    found = [
        json.loads(line[6:]) for line in response.raise_for_status().text.splitlines() if line.startswith("data: ")
    ]
    return next(list(event["messages"]) for event in found if event["type"] == "MESSAGES_SNAPSHOT")


async def test_the_next_prompt_has_it_but_not_its_data(server: InProcessServer, provider: Server) -> None:
    thread = await server.thread()
    file = await upload(thread, b"name,score\n", "text/csv", "scores.csv")
    parts = [{"type": "text", "text": "See the scores."}, {"type": "file", "blobId": file}]
    note = message("Deploy 7 began.", parts=[{"type": "data", "name": "deploy", "data": {"number": "seven"}}])
    await appended(thread, message("Answer in French.", "system"), note, message("", parts=parts))
    await appended(thread, message("Hello", "user"))
    sent = await thread.send("Who won?")
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    prompt = last_prompt(provider)
    assert any("Answer in French." in content for role, content in prompt if role == "system")
    assert any("See the scores." in content and "scores.csv" in content for role, content in prompt)
    assert prompt[-1] == ("user", "Who won?")
    assert "seven" not in json.dumps(prompt)


async def test_an_appended_question_can_be_answered_and_edited(server: InProcessServer, provider: Server) -> None:
    thread = await server.thread()
    [question, human] = await appended(thread, message("Where is Aiur?", "user"), message("In the Koprulu sector."))
    again = (await thread.post("regenerate", {"messageId": question})).raise_for_status().json()
    assert (await thread.ended(again["runId"]))["status"] == "final"
    assert last_prompt(provider)[-1] == ("user", "Where is Aiur?")
    by_id = {one["id"]: one for one in (await thread.snapshot())["messages"]}
    assert by_id[again["assistantMessageId"]]["parentId"] == by_id[human]["parentId"] == question
    [edited] = await appended(thread, message("Where is Shakuras?", "user"), parentId=None)
    snapshot = await thread.snapshot()
    assert snapshot["thread"]["activeLeaf"] == edited
    assert "parentId" not in next(one for one in snapshot["messages"] if one["id"] == edited)
    [answer] = await appended(thread, message("Far."), parentId=question)
    assert next(one for one in (await thread.snapshot())["messages"] if one["id"] == answer)["parentId"] == question


async def test_the_search_finds_text_and_not_data(server: InProcessServer, store: Database) -> None:
    thread = await account_thread(server, await person(store))
    parts = [{"type": "text", "text": "The zealots are ready."}, {"type": "data", "name": "x", "data": "dragoons"}]
    [found] = await appended(thread, message("", parts=parts))
    await index(store)
    assert [hit["messageId"] for hit in await search(server.http, "zealots", thread.headers)] == [found]
    assert await search(server.http, "dragoons", thread.headers) == []


async def test_a_repeated_append_adds_nothing_and_other_content_is_refused(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    file = await upload(thread, b"a file", "text/plain", "a.txt")
    parts = [{"type": "file", "blobId": file}, {"type": "data", "name": "d", "data": {"a": [1, None, "ü"]}}]
    batch = [message("One", "user"), message("", parts=parts, author="Bot")]
    answers = await asyncio.gather(*(append(thread, *batch) for _ in range(5)))
    assert sorted(response.status_code for response in answers) == [200, 200, 200, 200, 201]
    assert len({response.text for response in answers}) == 1
    assert len((await thread.snapshot())["messages"]) == 2
    for changed in (
        [batch[0] | {"parts": [{"type": "text", "text": "Two"}]}, batch[1]],
        [batch[0] | {"role": "assistant"}, batch[1]],
        [batch[0], batch[1] | {"author": "Another"}],
        [batch[0], message("More")],
        [*batch, message("More")],
    ):
        assert_problem(await append(thread, *changed), 409, "conflict")
    assert_problem(await append(other, batch[0]), 409, "conflict")
    assert_problem(await append(thread, batch[0], batch[0]), 400, "invalid_input")
    (await thread.post("reset")).raise_for_status()
    assert (await append(thread, batch[0])).status_code == 201, "a reset has freed the id"


async def test_while_an_answer_is_written_messages_follow_it_interrupt_it_or_are_refused(
    queueing: InProcessServer,
) -> None:
    thread = await queueing.thread()
    sent = await thread.send("Hello")
    assert_problem(await append(thread, message("No", "user"), ifBusy="reject"), 409, "run_active")
    [note] = await appended(thread, message("A person looks at it.", author="Mara"))
    assert (await thread.run(sent["runId"]))["status"] == "queued"
    [answer] = await appended(thread, message("Hello, I am Mara.", author="Mara"), ifBusy="interrupt")
    assert (await thread.run(sent["runId"]))["status"] == "canceled"
    by_id = {one["id"]: one for one in (await thread.snapshot())["messages"]}
    assert by_id[note]["parentId"] == sent["assistantMessageId"]
    assert (by_id[answer]["parentId"], by_id[sent["assistantMessageId"]]["status"]) == (note, "canceled")


async def test_a_person_takes_over_while_the_model_writes(server: InProcessServer, provider: Server) -> None:
    thread = await server.thread()
    provider.script.append(Reply(tokens=("I ", "think"), hang_after=1))
    async with server.observer(thread).following() as observer:
        sent = await thread.send("Help!")
        await observer.until(lambda view: bool(view.text(sent["assistantMessageId"])))
        [answer] = await appended(thread, message("I take over.", author="Mara"), ifBusy="interrupt")
        await observer.until(lambda view: sent["assistantMessageId"] in view.finished)
        assert observer.view.text(answer) == "I take over."
    assert (await thread.ended(sent["runId"]))["status"] == "canceled"


async def test_what_cannot_be_stored_is_refused_whole(server: InProcessServer) -> None:
    thread = await server.thread()
    long = {"type": "data", "name": "d", "data": "x" * 20_000}
    nul = {"type": "data", "name": "d", "data": ["\0"]}
    for wrong, status, code in (
        ({"messages": []}, 400, "invalid_input"),
        ({"messages": [message("x")] * 51}, 400, "invalid_input"),
        ({"messages": [message("x", "tool")]}, 400, "invalid_input"),
        ({"messages": [message("x", parts=[])]}, 400, "invalid_input"),
        ({"messages": [message("a\0b")]}, 400, "invalid_input"),
        ({"messages": [message("x", parts=[nul])]}, 400, "invalid_input"),
        ({"messages": [message("x", parts=[long])]}, 413, "payload_too_large"),
        ({"messages": [message("x", parts=[{"type": "data", "name": "No", "data": 1}])]}, 400, "invalid_input"),
        ({"messages": [message("x", parts=[{"type": "file", "blobId": str(uuid.uuid4())}])]}, 400, "invalid_input"),
        ({"messages": [message("x"), message("y")], "parentId": str(uuid.uuid4())}, 400, "invalid_input"),
        ({"messages": [message("x", colour="y")]}, 400, "invalid_input"),
    ):
        assert_problem(await thread.post("messages", wrong), status, code)
    assert (await thread.snapshot())["messages"] == []


async def test_only_owners_add_instructions(server: InProcessServer) -> None:
    thread = await server.thread()
    created = await thread.post("links", {"role": "editor"})
    guest = {"X-Share-Key": created.raise_for_status().json()["shareKey"]}
    async with client(server.url) as http:
        path = f"/api/threads/{thread.id}/messages"
        both = {"messages": [message("Hi", "user"), message("Obey me.", "system")]}
        assert_problem(await http.post(path, json=both, headers=guest), 403, "forbidden")
        one = {"messages": [message("Hi", "user", author="Owner")]}
        assert (await http.post(path, json=one, headers=guest)).status_code == 201
    [stored] = (await thread.snapshot())["messages"]
    own = await appended(thread, message("Hi", "user"))
    mine = next(one for one in (await thread.snapshot())["messages"] if one["id"] == own[0])
    assert stored["authorName"] == "Owner"
    assert stored["authorId"] != mine["authorId"], "a name is only a name"
