"""Agents over REST: who has which, their versions, and what their runs are told, offered and allowed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from khala.domain import agents as laws
from khala.domain.agent_seeds import BUILT_IN, BY_NAME
from khala.store.agents import agents
from khala.store.postgres.database import Database
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import Account, account, own_thread, user_id
from tests.support.client import Thread, client
from tests.support.in_process import InProcessServer, khala
from tests.support.providers import Server, serving
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

POET = {"name": "poet", "title": "Poet", "instructions": "Answer in rhyme.", "tools": ["grep", "todo_*"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[Server]:
    async with serving() as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, provider: Server) -> AsyncIterator[InProcessServer]:
    env: dict[str, Any] = {
        "KHALA_MODEL": "openai:test", "OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{provider.url}/v1",
        "KHALA_SYSTEM_PROMPT": "Be brief.", "KHALA_MODELS": "openai:small,openai:spare",
    }  # fmt: skip
    async with shared(postgres_url, template, **env) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def who(server: InProcessServer) -> AsyncIterator[Account]:
    async with account(server) as made:
        yield made


async def create(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    made = await http.post("/api/agents", json=POET | fields)
    assert made.status_code == 201, made.text
    return dict(made.json())


def assert_invalid(answer: httpx.Response, path: str) -> None:
    """The answer refuses the value at this path."""
    problem = assert_problem(answer, 400, "invalid_input")
    assert [error["path"] for error in problem["errors"]] == [path]


async def names(http: httpx.AsyncClient) -> list[str]:
    return [agent["name"] for agent in (await http.get("/api/agents")).raise_for_status().json()["items"]]


async def answered(thread: Thread, provider: Server, **options: Any) -> dict[str, Any]:
    """Send a message with these options; returns the body of the request to the model."""
    sent = await thread.send("Hello", options=options)
    await thread.ended(sent["runId"])
    return dict(provider.calls[-1].body)


def system_of(body: Mapping[str, Any]) -> str:
    return str(body["messages"][0]["content"])


def tools_of(body: Mapping[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body.get("tools", [])}


async def test_an_agent_is_created_changed_and_deleted(who: Account) -> None:
    made = await create(who.http, budget={"usd": "0.5"}, fallbacks=["openai:small"])
    assert made == POET | {
        "description": "", "examples": [], "fallbacks": ["openai:small"], "budget": {"usd": "0.5"}, "version": 1,
        "owner": who.id, "visibility": "private",
    }  # fmt: skip
    assert (await who.http.get("/api/agents/poet")).json() == made
    assert_problem(await who.http.post("/api/agents", json=POET), 409, "conflict")
    changed = await who.http.patch("/api/agents/poet", json={"instructions": "Answer in haiku.", "budget": None})
    newer = {key: value for key, value in made.items() if key != "budget"}
    assert changed.json() == newer | {"instructions": "Answer in haiku.", "version": 2}
    same = await who.http.patch("/api/agents/poet", json={"instructions": "Answer in haiku."})
    assert same.json()["version"] == 2, "there is no difference"
    assert (await who.http.delete("/api/agents/poet")).status_code == 204
    for answer in (
        await who.http.get("/api/agents/poet"),
        await who.http.delete("/api/agents/poet"),
        await who.http.patch("/api/agents/poet", json={"title": "Bard"}),
    ):
        assert_problem(answer, 404, "not_found")
    assert (await create(who.http))["version"] == 3, "a version never means two definitions"


async def test_an_agent_is_its_owners_alone(who: Account, server: InProcessServer) -> None:
    await create(who.http)
    async with account(server) as other:
        assert "poet" not in await names(other.http)
        assert (await other.http.get("/api/agents/poet")).status_code == 404
        assert (await other.http.patch("/api/agents/poet", json={"title": "Bard"})).status_code == 404
        assert (await other.http.delete("/api/agents/poet")).status_code == 404
        refused = await (await own_thread(other)).post("send", {"text": "Hi", "options": {"agent": "poet"}})
        assert_invalid(refused, "options.agent")
    assert (await who.http.get("/api/agents/poet")).json()["title"] == "Poet"


async def shared_link(http: httpx.AsyncClient, name: str = "poet") -> str:
    made = await http.post(f"/api/agents/{name}/link")
    assert made.status_code == 201, made.text
    return str(made.json()["link"])


async def test_a_link_lets_others_read_and_use_an_agent_but_not_change_it(
    who: Account, server: InProcessServer, provider: Server
) -> None:
    await create(who.http)
    link = await shared_link(who.http)
    assert (await who.http.get("/api/agents/poet")).json()["visibility"] == "link"
    async with account(server) as other:
        seen = (await other.http.get(f"/api/agents/{link}")).raise_for_status().json()
        assert seen == (await who.http.get("/api/agents/poet")).json()
        assert "poet" not in await names(other.http), "it is no agent of theirs"
        for method in ("PATCH", "DELETE"):
            assert_problem(await other.http.request(method, f"/api/agents/{link}", json={}), 404, "not_found")
        assert_problem(await other.http.post(f"/api/agents/{link}/link"), 404, "not_found")
        thread = await own_thread(other)
        assert "Answer in rhyme." in system_of(await answered(thread, provider, agent=link))
        await who.http.patch("/api/agents/poet", json={"instructions": "Answer in haiku."})
        assert "Answer in haiku." in system_of(await answered(thread, provider, agent=link)), "the current version"


async def test_no_run_stores_the_link_of_its_agent(who: Account, server: InProcessServer, provider: Server) -> None:
    await create(who.http)
    link = await shared_link(who.http)
    await answered(await own_thread(who), provider, agent=link)
    db = Database(server.database_url)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT options->>'agent' FROM runs ORDER BY created_at DESC LIMIT 1") == "poet"
        assert await driver.fetchval("SELECT count(*) FROM agent_links WHERE key_hash = $1", link.encode()) == 0
    await db.close()


@pytest.mark.parametrize("end", ["replaced", "revoked", "agent deleted", "account deleted"])
async def test_a_link_works_until_it_is_replaced_or_revoked(who: Account, server: InProcessServer, end: str) -> None:
    await create(who.http)
    link = await shared_link(who.http)
    match end:
        case "replaced":
            assert await shared_link(who.http) != link
        case "revoked":
            for _ in range(2):
                assert (await who.http.delete("/api/agents/poet/link")).status_code == 204
            assert (await who.http.get("/api/agents/poet")).json()["visibility"] == "private"
        case "agent deleted":
            await who.http.delete("/api/agents/poet")
            assert (await create(who.http))["visibility"] == "private", "a new agent of this name is not shared"
        case _:
            gone = await who.http.request("DELETE", "/api/me", json={"password": "en taro adun"})
            assert gone.status_code == 204
    async with account(server) as other:
        assert_problem(await other.http.get(f"/api/agents/{link}"), 404, "not_found")
        refused = await (await own_thread(other)).post("send", {"text": "Hi", "options": {"agent": link}})
        assert_invalid(refused, "options.agent")


async def test_a_guest_uses_a_shared_agent_only_if_guests_have_all_of_its_tools(
    who: Account, server: InProcessServer, provider: Server
) -> None:
    await create(who.http, tools=["grep"])
    await create(who.http, name="author", tools=["grep", "memory_store", "fetch_url"])
    for_all, for_accounts = [await shared_link(who.http, name) for name in ("poet", "author")]
    async with client(server.url) as guest:
        assert (await guest.get(f"/api/agents/{for_all}")).json()["name"] == "poet"
        assert_problem(await guest.get(f"/api/agents/{for_accounts}"), 404, "not_found")
        thread = await Thread.create(guest)
        assert "Answer in rhyme." in system_of(await answered(thread, provider, agent=for_all))
        assert_invalid(await thread.post("send", {"text": "Hi", "options": {"agent": for_accounts}}), "options.agent")


async def test_a_completion_names_its_agent_in_a_header(who: Account, provider: Server) -> None:
    await create(who.http)
    body = {"model": "khala", "messages": [{"role": "user", "content": "Hello"}]}
    for name in ("poet", await shared_link(who.http)):
        told = await who.http.post("/v1/chat/completions", json=body, headers={"x-khala-agent": name})
        assert told.status_code == 200, told.text
        assert "Answer in rhyme." in system_of(provider.calls[-1].body)
    for name in ("nobody", "x" * 64):
        refused = await who.http.post("/v1/chat/completions", json=body, headers={"x-khala-agent": name})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "x-khala-agent")


async def test_an_own_agent_hides_the_built_in_one(who: Account) -> None:
    assert await names(who.http) == sorted(BY_NAME)
    await create(who.http, name="writer")
    assert await names(who.http) == sorted(BY_NAME)
    assert (await who.http.get("/api/agents/writer")).json()["title"] == "Poet"
    await who.http.delete("/api/agents/writer")
    assert (await who.http.get("/api/agents/writer")).json() == msgspec.json.decode(
        msgspec.json.encode(BY_NAME["writer"])
    )


async def test_a_guest_has_only_agents_whose_tools_guests_have(server: InProcessServer) -> None:
    thread = await server.thread()
    async with client(server.url) as http:
        shown = await names(http)
        assert "reviewer" in shown
        assert "researcher" not in shown, "it fetches pages"
        assert set(shown) < {agent.name for agent in BUILT_IN}
        assert (await http.get("/api/agents/researcher")).status_code == 404
        assert (await http.post("/api/agents", json=POET)).status_code == 401
    refused = await thread.post("send", {"text": "Hi", "options": {"agent": "researcher"}})
    assert_invalid(refused, "options.agent")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"name": "Poet"}, "name"),
        ({"name": "auto"}, "name"),
        ({"name": "default"}, "name"),
        ({"title": ""}, "title"),
        ({"description": "x" * 1_001}, "description"),
        ({"instructions": "x" * 8_001}, "instructions"),
        ({"instructions": "a\0"}, "instructions"),
        ({"tools": ["x"] * 65}, "tools"),
        ({"tools": [""]}, "tools[0]"),
        ({"examples": ["x"] * 21}, "examples"),
        ({"examples": ["x" * 501]}, "examples[0]"),
        ({"model": "openai:unknown"}, "model"),
        ({"fallbacks": ["openai:small", "openai:unknown"]}, "fallbacks[1]"),
        ({"fallbacks": ["openai:small"] * 9}, "fallbacks"),
        ({"budget": {"usd": "-1"}}, "budget"),
    ],
)
async def test_a_field_out_of_bounds_is_named(who: Account, fields: dict[str, Any], path: str) -> None:
    assert_invalid(await who.http.post("/api/agents", json=POET | fields), path)
    assert "poet" not in await names(who.http)


@pytest.mark.parametrize("name", ["nobody", "", "Writer", "default"])
async def test_a_send_to_an_unknown_agent_is_refused(who: Account, name: str) -> None:
    refused = await (await own_thread(who)).post("send", {"text": "Hi", "options": {"agent": name}})
    assert_invalid(refused, "options.agent")


async def test_a_run_has_the_instructions_the_tools_and_the_model_of_its_agent(who: Account, provider: Server) -> None:
    await create(who.http, model="openai:small")
    thread = await own_thread(who)
    body = await answered(thread, provider, agent="poet", instructions="In French.")
    assert system_of(body) == "Be brief.\n\nAnswer in rhyme.\n\nIn French."
    assert tools_of(body) == {"grep", "todo_add", "todo_list", "todo_complete"}
    assert body["model"] == "small"
    body = await answered(thread, provider, agent="poet", tools=["todo_list", "read_file"], model="openai:test")
    assert tools_of(body) == {"todo_list"}, "the tools that both allow"
    assert body["model"] == "test"


@pytest.mark.parametrize("options", [{}, {"agent": "auto"}])
async def test_without_a_named_agent_the_default_one_answers(
    who: Account, provider: Server, options: dict[str, Any]
) -> None:
    await create(who.http, model="openai:small")
    body = await answered(await own_thread(who), provider, **options)
    assert system_of(body) == "Be brief."
    assert {"grep", "read_file", "write_file"} <= tools_of(body)
    assert body["model"] == "test"


async def test_a_built_in_agent_answers(who: Account, provider: Server) -> None:
    body = await answered(await own_thread(who), provider, agent="reviewer")
    assert system_of(body) == f"Be brief.\n\n{BY_NAME['reviewer'].instructions}"
    assert "write_file" not in tools_of(body)
    assert "read_file" in tools_of(body)


async def test_the_lower_limit_of_an_agents_and_a_runs_budget_applies(who: Account, server: InProcessServer) -> None:
    await create(who.http, budget={"toolCalls": 0, "tokens": 5_000})
    sent = await (await own_thread(who)).send("Hi", options={"agent": "poet", "budget": {"tokens": 9_000, "usd": "1"}})
    db = Database(server.database_url)
    async with db.driver() as driver:
        stored = await driver.fetchval("SELECT options::text FROM runs WHERE id = $1", sent["runId"])
    await db.close()
    options = msgspec.json.decode(stored)
    assert options["budget"] == {"toolCalls": 0, "tokens": 5_000, "usd": "1"}
    assert (options["agent"], options["agentVersion"]) == ("poet", 1)


async def test_a_client_cannot_choose_the_version(who: Account) -> None:
    thread = await own_thread(who)
    for field in ("agentId", "agentVersion"):
        refused = await thread.post("send", {"text": "Hi", "options": {"agent": "writer", field: None}})
        assert_invalid(refused, f"options.{field}")


async def test_a_queued_run_keeps_the_version_with_which_it_was_sent(database_url: str) -> None:
    async with serving() as provider:
        env: dict[str, Any] = {
            "KHALA_MODEL": "openai:test",
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": f"{provider.url}/v1",
        }
        async with khala(database_url, with_executor=False, **env) as server, account(server) as who:
            await create(who.http, tools=["todo_list"])
            thread = await own_thread(who)
            changed, deleted = await thread.send("One", options={"agent": "poet"}), await own_thread(who)
            await who.http.patch("/api/agents/poet", json={"instructions": "Answer in prose.", "tools": ["*"]})
            later = await deleted.send("Two", options={"agent": "poet"})
            await who.http.delete("/api/agents/poet")
            async with khala(database_url, **env):
                await thread.ended(changed["runId"])
                await deleted.ended(later["runId"])
            by_text = {call.body["messages"][-1]["content"]: call.body for call in provider.calls}
            assert system_of(by_text["One"]).endswith("Answer in rhyme.")
            assert tools_of(by_text["One"]) == {"todo_list"}
            assert system_of(by_text["Two"]).endswith("Answer in prose.")
            assert "read_file" in tools_of(by_text["Two"])


async def test_a_run_whose_version_is_gone_ends_with_an_error(database_url: str) -> None:
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server, account(server) as who:
        await create(who.http)
        thread = await own_thread(who)
        sent = await thread.send("Hi", options={"agent": "poet"})
        async with db.driver() as driver:
            await driver.execute("DELETE FROM agents")
        async with khala(database_url):
            await thread.ended(sent["runId"])
        errors = [part["data"]["code"] for part in await thread.parts(sent["runId"]) if part["kind"] == "error"]
        assert errors == ["agent_not_found"]
    await db.close()


async def test_old_versions_are_deleted_unless_an_active_run_uses_them(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "MAX_KEPT_VERSIONS", 3)
    db = Database(database_url)
    async with khala(database_url, with_executor=False) as server, account(server) as who:
        await create(who.http, name="bard")
        await create(who.http)
        thread = await own_thread(who)
        await thread.send("Hi", options={"agent": "poet"})
        for number in range(6):
            await who.http.patch("/api/agents/poet", json={"title": f"Poet {number}"})
        async with db.driver() as driver:
            query = "SELECT name, version FROM agents WHERE user_id = $1 ORDER BY name, version"
            kept = [tuple(row) for row in await driver.fetch(query, user_id(who))]
        assert kept == [("bard", 1), ("poet", 1), ("poet", 5), ("poet", 6), ("poet", 7)]
    await db.close()


async def test_concurrent_changes_each_make_a_version_and_the_limit_holds(
    who: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(who.http)
    titles = [f"Poet {number}" for number in range(6)]
    answers = await asyncio.gather(*(who.http.patch("/api/agents/poet", json={"title": title}) for title in titles))
    assert sorted(answer.json()["version"] for answer in answers) == [2, 3, 4, 5, 6, 7]
    monkeypatch.setattr(agents, "MAX_AGENTS", 3)
    fields = [POET | {"name": f"poet-{number}"} for number in range(5)]
    made = await asyncio.gather(*(who.http.post("/api/agents", json=body) for body in fields))
    assert sorted(answer.status_code for answer in made) == [201, 201, 409, 409, 409]
    assert laws.MAX_AGENTS == 100


async def test_the_agents_of_a_deleted_account_are_deleted(who: Account, server: InProcessServer) -> None:
    await create(who.http)
    gone = await who.http.request("DELETE", "/api/me", json={"password": "en taro adun"})
    assert gone.status_code == 204, gone.text
    db = Database(server.database_url)
    async with db.driver() as driver:
        assert await driver.fetchval("SELECT count(*) FROM agents WHERE user_id = $1", user_id(who)) == 0
    await db.close()
