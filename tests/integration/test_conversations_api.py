"""OpenAI's Conversations API with the official client, unmodified: a conversation is a thread."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres.database import Database
from tests.support.in_process import InProcessServer
from tests.support.openai_api import Requester
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA"
    "DUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
JSON = {"Content-Type": "application/json"}
CALLED: list[Any] = [
    {"type": "function_call", "call_id": "call-1", "name": "weather", "arguments": '{"city": "Aiur"}'},
    {"type": "function_call_output", "call_id": "call-1", "output": "Sunny."},
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template) as inside:
        yield inside
        db = Database(inside.database_url)
        assert [found async for found in find_differences(db, VerifyProgress())] == []
        await db.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def requester(server: InProcessServer) -> AsyncIterator[Requester]:
    db = Database(server.database_url)
    yield await Requester.new(server, db)
    await db.close()


def said(text: str, role: str = "user") -> Any:
    return {"type": "message", "role": role, "content": text}


def texts(items: Any) -> list[tuple[str, str]]:
    return [(item.role, item.content[0].text) for item in items if item.type == "message"]


async def test_a_conversation_is_created_read_changed_and_deleted(requester: Requester) -> None:
    conversations = requester.client.conversations
    made = await conversations.create(metadata={"topic": "khala"}, items=[said("En taro Adun")])
    assert (made.object, made.metadata) == ("conversation", {"topic": "khala"})
    assert await conversations.retrieve(made.id) == made
    changed = await conversations.update(made.id, metadata={"topic": "aiur", "more": "1"})
    assert changed.metadata == {"topic": "aiur", "more": "1"}
    assert (await conversations.update(made.id, metadata={})).metadata == {}
    thread_id = made.khala["threadId"]  # type: ignore[attr-defined]
    assert (await requester.get(f"/api/threads/{thread_id}"))["thread"]["title"] == "En taro Adun"
    deleted = await conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)
    with pytest.raises(openai.NotFoundError, match="no conversation"):
        await conversations.retrieve(made.id)
    assert (await conversations.create()).metadata == {}


async def test_items_are_added_listed_read_and_the_last_one_is_deleted(requester: Requester) -> None:
    conversations = requester.client.conversations
    made = await conversations.create()
    added = await conversations.items.create(
        made.id,
        items=[said("Be brief.", "developer"), said("Where is it sunny?"), *CALLED, said("On Aiur.", "assistant")],
    )
    assert [item.type for item in added.data] == [
        "message", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert texts(added.data) == [("system", "Be brief."), ("user", "Where is it sunny?"), ("assistant", "On Aiur.")]
    image: Any = {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]}
    last = (await conversations.items.create(made.id, items=[image])).data[0]
    listed = [str(item.id) async for item in conversations.items.list(made.id, order="asc", limit=2)]
    assert listed == [item.id for item in (*added.data, last)]
    newest = await conversations.items.list(made.id, limit=1)
    assert (newest.data, newest.has_more) == ([last], True)
    assert await conversations.items.retrieve(listed[1], conversation_id=made.id) == added.data[1]
    with pytest.raises(openai.ConflictError, match="Only the last item"):
        await conversations.items.delete(listed[1], conversation_id=made.id)
    assert (await conversations.items.delete(listed[-1], conversation_id=made.id)).id == made.id
    with pytest.raises(openai.NotFoundError, match="no item"):
        await conversations.items.retrieve(listed[-1], conversation_id=made.id)
    assert [item.id async for item in conversations.items.list(made.id, order="asc")] == listed[:-1]


async def test_a_response_continues_the_conversation_and_its_messages_become_items(requester: Requester) -> None:
    conversations = requester.client.conversations
    made = await conversations.create(items=[said("Hello"), said("Hi.", "assistant")])
    for number in (1, 2):
        answer = await requester.client.responses.create(
            model="khala", input=f"/echo Answer {number}", conversation=made.id
        )
        assert answer.conversation is not None
        assert (answer.output_text, answer.conversation.id) == (f"Answer {number}", made.id)
    items = [item async for item in conversations.items.list(made.id, order="asc")]
    assert texts(items) == [
        ("user", "Hello"), ("assistant", "Hi."),
        ("user", "/echo Answer 1"), ("assistant", "Answer 1"),
        ("user", "/echo Answer 2"), ("assistant", "Answer 2"),
    ]  # fmt: skip
    waiting = await requester.client.responses.create(
        model="khala", input="/words=500 /pace=20", conversation=made.id, background=True
    )
    with pytest.raises(openai.ConflictError, match="being written"):
        await conversations.items.create(made.id, items=[said("And?")])
    await requester.client.responses.cancel(waiting.id)


async def test_items_of_responses_have_the_ids_of_their_output(requester: Requester) -> None:
    conversations, responses = requester.client.conversations, requester.client.responses
    made = await conversations.create(items=[said("Hello")])
    text = '/text Let me see. /call weather {"city": "Aiur"} /say It is sunny.'
    tools: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
    first: Any = await responses.create(model="khala", input=text, tools=tools, conversation=made.id)
    called = first.output[-1]
    assert called.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "Sunny."}
    second: Any = await responses.create(model="khala", input=[result], tools=tools, conversation=made.id)
    third: Any = await responses.create(model="khala", input="/text One. /then /say Two.", conversation=made.id)
    items: list[Any] = [item async for item in conversations.items.list(made.id, order="asc", limit=1)]
    given = [item for item in items if item.type == "message" and item.role == "user"]
    whole = [item.to_dict() for item in items if item not in given]
    returned = next(item for item in whole if item["type"] == "function_call_output")
    outputs = [[item.to_dict() for item in answer.output] for answer in (first, second, third)]
    assert whole == [*outputs[0], returned, *outputs[1], *outputs[2]]
    inputs = [item.to_dict() async for item in responses.input_items.list(second.id)]
    assert inputs == [returned]
    assert [item async for item in conversations.items.list(made.id, limit=2)] == items[::-1]
    for item in whole:
        assert (await conversations.items.retrieve(item["id"], conversation_id=made.id)).to_dict() == item
    for unknown in ("msg", f"msg_{'0' * 32}_0", items[-1].id[:-1] + "9"):
        with pytest.raises(openai.NotFoundError, match="no item"):
            await conversations.items.retrieve(unknown, conversation_id=made.id)
        with pytest.raises(openai.BadRequestError, match="No item has this id"):
            await conversations.items.list(made.id, after=unknown)


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([said("a\0b")], "NUL characters"),
        ([CALLED[0], CALLED[1] | {"output": "a\0b"}], "NUL characters"),
        ([{"type": "computer_call"}], "Items of type computer_call"),
        ([CALLED[0]], "has no tool message"),
        ([CALLED[1]], "No earlier call"),
        ([said("x", "critic")], "Invalid enum value"),
        ([said("x")] * 21, "20"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/a.png"}]}],
            "data URLs",
        ),
    ],
)
async def test_items_that_no_thread_can_hold_are_refused_and_nothing_is_created(
    requester: Requester, items: Any, problem: str
) -> None:
    before = await requester.get("/api/threads")
    with pytest.raises(openai.BadRequestError, match=problem):
        await requester.client.conversations.create(items=items)
    assert await requester.get("/api/threads") == before


async def test_instructions_after_the_first_items_are_refused(requester: Requester) -> None:
    made = await requester.client.conversations.create(items=[said("Hello")])
    with pytest.raises(openai.BadRequestError, match="first items"):
        await requester.client.conversations.items.create(made.id, items=[said("Be brief.", "system")])
    refused = await requester.inside.http.post(
        f"/v1/conversations/{made.id}", json={"metadata": {"a": 1}}, headers=requester.person.headers
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "metadata[...]")
    for name, value in (("a\0", "b"), ("a", "b\0")):
        with pytest.raises(openai.BadRequestError, match="NUL characters"):
            await requester.client.conversations.update(made.id, metadata={name: value})
        with pytest.raises(openai.BadRequestError, match="NUL characters"):
            await requester.client.conversations.create(metadata={name: value})
    for path in ("", "/items"):
        nothing = await requester.inside.http.post(
            f"/v1/conversations/{made.id}{path}", content=b"null", headers=requester.person.headers | JSON
        )
        assert (nothing.status_code, set(nothing.json()["error"])) == (400, {"message", "type", "code", "param"})
