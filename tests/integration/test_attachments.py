"""Attachments: files that are sent with a message are stored with it, and the model receives them."""

import base64
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.test_uploads import uploaded
from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_server import PNG
from tests.support.providers import Server, serving
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = b"En taro Adun"

server = server_fixture(KHALA_WELCOME="")


@contextlib.asynccontextmanager
async def with_provider(database_url: str, model: str) -> AsyncIterator[tuple[InProcessServer, Server]]:
    async with serving() as provider:
        settings: dict[str, Any] = {
            "OPENAI_BASE_URL": f"{provider.url}/v1", "OPENAI_API_KEY": "key", "ANTHROPIC_BASE_URL": provider.url,
            "ANTHROPIC_API_KEY": "key", "KHALA_MODEL": model, "KHALA_WELCOME": "", "KHALA_ANON_USD_PER_DAY": "0",
        }  # fmt: skip
        async with khala(database_url, **settings) as inside:
            yield inside, provider


async def send(thread: Thread, text: str, *blobs: str, **more: Any) -> Agent:
    return Agent(thread, await thread.send(text, attachments=list(blobs), options={"tools": []}, **more))


def last_message_parts(provider: Server, at: int = -1) -> list[dict[str, Any]]:
    """The parts of the last message in a request to the provider."""
    content = provider.calls[at].body["messages"][-1]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


@pytest.mark.parametrize("model", ["openai:local", "anthropic:local"])
async def test_an_image_reaches_the_model_as_an_image_and_a_text_as_text(database_url: str, model: str) -> None:
    async with with_provider(database_url, model) as (server, provider):
        thread = await server.thread()
        picture = await uploaded(thread, PNG, "image/png", "pylon.png")
        agent = await send(thread, "What is this?", picture, await uploaded(thread, TEXT, name="greeting.txt"))
        assert (await agent.ended())["status"] == "final"
        parts = last_message_parts(provider)
    encoded = base64.b64encode(PNG).decode()
    (image,) = [part for part in parts if part["type"] in ("image", "image_url")]
    if model.startswith("openai"):
        assert image["image_url"]["url"] == f"data:image/png;base64,{encoded}"
    else:
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": encoded}
    texts = "\n".join(part["text"] for part in parts if part["type"] == "text")
    for found in ("pylon.png", "greeting.txt", TEXT.decode(), "What is this?"):
        assert found in texts


async def test_files_of_earlier_messages_are_sent_to_the_model_again(database_url: str) -> None:
    async with with_provider(database_url, "openai:local") as (server, provider):
        thread = await server.thread()
        await (await send(thread, "Look.", await uploaded(thread, PNG, "image/png"))).ended()
        await (await send(thread, "And now?")).ended()
        first, *_ = provider.calls[-1].body["messages"][1:]
    assert base64.b64encode(PNG).decode() in json.dumps(first)


async def test_the_message_has_its_files_and_readers_get_them(server: InProcessServer) -> None:
    thread = await server.thread()
    first, second = await uploaded(thread, PNG, "image/png", "a.png"), await uploaded(thread, TEXT, name="b.txt")
    agent = await send(thread, "Look.", second, first)
    await agent.ended()
    question, answer = (await thread.snapshot())["messages"]
    assert [block["type"] for block in question["content"]] == ["text", "file", "file"]
    refs = [block["blob"] for block in question["content"][1:]]
    assert [(ref["blobId"], ref["name"], ref["size"], ref["mediaType"]) for ref in refs] == [
        (second, "b.txt", len(TEXT), "text/plain"),
        (first, "a.png", len(PNG), "image/png"),
    ]
    read = await server.http.get(f"/api/blobs/{first}", headers=thread.headers)
    assert read.content == PNG
    assert "`a.png`: image/png" in json.dumps(answer["content"])


async def test_a_file_without_text_is_a_message_and_an_empty_send_is_refused(server: InProcessServer) -> None:
    thread = await server.thread()
    agent = await send(thread, "", await uploaded(thread, PNG, "image/png", "a.png"))
    assert (await agent.ended())["status"] == "final"
    question, answer = (await thread.snapshot())["messages"]
    assert [block["type"] for block in question["content"]] == ["file"]
    assert "a.png" in json.dumps(answer["content"])
    assert (await thread.post("send", {"text": "", "attachments": []})).status_code == 400
    assert (await thread.post("send", {"text": ""})).status_code == 400


async def test_attachments_that_are_no_pending_upload_of_the_thread_are_refused(server: InProcessServer) -> None:
    thread, other = await server.thread(), await server.thread()
    own, foreign = await uploaded(thread, TEXT), await uploaded(other, TEXT)
    before = (await thread.snapshot())["revision"]
    for wrong in ([foreign], [own, foreign], [str(uuid.uuid4())], [own, own], ["no id"], "no list", [own] * 100):
        answer = await thread.post("send", {"text": "Look.", "attachments": wrong})
        assert answer.status_code == 400, (wrong, answer.text)
    assert (await thread.snapshot())["revision"] == before
    await (await send(thread, "Look.", own)).ended()  # the refused sends did not attach it
    again = await thread.post("send", {"text": "Look again.", "attachments": [own]})
    assert again.status_code == 400


async def test_a_repeated_message_is_the_same_and_with_other_files_a_conflict(server: InProcessServer) -> None:
    thread = await server.thread()
    first, second = await uploaded(thread, TEXT), await uploaded(thread, TEXT)
    body = {"text": "/pace=0 Look.", "messageId": str(uuid.uuid4()), "attachments": [first]}
    sent = (await thread.post("send", body)).json()
    assert (await thread.post("send", body)).json() == sent
    for other in ([second], [first, second], []):
        answer = await thread.post("send", body | {"attachments": other})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    await thread.ended(sent["runId"])
    await (await send(thread, "/pace=0 And this.", second)).ended()  # a conflict attaches no file


async def test_a_tools_output_cannot_be_attached(server: InProcessServer) -> None:
    thread = await server.thread()
    written = json.dumps({"path": "a.txt", "content": "0123456789" * 1000})
    sent = await thread.send(f"/call write_file {written} /say Written.")
    await thread.ended(sent["runId"])
    blocks = (await thread.snapshot())["messages"][-1]["content"]
    output = next(block["argsBlob"]["blobId"] for block in blocks if block["type"] == "tool")
    assert (await thread.post("send", {"text": "Look.", "attachments": [output]})).status_code == 400
