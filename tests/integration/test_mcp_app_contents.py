"""Prompts and resources of the application over MCP: the official client finds, gets and reads them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import pytest_asyncio
from mcp import Client, MCPError

from khala.api.mcp import concurrent_calls, resources
from khala.store.accounts import api_tokens
from khala.store.postgres.database import Database
from tests.support import app_contents
from tests.support.callers import person
from tests.support.in_process import InProcessServer
from tests.support.official_mcp_client import client
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")
both = pytest.mark.parametrize("mode", ["legacy", "auto"])
GROUPS = '{"groups": {"shop": {"tools": ["catalog", "stock", "customer_*", "todo_list"]}}}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessServer]:
    config: Path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    config.write_text(GROUPS)
    env = {"KHALA_APP": app_contents.MODULE, "KHALA_MCP_CONFIG": str(config), "KHALA_TOOLS_DENY": "hidden_*"}
    async with shared(postgres_url, template, with_executor=False, **env) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


async def prompt_names(mcp: Client) -> set[str]:
    return {prompt.name for prompt in (await mcp.list_prompts()).prompts}


async def uris(mcp: Client) -> list[str]:
    return [resource.uri for resource in (await mcp.list_resources()).resources]


async def templates(mcp: Client) -> list[str]:
    return [template.uri_template for template in (await mcp.list_resource_templates()).resource_templates]


async def text_of(mcp: Client, uri: str) -> str:
    [content] = (await mcp.read_resource(uri)).contents
    assert isinstance(content, types.TextResourceContents)
    assert content.uri == uri
    return content.text


async def error_of(call: Awaitable[Any]) -> tuple[str, str]:
    """The code and the message with which the request is refused."""
    with pytest.raises(MCPError) as refused:
        await call
    return refused.value.error.data["code"], refused.value.error.message


@both
async def test_prompts_of_the_application_have_arguments_and_messages(
    server: InProcessServer, store: Database, mode: str
) -> None:
    async with client(server, (await person(store)).headers, mode=mode) as mcp:
        listed = {prompt.name: prompt for prompt in (await mcp.list_prompts()).prompts}
        letter = listed["customer_letter"]
        assert (letter.title, letter.description) == ("Write to a customer", "Write a letter.")
        assert [(one.name, one.description, one.required) for one in letter.arguments or []] == [
            ("customer", "The name.", True),
            ("tone", "How it sounds.", False),
            ("lines", "How long it is.", False),
        ]
        found = await mcp.get_prompt("customer_letter", {"customer": "Ann", "lines": "4"})
        assert found.messages == [
            types.PromptMessage(role="user", content=types.TextContent(text="Write 5 formal lines to Ann."))
        ]
        dialogue = (await mcp.get_prompt("dialogue")).messages
        assert [message.role for message in dialogue] == ["user", "assistant", "user"]
        embedded = dialogue[2].content
        assert isinstance(embedded, types.EmbeddedResource)
        assert (embedded.resource.uri, embedded.resource.mime_type) == ("shop://table", "text/csv")


@both
async def test_resources_of_the_application_are_listed_and_read(
    server: InProcessServer, store: Database, mode: str
) -> None:
    async with client(server, (await person(store)).headers, mode=mode) as mcp:
        assert {"shop://catalog", "shop://huge", "shop://crash"} <= set(await uris(mcp))
        assert (await templates(mcp))[:3] == [
            "shop://reports/{year}/{+path}", "shop://seasons/{season}", "shop://stock/{item}",
        ]  # fmt: skip
        assert await text_of(mcp, "shop://catalog") == '{"kettle":3,"cup":12}'
        assert await text_of(mcp, "shop://stock/kettle") == "3 for an account"
        [content] = (await mcp.read_resource("shop://reports/2025/a/b%20c.bin")).contents
        assert isinstance(content, types.BlobResourceContents)
        assert content.mime_type == "application/octet-stream"


async def test_errors_of_prompts_and_resources_have_codes(server: InProcessServer, store: Database) -> None:
    async with client(server, (await person(store)).headers) as mcp:
        for uri, code, words in (
            ("shop://stock/sofa", "not_found", "There is no sofa."),
            ("shop://stock/a/b", "not_found", "no such resource"),
            ("shop://reports/soon/x", "invalid_input", "year"),
            ("shop://huge", "payload_too_large", "1,048,576"),
            ("shop://crash", "unavailable", "internal error"),
            ("shop://" + "a" * 3_000, "not_found", "no such resource"),
        ):
            found, message = await error_of(mcp.read_resource(uri))
            assert (found, words in message) == (code, True), message
            assert "secret" not in message
        for name, arguments, code, words in (
            ("customer_letter", {}, "invalid_input", "customer"),
            ("customer_letter", {"customer": "Ann", "tone": "rude"}, "invalid_input", "tone"),
            ("customer_letter", {"customer": "Ann", "colour": "red"}, "invalid_input", "colour"),
            ("customer_letter", {"customer": "a" * 100_001}, "payload_too_large", "100,000"),
            ("broken_prompt", {}, "unavailable", "texts, files and messages"),
            ("slow_prompt", {}, "unavailable", "Timed out after 0.05 s."),
        ):
            found, message = await error_of(mcp.get_prompt(name, arguments))
            assert (found, words in message) == (code, True), message


async def test_guests_have_only_what_the_application_offers_them(server: InProcessServer) -> None:
    async with client(server) as mcp:
        assert "dialogue" in await prompt_names(mcp)
        assert "customer_letter" not in await prompt_names(mcp)
        assert await uris(mcp) == ["shop://catalog"]
        assert not [template for template in await templates(mcp) if template.startswith("shop://")]
        assert await text_of(mcp, "shop://catalog")
        assert (await error_of(mcp.read_resource("shop://stock/kettle")))[0] == "not_found"
        assert (await error_of(mcp.get_prompt("customer_letter", {"customer": "Ann"})))[0] == "not_found"


async def test_groups_rules_and_scopes_apply_to_prompts_and_resources(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    async with client(server, owner.headers, "/shop") as mcp:
        assert await prompt_names(mcp) == {"customer_letter"}
        assert await uris(mcp) == ["shop://catalog"]
        assert await templates(mcp) == ["shop://stock/{item}"]
        assert (await error_of(mcp.read_resource("shop://seasons/spring")))[0] == "not_found"
    async with client(server, owner.headers, "/files") as mcp:
        assert await prompt_names(mcp) == set()
        assert "shop://catalog" not in await uris(mcp)
    _, secret = await api_tokens.create(store, owner.caller, "a program", ["read"], None)
    async with client(server, {"Authorization": f"Bearer {secret}"}) as reader:
        assert "customer_letter" in await prompt_names(reader)
        assert await text_of(reader, "shop://stock/cup") == "12 for an account"
    rules = {"items": [{"pattern": "stock", "action": "deny"}, {"pattern": "customer_*", "action": "deny"}]}
    (await server.http.put("/api/me/tool-rules", json=rules, headers=owner.headers)).raise_for_status()
    async with client(server, owner.headers) as mcp:
        assert "shop://hidden" not in await uris(mcp), "the operator denies it"
        assert "customer_letter" not in await prompt_names(mcp)
        assert "shop://stock/{item}" not in await templates(mcp)
        assert (await error_of(mcp.read_resource("shop://stock/cup")))[0] == "not_found"


async def test_the_list_of_resources_has_pages_across_the_kinds(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PAGE_SIZE", 2)
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        await mcp.call_tool("write_file", {"path": "a.md", "content": "a"})
        pages: list[list[str]] = []
        cursor: str | None = None
        while True:
            page = await mcp.list_resources(cursor=cursor)
            pages.append([resource.uri for resource in page.resources])
            cursor = page.next_cursor
            if cursor is None:
                break
        assert pages == [["shop://catalog", "shop://crash"], ["shop://huge", "khala://files/a.md"]]


async def test_arguments_with_a_fixed_set_of_values_are_completed(server: InProcessServer, store: Database) -> None:
    async with client(server, (await person(store)).headers) as mcp:
        for ref, argument, value, values in (
            (types.PromptReference(name="customer_letter"), "tone", "fr", ["friendly"]),
            (types.PromptReference(name="customer_letter"), "customer", "A", []),
            (types.ResourceTemplateReference(uri="shop://seasons/{season}"), "season", "s", ["spring", "summer"]),
        ):
            found = await mcp.complete(ref, {"name": argument, "value": value})
            assert (found.completion.values, found.completion.total) == (values, len(values))
        unknown = types.ResourceTemplateReference(uri="shop://none/{x}")
        assert (await error_of(mcp.complete(unknown, {"name": "x", "value": ""})))[0] == "not_found"


async def test_calls_of_prompts_and_resources_at_once_are_bounded(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_calls, "MAX_CONCURRENT_CALLS", 0)
    async with client(server, (await person(store)).headers) as mcp:
        assert (await error_of(mcp.read_resource("shop://catalog")))[0] == "rate_limited"
        assert (await error_of(mcp.get_prompt("dialogue")))[0] == "rate_limited"


async def test_the_lists_announce_no_changes(server: InProcessServer, store: Database) -> None:
    async with asyncio.timeout(20), client(server, (await person(store)).headers, mode="legacy") as mcp:
        found = mcp.session.server_capabilities
        assert found is not None
        for capability in (found.tools, found.prompts, found.resources):
            assert capability is not None
            assert not capability.list_changed
