"""The resources of the Python client against a running server: approvals, plans, memories, agents, sharing, files."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import pytest_asyncio

from khala.store.postgres.database import Database
from khala_client import (
    AnswerReplaced,
    AsyncKhala,
    AsyncRun,
    BlobRef,
    Conflict,
    DataBlock,
    Forbidden,
    InvalidRequest,
    NotFound,
    PlannedStep,
    ResponseFormat,
    RetryPolicy,
    RunBudget,
    RunFailed,
    RunOptions,
    ServerError,
    ToolStatus,
    Unauthenticated,
)
from tests.support.agents import call
from tests.support.callers import person
from tests.support.forwarder import Forwarder
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = RetryPolicy(base_delay=0.02, max_delay=0.1)
WITHIN_SECONDS = 30.0

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def khala(server: InProcessServer) -> AsyncIterator[AsyncKhala]:
    """The client of a new account."""
    db = Database(server.database_url)
    token = (await person(db)).token
    await db.close()
    async with asyncio.timeout(WITHIN_SECONDS), AsyncKhala(server.url, token=token, retry=QUICK) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def guest(server: InProcessServer) -> AsyncIterator[AsyncKhala]:
    async with AsyncKhala(server.url, retry=QUICK) as client:
        yield client


async def until_blocked(run: AsyncRun) -> str:
    """Wait until a call of the run needs approval; returns its id."""
    async with run.follow() as parts:
        async for _, part in parts:
            if isinstance(part, ToolStatus) and part.state == "blocked":
                return part.tool_call_id
    raise AssertionError("no call needed approval")


async def test_a_call_runs_with_the_arguments_that_a_person_has_edited(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    await (await thread.send(call("write_file", path="a.txt", content="one"))).result()
    run = await thread.send(call("delete_file", path="b.txt") + " /say Done.")
    call_id = await until_blocked(run)
    [approval] = await run.approvals()
    assert (approval.tool_call_id, approval.args, approval.state) == (call_id, {"path": "b.txt"}, "pending")
    assert approval.may_edit
    decided = await run.approve(approval, edited_args={"path": "a.txt"})
    assert decided.edited_args == {"path": "a.txt"}
    assert (await run.result()).text == "Done."
    with pytest.raises(Conflict) as raised:
        await run.deny(approval)
    assert raised.value.code == "already_decided"
    assert [receipt.type for receipt in await run.receipts()].count("tool") == 1


async def test_a_denied_call_does_not_run_and_a_canceled_run_keeps_its_text(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    run = await thread.send(call("delete_file", path="a.txt") + " /say Over.")
    await run.deny(await until_blocked(run), reason="Not this one.")
    assert (await run.result()).text == "Over."
    slow = await thread.send("/words=5000 /pace=50")
    async with slow.stream_text() as text:
        begin = await anext(text)
        await slow.cancel("enough")
    result = await slow.result()
    assert (result.finish.reason, result.text[: len(begin)]) == ("canceled", begin)


async def test_a_failed_run_raises_its_code_and_has_its_text(khala: AsyncKhala) -> None:
    run = await (await khala.threads.create()).send("/words=4 /fail=2 /pace=0")
    with pytest.raises(RunFailed) as raised:
        await run.result()
    assert raised.value.code
    assert raised.value.text == "word1 word2 "
    text = run.stream_text()
    assert (await anext(text)).startswith("word1")
    with pytest.raises(RunFailed):
        _ = [piece async for piece in text]


async def test_a_requested_format_is_streamed_when_it_is_checked(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    options = RunOptions(response_format=ResponseFormat(type="json_schema", schema=schema))
    run = await thread.send("Who are you?", options)
    assert set(json.loads("".join([piece async for piece in run.stream_text()]))) == {"name"}
    repaired = await thread.send("/words=3", options)
    with pytest.raises(AnswerReplaced):
        _ = [piece async for piece in (await khala.runs.get(repaired.id)).stream_text()]


async def test_a_client_keeps_no_session_that_a_route_begins(guest: AsyncKhala) -> None:
    account = {"email": "ada@example.com", "password": "en taro adun"}
    assert (await guest.request("POST", "/api/auth/register", body=account))["email"] == "ada@example.com"
    with pytest.raises(Unauthenticated):
        await guest.me.get()


async def test_a_busy_thread_and_wrong_requests_have_errors_by_code(khala: AsyncKhala, guest: AsyncKhala) -> None:
    thread = await khala.threads.create()
    run = await thread.send("/words=5000 /pace=50")
    with pytest.raises(Conflict) as busy:
        await thread.send("Again")
    assert busy.value.code == "run_active"
    await run.cancel()
    with pytest.raises(InvalidRequest) as wrong:
        await thread.send("Again", RunOptions(budget=RunBudget(usd=Decimal(-1)), if_busy="queue"))
    assert "options.budget" in wrong.value.errors[0].path
    with pytest.raises((NotFound, Forbidden)):
        await guest.thread(thread.id).snapshot()
    with pytest.raises(Unauthenticated):
        await guest.me.get()
    with pytest.raises(NotFound):
        await khala.request("GET", "/api/no-such-route")
    with pytest.raises(ValueError, match="begins with /"):
        await khala.request("GET", "@example.com/api/me")
    with pytest.raises(ServerError, match="no JSON"):
        await khala.request("GET", "/preview")
    with pytest.raises(ValueError, match="UUID"):
        khala.thread("../me")


async def test_a_plan_is_followed_to_its_end(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    steps = [PlannedStep(id="a", title="First"), PlannedStep(id="b", title="Second", depends_on=["a"])]
    plan = await thread.plans.create("Two steps", steps, mode="step")
    assert (await plan.get()).status == "idle"
    seen = []
    async with plan.follow() as events:
        async for event in events:
            seen.append(event.seq)
            if event.type == "created":
                await plan.start()
            elif event.type == "paused":
                await plan.skip_step("b")
                await plan.resume()
    assert seen == list(range(1, len(seen) + 1))
    assert [step.status for step in await plan.steps()] == ["completed", "skipped"]
    assert (await plan.get()).status == "stopped"
    assert [one.seq async for one in plan.follow(after=seen[-2])] == [seen[-1]]
    assert [one.id async for one in thread.plans.list()] == [plan.id]
    with pytest.raises(Conflict):
        await plan.retry_step("a")


async def test_a_plan_is_drafted_paused_and_stopped(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    plan, run = await thread.plans.draft("Collect what is known.")
    await run.result()
    assert (await plan.get()).status == "idle"
    await plan.start()
    assert (await plan.pause(force=True)).status in ("pausing", "paused")
    assert (await plan.stop()).status in ("stopping", "stopped")
    imported = await thread.plans.import_document("# List\n\n- [ ] One\n- [x] Two\n")
    assert len(await imported.steps()) == 2
    document = await khala.request_bytes("GET", f"/api/plans/{imported.id}/export", params={"format": "markdown"})
    assert b"One" in document
    await imported.update(title="Another")
    await imported.edit(remove=[(await imported.steps())[0].id])
    await imported.delete()
    with pytest.raises(NotFound):
        await imported.get()


async def test_memories_agents_models_and_search_are_read_and_written(khala: AsyncKhala) -> None:
    memory = await khala.memories.add("The cat is called Mira.", kind="fact")
    newer = await khala.memories.update(memory.id, text="The cat is called Mirabelle.")
    assert newer.supersedes == memory.id
    [found] = await khala.memories.search("cat")
    assert (found.id, found.score is not None) == (newer.id, True)
    assert [one.id async for one in khala.memories.list()] == [newer.id]
    hits = [hit async for hit in khala.search("Mirabelle", kind="memory")]
    assert [hit.memory_id for hit in hits] == [newer.id]
    await khala.memories.forget(newer.id)
    agent = await khala.agents.create("helper", "Helper", instructions="Help.")
    assert (await khala.agents.update("helper", title="Helps")).version == agent.version + 1
    assert "helper" in [one.name for one in await khala.agents.list()]
    link = await khala.agents.share("helper")
    assert (await khala.agents.get(link)).name == "helper"
    assert (await khala.agents.route("Help me")).agent
    await khala.agents.unshare("helper")
    await khala.agents.delete("helper")
    models = await khala.models.list()
    assert models.default in [model.model for model in models.items]
    assert (await khala.me.update(name="Ada")).name == (await khala.me.get()).name == "Ada"
    assert await khala.me.usage() is not None
    assert (await khala.request("GET", "/api/me"))["name"] == "Ada"


async def test_a_thread_is_shared_changed_and_claimed(khala: AsyncKhala, guest: AsyncKhala) -> None:
    thread = await khala.threads.create(title="One")
    link = await thread.create_link("viewer", expires_at=datetime.now(UTC) + timedelta(hours=1))
    shared_thread = guest.thread(thread.id, share_key=link.share_key)
    assert (await shared_thread.access()).role == "viewer"
    assert [one.id for one in await thread.links()] == [link.id]
    assert (await anext(shared_thread.follow())).state.thread.title == "One"
    await thread.revoke_link(link.id)
    with pytest.raises((NotFound, Forbidden)):
        await shared_thread.access()
    assert (await thread.update(title=None, visibility="private")).title is None
    assert [member.role for member in await thread.members()] == ["owner"]
    theirs = await guest.threads.create()
    assert theirs.anon_key is not None
    claimed = await khala.thread(theirs.id).claim(theirs.anon_key)
    assert claimed.owner_id == (await khala.me.get()).id
    with pytest.raises((NotFound, Forbidden)):
        await theirs.snapshot()
    page = [one.id async for one in khala.threads.list(page_size=1)]
    assert set(page) == {thread.id, theirs.id}


async def test_messages_are_appended_without_an_answer(khala: AsyncKhala) -> None:
    thread = await khala.threads.create()
    blob = await thread.upload(b"one", name="a.txt")
    first = await thread.append("user", "Hello", attachments=[blob], parent_id=None)
    await thread.append("user", "Hello", attachments=[blob], parent_id=None, message_id=first)
    second = await thread.append("assistant", "Aiur is online.", author="Deploys", data={"build": {"number": 7}})
    *_, question, answer = (await thread.state()).messages
    assert (question.id, answer.id, answer.parent_id) == (first, second, first)
    assert (answer.author_name, answer.text) == ("Deploys", "Aiur is online.")
    assert (answer.content or ())[-1] == DataBlock(name="build", data={"number": 7})


async def test_a_download_continues_after_a_cut_and_is_checked(server: InProcessServer) -> None:
    content = bytes(range(256)).hex().encode() * 20_000
    forwarder = Forwarder(int(server.url.rpartition(":")[2]))
    forwarder.up()
    try:
        async with AsyncKhala(forwarder.url, retry=QUICK) as khala:
            thread = await khala.threads.create()
            blob = await thread.upload(content, name="a.txt")
            received, cuts = b"", 0
            async for piece in thread.download(blob):
                received += piece
                if cuts < 2 and len(received) > 100_000 * (cuts + 1):
                    cuts += forwarder.cut() > 0
            assert (received == content, cuts) == (True, 2)
            wrong = BlobRef(blob_id=blob.blob_id, size=blob.size, sha256="0" * 64, media_type="text/plain")
            with pytest.raises(ServerError, match="not those of the blob"):
                _ = [piece async for piece in thread.download(wrong)]
            [line] = await khala.blobs.lines(blob.blob_id, keys=thread._keys, mode="head", lines=1)
            assert line.cut
    finally:
        forwarder.down()
