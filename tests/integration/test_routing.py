"""Routing of tasks to agents: by words and by meaning, to agents that the caller has, and shown before and in a run."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from khala.domain.agent_seeds import BY_NAME
from khala.domain.agents import AgentDefinition
from khala.memory.agent_router import BUILT_IN, AgentRouter
from khala.memory.memory_service import MemoryService
from khala.store.agents import agents
from khala.store.postgres.database import Database
from tests.integration.test_agents_api import assert_invalid, create, system_of, tools_of
from tests.integration.test_api_threads import assert_problem
from tests.integration.test_memories import opened
from tests.support.account_with_data import Account, account, own_thread, user_id
from tests.support.callers import person
from tests.support.client import Thread, client
from tests.support.embeddings_server import EmbeddingReply, serving_embeddings
from tests.support.in_process import InProcessServer
from tests.support.providers import Server, serving
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

REVIEW = "Review everything under src/ for faults, don't change anything"
SMALL_TALK = "Hello, how are you?"
CONCEPTS = [
    ("dog", "puppy"), ("pages", "notes", "claims"), ("files", "report", "figures"), ("review", "race"), ("tests",),
    ("data", "totals", "trend"), ("plan", "goal"), ("docs", "readme", "newcomer"), ("rename", "code", "split"),
    ("car", "automobile"),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Server]:
    async with serving() as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, provider: Server) -> AsyncIterator[InProcessServer]:
    env: dict[str, Any] = {
        "KHALA_MODEL": "openai:test", "OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{provider.url}/v1",
        "KHALA_SYSTEM_PROMPT": "Be brief.",
    }  # fmt: skip
    async with shared(postgres_url, template, **env) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def preview(http: httpx.AsyncClient, text: str, **more: Any) -> dict[str, Any]:
    return dict((await http.post("/api/route", json={"text": text, **more})).raise_for_status().json())


async def finished(thread: Thread, text: str, **options: Any) -> str:
    """Send a message with these options, and wait for its answer; returns the run's id."""
    sent = await thread.send(text, options=options)
    assert (await thread.ended(sent["runId"]))["status"] == "final"
    return str(sent["runId"])


async def test_a_task_is_routed_to_the_agent_that_fits_and_the_run_says_so(who: Account, provider: Server) -> None:
    shown = await preview(who.http, REVIEW)
    assert (shown["agent"], shown["abstained"]) == ("reviewer", False)
    assert shown["confidence"] > 0.5
    assert "review" in shown["why"]
    thread = await own_thread(who)
    run_id = await finished(thread, REVIEW, agent="auto")
    parts = await thread.parts(run_id)
    expected = {field: shown[field] for field in ("agent", "confidence", "alternatives", "why", "by")}
    assert (parts[0]["kind"], parts[0]["data"]) == ("route", expected)
    body = provider.calls[-1].body
    assert system_of(body) == f"Be brief.\n\n{BY_NAME['reviewer'].instructions}"
    assert "write_file" not in tools_of(body)


async def test_without_a_likely_agent_the_default_one_answers_and_the_run_says_so(
    who: Account, provider: Server
) -> None:
    shown = await preview(who.http, SMALL_TALK)
    assert (shown["agent"], shown["abstained"]) == ("default", True)
    thread = await own_thread(who)
    (routed,) = [
        part["data"] for part in await thread.parts(await finished(thread, SMALL_TALK, agent="auto"))
        if part["kind"] == "route"
    ]  # fmt: skip
    assert routed["agent"] == "default"
    assert system_of(provider.calls[-1].body) == "Be brief."


async def test_a_named_agent_is_not_routed(who: Account, provider: Server) -> None:
    thread = await own_thread(who)
    run_id = await finished(thread, REVIEW, agent="writer")
    assert "route" not in [part["kind"] for part in await thread.parts(run_id)]
    assert system_of(provider.calls[-1].body).endswith(BY_NAME["writer"].instructions)


async def test_another_answer_is_routed_by_the_question(who: Account) -> None:
    thread = await own_thread(who)
    sent = await thread.send(REVIEW)
    await thread.ended(sent["runId"])
    again = await thread.post("regenerate", {"messageId": sent["userMessageId"], "options": {"agent": "auto"}})
    run_id = again.raise_for_status().json()["runId"]
    await thread.ended(run_id)
    assert [part["data"]["agent"] for part in await thread.parts(run_id) if part["kind"] == "route"] == ["reviewer"]


async def test_nobody_is_routed_to_an_agent_of_somebody_else(who: Account, server: InProcessServer) -> None:
    await create(who.http, examples=["Compose a villanelle about interstellar trade"])
    task = "Compose a villanelle on interstellar harbours"
    assert (await preview(who.http, task))["agent"] == "poet"
    async with account(server) as other:
        shown = await preview(other.http, task)
        assert "poet" not in [shown["agent"], *(one["agent"] for one in shown["alternatives"])]
    await who.http.patch("/api/agents/poet", json={"examples": []})
    assert (await preview(who.http, task))["agent"] == "default", "only the newest version counts"
    await who.http.delete("/api/agents/poet")


async def test_private_agents_are_no_alternatives_for_readers_of_the_thread(who: Account) -> None:
    await create(who.http, name="second", title="Second opinion", description="Review everything under src")
    shown = await preview(who.http, REVIEW)
    named = {shown["agent"], *(one["agent"] for one in shown["alternatives"])}
    assert {"reviewer", "second"} <= named
    thread = await own_thread(who)
    (part, *_) = await thread.parts(await finished(thread, REVIEW, agent="auto"))
    assert {one["agent"] for one in part["data"]["alternatives"]} <= {*BY_NAME}


async def test_a_guest_is_routed_only_to_agents_whose_tools_guests_have(server: InProcessServer) -> None:
    thread = await server.thread()
    task = "Compare what these two pages say, and read https://aiur.example to list its claims with quotes"
    async with account(server) as member:
        assert (await preview(member.http, task))["agent"] == "researcher"
    answer = await thread.http.post("/api/route", json={"text": task, "threadId": thread.id}, headers=thread.headers)
    shown = answer.raise_for_status().json()
    assert "researcher" not in [shown["agent"], *(one["agent"] for one in shown["alternatives"])]
    routed = await thread.send(REVIEW, options={"agent": "auto"})
    await thread.ended(routed["runId"])
    assert (await thread.parts(routed["runId"]))[0]["data"]["agent"] == "reviewer"


async def test_a_preview_needs_an_account_or_a_thread_in_which_the_caller_may_send(
    who: Account, server: InProcessServer
) -> None:
    thread = await server.thread()
    async with client(server.url) as http:
        assert_problem(await http.post("/api/route", json={"text": REVIEW}), 401, "unauthorized")
        assert_problem(await http.post("/api/route", json={"text": REVIEW, "threadId": thread.id}), 403, "forbidden")
    assert_invalid(await who.http.post("/api/route", json={"text": "  "}), "text")


async def test_an_agent_whose_model_is_not_offered_any_more_is_not_chosen(
    who: Account, server: InProcessServer
) -> None:
    db = Database(server.database_url)
    await agents.create(
        db, user_id(who), "bard",
        AgentDefinition(
            title="Bard", description="Sings ballads", instructions="", tools=["*"], examples=["Sing a ballad"],
            model="openai:gone",
        ),
    )  # fmt: skip
    await db.close()
    assert (await preview(who.http, "Sing a ballad about ballads"))["agent"] == "default"


async def test_an_estimate_is_made_of_own_runs_that_were_like_it(who: Account, server: InProcessServer) -> None:
    nothing = (await preview(who.http, REVIEW))["estimate"]
    assert nothing == {"of": 0}
    thread = await own_thread(who)
    for number in range(3):
        await finished(thread, f"Review everything under src/{number}/", agent="auto")
    await finished(thread, "Review everything under src/ once more", agent="writer")
    estimate = (await preview(who.http, REVIEW))["estimate"]
    assert estimate["of"] == 3, "runs of another agent don't count"
    assert estimate["steps"] == 0
    assert estimate["seconds"] > 0
    async with account(server) as other:
        assert (await preview(other.http, REVIEW))["estimate"] == {"of": 0}, "runs of others don't count"
    await thread.post("reset")
    assert (await preview(who.http, REVIEW))["estimate"] == {"of": 0}, "they are deleted"


async def test_a_guest_gets_estimates_of_their_own_runs_in_the_thread(server: InProcessServer) -> None:
    thread = await server.thread()
    await finished(thread, REVIEW)
    body = {"text": SMALL_TALK, "threadId": thread.id}
    shown = (await thread.http.post("/api/route", json=body, headers=thread.headers)).json()
    assert (shown["agent"], shown["estimate"]["of"]) == ("default", 1)
    link = await thread.post("links", {"role": "editor"})
    shared_with = {"X-Share-Key": link.raise_for_status().json()["shareKey"]}
    shown = (await thread.http.post("/api/route", json=body, headers=shared_with)).json()
    assert shown["estimate"] == {"of": 0}, "they belong to the holder of another key"


async def test_meaning_finds_an_agent_that_shares_no_words_with_the_task(server: InProcessServer) -> None:
    task = "The puppy is hungry"
    db = Database(server.database_url)
    async with serving_embeddings(CONCEPTS) as embeddings:
        embedder = opened(embeddings)
        memories = MemoryService(db, embedder)
        await memories.prepare()
        router = AgentRouter(db, embedder, memories)
        await router.prepare()
        owner = (await person(db)).id
        definition = AgentDefinition(
            title="Kennel", description="", instructions="", tools=["*"], examples=["Walk the dog"]
        )
        await agents.create(db, owner, "kennel", definition)
        by_words = await router.route(owner, task, await candidates(db, owner))
        assert by_words.abstained, "its vectors are missing"
        await router.embed_missing()
        by_meaning = await router.route(owner, task, await candidates(db, owner))
        assert (by_meaning.agent, by_meaning.why) == ("kennel", "An example or the description is close in meaning.")
        await agents.change(db, owner, "kennel", {"examples": ["Walk the cat"]})
        changed = await candidates(db, owner)
        assert (await router.route(owner, task, changed)).abstained, "a new version has no vectors yet"
        embeddings.default = EmbeddingReply(status=500)
        assert (await router.route(owner, "Another puppy", changed)).abstained, "words answer meanwhile"
        await embedder.aclose()
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM agent_vectors") == 2
        await driver.execute("DELETE FROM agents WHERE user_id = $1", owner)
        assert await driver.fetchval("SELECT count(*) FROM agent_vectors") == 0
    await db.close()


async def test_an_agent_with_a_text_that_the_model_refuses_holds_up_no_other(server: InProcessServer) -> None:
    db = Database(server.database_url)
    async with serving_embeddings(CONCEPTS) as embeddings:
        embeddings.poison = "Poison"
        embedder = opened(embeddings)
        memories = MemoryService(db, embedder)
        router = AgentRouter(db, embedder, memories)
        await memories.prepare()
        await router.prepare()
        owner = (await person(db)).id
        for name, title, examples in (
            ("refused", "Poison", []),
            ("half", "Poison", ["Repair the car"]),
            ("kennel", "Kennel", ["Walk the dog"]),
        ):
            definition = AgentDefinition(title=title, description="", instructions="", tools=["*"], examples=examples)
            await agents.create(db, owner, name, definition)
        for task, expected in (("The puppy is hungry", "kennel"), ("My automobile", "half")):
            await router.route(owner, task, await candidates(db, owner))
            await router.embed_missing()
            assert (await router.route(owner, task, await candidates(db, owner))).agent == expected
        called = len(embeddings.requests)
        await router.embed_missing()
        assert len(embeddings.requests) == called, "refused texts are not tried again"
        await embedder.aclose()
    await db.close()


async def candidates(db: Database, owner: UUID) -> list[Any]:
    async with db.driver() as driver:
        return [*BUILT_IN, *await agents.routable(driver, owner)]
