"""Titles that a model writes: once, within budgets, and never instead of a person's."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.store.postgres.database import Database
from khala.store.threads import title_jobs
from tests.support.account_with_data import Account, account, own_thread
from tests.support.client import Thread
from tests.support.frames import socket
from tests.support.in_process import InProcessServer
from tests.support.providers import Call, Reply, serving
from tests.support.providers import Server as ProviderServer
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHEAP = "gpt-4o-mini"


class TitleModel:
    """The provider, whose cheap model writes titles."""

    def __init__(self, server: ProviderServer) -> None:
        self.server = server
        self.title = Reply(tokens=('"Trip', " to", ' Aiur."'), usage=(100, 5))
        server.default = self._reply

    def _reply(self, call: Call) -> Reply:
        return self.title if call.body["model"] == CHEAP else Reply(tokens=("Fine.",))

    @property
    def calls(self) -> list[Call]:
        return [call for call in self.server.calls if call.body["model"] == CHEAP]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def provider() -> AsyncIterator[ProviderServer]:
    async with serving() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str, provider: ProviderServer) -> AsyncIterator[InProcessServer]:
    async with shared(
        postgres_url,
        template,
        KHALA_MODEL="openai:gpt-test",
        KHALA_MODELS="openai:gpt-preferred",
        KHALA_TITLES="1",
        KHALA_TITLE_MODEL=f"openai:{CHEAP}",
        KHALA_USER_TOKENS_PER_DAY="100000",
        OPENAI_BASE_URL=f"{provider.url}/v1",
        OPENAI_API_KEY="key",
    ) as inside:
        yield inside


@pytest.fixture
def model(provider: ProviderServer) -> TitleModel:
    provider.calls.clear()
    return TitleModel(provider)


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def ask(store: Database, thread: Thread, text: str = "How do I get to Aiur?") -> str | None:
    """Send a message, wait until no title is due, and return the title."""
    sent = await thread.send(text)
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    await no_job(store, thread)
    title: str | None = (await thread.snapshot())["thread"].get("title")
    return title


async def no_job(store: Database, thread: Thread) -> None:
    async with asyncio.timeout(20), store.driver() as driver:
        query = "SELECT EXISTS (SELECT FROM title_jobs WHERE thread_id = $1 AND due_at <= now())"
        while await driver.fetchval(query, uuid.UUID(thread.id)):
            await asyncio.sleep(0.05)


async def test_a_title_is_written_after_the_first_answer_with_a_receipt_and_observers_hear_of_it(
    server: InProcessServer, store: Database, model: TitleModel, who: Account
) -> None:
    thread = await own_thread(who)
    async with socket(server, additional_headers={"Cookie": cookie(who)}) as feed:
        await feed.send({"type": "watch"})
        await feed.until("account")
        assert await ask(store, thread, "How do I get to Aiur? " * 500) == "Trip to Aiur"
        heard: list[Any] = []
        while not any(entry["thread"].get("title") == "Trip to Aiur" for entry in heard):
            heard = (await feed.until("account"))["threads"]
    (call,) = model.calls
    assert len(str(call.body["messages"])) < 4_000, "the prompt is bounded"
    (receipt,) = (await who.http.get("/api/me/usage/receipts")).json()["items"]
    assert (receipt["purpose"], receipt["threadId"], receipt["data"]["usage"]["outputTokens"]) == (
        "title",
        thread.id,
        5,
    )
    used = {one["measure"]: Decimal(one["used"]) for one in (await who.http.get("/api/me/usage")).json()["items"]}
    assert used["tokens"] == 105 + 18, "the title and the answer"
    await ask(store, thread, "And back?")
    assert len(model.calls) == 1, "a thread with a title gets no other one"


def cookie(who: Account) -> str:
    return "; ".join(f"{name}={value}" for name, value in who.http.cookies.items())


async def test_a_title_that_a_person_gives_meanwhile_stays(store: Database, model: TitleModel, who: Account) -> None:
    thread = await own_thread(who)
    model.title = Reply(tokens=("Trip", " to", " Aiur"), pace=4)
    sent = await thread.send("Hello")
    await thread.ended(sent["runId"])
    async with asyncio.timeout(20):
        while not model.calls:
            await asyncio.sleep(0.02)
    (await who.http.patch(f"/api/threads/{thread.id}", json={"title": "Mine"})).raise_for_status()
    await no_job(store, thread)
    assert (await thread.snapshot())["thread"]["title"] == "Mine"


async def test_a_failure_changes_nothing_and_a_lost_worker_is_replaced(
    store: Database, model: TitleModel, who: Account, provider: ProviderServer
) -> None:
    thread = await own_thread(who)
    model.title = Reply(status=400)
    assert await ask(store, thread) is None
    thread_id, lost = uuid.UUID(thread.id), ids.new()
    async with store.driver() as driver:
        await driver.execute("UPDATE title_jobs SET due_at = now() WHERE thread_id = $1", thread_id)
        # A worker that died with the job: its lease lapses.
        await driver.execute(
            "UPDATE title_jobs SET worker_id = $2, leased_until = now() - interval '1 s', attempts = 1"
            " WHERE thread_id = $1",
            thread_id,
            lost,
        )
    model.title = Reply(tokens=("Again",))
    await no_job(store, thread)
    assert (await thread.snapshot())["thread"]["title"] == "Again"


async def test_a_worker_that_lost_its_lease_writes_nothing(store: Database, model: TitleModel, who: Account) -> None:
    thread = await own_thread(who)
    model.title = Reply(status=400)
    await ask(store, thread)
    run_id = (await thread.snapshot())["messages"][-1]["runId"]
    late = title_jobs.TitleJob(
        thread_id=uuid.UUID(thread.id), user_id=None, run_id=uuid.UUID(run_id), attempts=1, worker_id=ids.new()
    )
    assert not await title_jobs.finish(store, late, "Late")
    assert "title" not in (await thread.snapshot())["thread"]


async def test_a_person_who_wants_no_titles_gets_none(store: Database, model: TitleModel, who: Account) -> None:
    (await who.http.patch("/api/me/preferences", json={"titles": False})).raise_for_status()
    assert await ask(store, await own_thread(who)) is None
    assert model.calls == []


async def test_a_run_uses_what_its_requester_prefers_unless_it_is_told_not_to(
    model: TitleModel, who: Account, provider: ProviderServer
) -> None:
    chosen = {"instructions": "Rhyme.", "model": "openai:gpt-preferred", "titles": False}
    (await who.http.patch("/api/me/preferences", json=chosen)).raise_for_status()
    thread = await own_thread(who)
    sent = await thread.send("Hello")
    await thread.ended(sent["runId"])
    (call,) = provider.calls
    assert "Rhyme." in str(call.body["messages"][0])
    assert call.body["model"] == "gpt-preferred"
    (context,) = (await who.http.get(f"/api/runs/{sent['runId']}/context")).json()["calls"]
    (section,) = [section for section in context["sections"] if section["name"] == "instructions"]
    plain = await thread.send("Hello", options={"personal": False})
    await thread.ended(plain["runId"])
    assert "Rhyme." not in str(provider.calls[1].body["messages"])
    assert provider.calls[1].body["model"] == "gpt-test"
    (without,) = (await who.http.get(f"/api/runs/{plain['runId']}/context")).json()["calls"]
    assert section["items"] == sum(s["items"] for s in without["sections"] if s["name"] == "instructions") + 1
    token = (await who.http.post("/api/tokens", json={"name": "CI"})).json()["token"]
    for headers, count in (({}, 0), ({"x-khala-personal": "true"}, 1)):
        provider.calls.clear()
        body = {"model": "khala", "messages": [{"role": "user", "content": "Hello"}]}
        bearer = {"Authorization": f"Bearer {token}"} | headers
        (await who.http.post("/v1/chat/completions", json=body, headers=bearer)).raise_for_status()
        assert str(provider.calls[0].body["messages"]).count("Rhyme.") == count
