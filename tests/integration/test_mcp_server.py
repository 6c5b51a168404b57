"""Khala as an MCP server: the official client works with it, and no caller exceeds its rights."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
import pytest_asyncio
from mcp import Client, MCPError

from khala.api.mcp import access_watch, call_results, concurrent_calls, tool_calls
from khala.api.mcp import server as mcp_server
from khala.api.mcp.offered_tools import McpToolCatalog
from khala.api.oauth import access_tokens
from khala.domain.access import SCOPES, Caller, Scope
from khala.domain.tools import ToolSpec
from khala.store.accounts import api_tokens
from khala.store.postgres.database import Database
from khala.store.tools import todos
from khala.tools.mcp import McpServerConfig
from khala.tools.port import CallContext, CallResult, Tool
from tests.clients.mcp_conformance import app
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.mcp_client import connected, use
from tests.support.official_mcp_client import client
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[InProcessServer]:
    folder: Path = tmp_path_factory.mktemp("mcp")
    silent = {"url": "http://127.0.0.1:1/mcp?token=hush-hush", "headers": {"X-Secret": "hush-hush"}}
    config = {"mcpServers": {"silent": silent}, "groups": {"mine": ["todo_*"], "security": None}}
    (folder / "mcp.json").write_text(json.dumps(config))
    async with shared(
        postgres_url,
        template,
        with_executor=False,
        KHALA_MCP_CONFIG=str(folder / "mcp.json"),
        KHALA_TOOLS_ASK="edit_*",
        KHALA_TOOLS_DENY="delete_file",
        KHALA_APP=app.MODULE,
    ) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


async def tool_names(mcp: Client) -> set[str]:
    return {tool.name for tool in (await mcp.list_tools()).tools}


async def with_scopes(store: Database, somebody: Person, *scopes: Scope) -> dict[str, str]:
    _, secret = await api_tokens.create(store, somebody.caller, "a program", scopes, None)
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_calls_tools(server: InProcessServer, store: Database, mode: str) -> None:
    owner = await person(store)
    async with client(server, owner.headers, mode=mode) as mcp:
        assert {"read_file", "write_file", "todo_add", "edit_file"} <= await tool_names(mcp)
        written = await mcp.call_tool("write_file", {"path": "plans.md", "content": "En taro Adun"})
        assert not written.is_error, written
        found = await mcp.call_tool("read_file", {"path": "plans.md"})
        assert "En taro Adun" in _text(found)
    async with client(server, (await person(store)).headers, mode=mode) as other:
        assert (await other.call_tool("read_file", {"path": "plans.md"})).is_error, (
            "another account does not see the file"
        )


async def test_a_group_offers_its_tools_and_no_others(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    async with client(server, owner.headers, "/tasks") as mcp:
        assert await tool_names(mcp) == {"todo_add", "todo_list", "todo_complete"}
        with pytest.raises(MCPError) as refused:
            await mcp.call_tool("read_file", {"path": "plans.md"})
        assert refused.value.code == types.INVALID_PARAMS
    async with client(server, owner.headers, "/mine") as mcp:
        assert await tool_names(mcp) == {"todo_add", "todo_list", "todo_complete"}
    for gone in ("/no-such-group", "/security"):
        assert (await _post(server, "tools/list", gone, owner.headers)).status_code == 404


async def test_tools_of_the_application_are_offered_to_accounts_that_may_write(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        assert _text(await mcp.call_tool("test_simple_text", {})) == "This is a simple text response for testing."
        mixed = await mcp.call_tool("test_multiple_content_types", {})
        assert [block.type for block in mixed.content] == ["text", "image", "resource"]
    async with client(server, await with_scopes(store, owner, "read")) as reader:
        assert "test_simple_text" not in await tool_names(reader)


async def test_groups_are_listed_with_the_tools_offered_to_the_caller(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    items = (await server.http.get("/groups", headers=owner.headers)).raise_for_status().json()["items"]
    groups = {item["name"]: item for item in items}
    assert set(groups) == {
        "core", "files", "tasks", "web", "code", "data", "memory", "agents", "planning", "browser", "devtools", "mine",
    }  # fmt: skip
    assert groups["tasks"]["tools"] == ["todo_add", "todo_list", "todo_complete"]
    assert (groups["files"]["path"], groups["files"]["title"]) == ("/mcp/files", "Files")
    assert "delete_file" not in groups["files"]["tools"], "the operator denies this tool"
    assert all(group["description"] for name, group in groups.items() if name != "mine")


async def test_bad_arguments_and_unknown_tools_fail_as_the_protocol_requires(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        wrong = await mcp.call_tool("read_file", {"path": 42})
        assert wrong.is_error
        assert "path" in _text(wrong)
        for unknown in ("no_such_tool", "delete_file"):
            with pytest.raises(MCPError) as refused:
                await mcp.call_tool(unknown, {})
            assert refused.value.code == types.INVALID_PARAMS
        assert (await mcp.call_tool("todo_list", {})).is_error is False


async def test_an_unknown_method_gets_method_not_found(server: InProcessServer) -> None:
    answer = await _post(server, "no/such/method")
    assert _error(answer)["code"] == types.METHOD_NOT_FOUND
    modern = await _post(server, "no/such/method", meta=True)
    assert _error(modern)["code"] == types.METHOD_NOT_FOUND


async def test_without_an_account_tools_can_be_listed_but_not_called(server: InProcessServer) -> None:
    async with client(server, mode="legacy") as mcp:
        await mcp.session.send_ping()
        listed = await tool_names(mcp)
        assert {"read_file", "todo_list"} <= listed
        assert not {"edit_file", "fetch_url", "run_code", "delete_file"} & listed
        with pytest.raises(MCPError) as refused:
            await mcp.call_tool("todo_list", {})
        assert (refused.value.code, "account" in refused.value.message) == (tool_calls.NEEDS_ACCOUNT, True)


async def test_an_anonymous_key_does_not_count_as_an_account(server: InProcessServer) -> None:
    thread = await server.thread()
    answer = await _post(server, "tools/call", headers=thread.headers, params={"name": "todo_list", "arguments": {}})
    assert _error(answer)["code"] == tool_calls.NEEDS_ACCOUNT


async def test_an_invalid_token_is_refused(server: InProcessServer) -> None:
    for bad in ("khala_nonsense", "nonsense"):
        answer = await _post(server, "tools/list", headers={"Authorization": f"Bearer {bad}"})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith('Bearer error="invalid_token", scope=')
    assert (await server.http.get("/mcp-servers", headers={"Authorization": "Bearer nonsense"})).status_code == 401


async def test_a_token_with_only_the_read_scope_calls_only_reading_tools(
    server: InProcessServer, store: Database
) -> None:
    somebody = await person(store)
    async with client(server, await with_scopes(store, somebody, "read")) as mcp:
        assert {"read_file", "todo_list", "grep"} <= await tool_names(mcp)
        assert not {"write_file", "edit_file", "todo_add", "fetch_url", "run_code"} & await tool_names(mcp)
        assert not (await mcp.call_tool("todo_list", {})).is_error
        with pytest.raises(MCPError):
            await mcp.call_tool("todo_add", {"text": "build a pylon"})
    answer = await _post(server, "tools/list", headers=await with_scopes(store, somebody, "account"))
    assert answer.status_code == 403
    async with client(server, await with_scopes(store, somebody, *SCOPES)) as mcp:
        assert {"edit_file", "fetch_url"} <= await tool_names(mcp), (
            "the client's user approves calls that need approval"
        )


async def test_the_group_memory_stores_finds_lists_and_forgets_for_its_caller_alone(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    async with client(server, owner.headers, "/memory") as mcp:
        assert await tool_names(mcp) == {"memory_store", "memory_search", "memory_list", "memory_forget"}
        stored = [await _memory(mcp, "memory_store", text=text) for text in ("Tassadar likes tea", "Rex is a dog")]
        assert (await _memory(mcp, "memory_search", query="who likes tea"))["memories"][0]["id"] == stored[0]["id"]
        newest = await _memory(mcp, "memory_list", limit=1)
        assert [memory["text"] for memory in newest["memories"]] == ["Rex is a dog"]
        older = await _memory(mcp, "memory_list", cursor=newest["nextCursor"])
        assert ([memory["text"] for memory in older["memories"]], "nextCursor" in older) == (
            ["Tassadar likes tea"],
            False,
        )
        assert not (await mcp.call_tool("memory_forget", {"id": stored[1]["id"]})).is_error
        assert len((await _memory(mcp, "memory_list"))["memories"]) == 1
    async with client(server, (await person(store)).headers, "/memory") as other:
        assert (await _memory(other, "memory_list")) == (await _memory(other, "memory_search", query="tea"))
        refused = await other.call_tool("memory_forget", {"id": stored[0]["id"]})
        assert (refused.is_error, _text(refused)) == (True, "There is no such memory.")
    async with client(server, await with_scopes(store, owner, "read"), "/memory") as reader:
        assert await tool_names(reader) == {"memory_search", "memory_list"}
        assert len((await _memory(reader, "memory_search", query="tea"))["memories"]) == 1


async def _memory(mcp: Client, name: str, **args: Any) -> dict[str, Any]:
    """The output of a call of a memory tool."""
    result = await mcp.call_tool(name, args)
    assert not result.is_error, result
    output: dict[str, Any] = json.loads(_text(result))
    return output


class ShoutingTool:
    """A tool whose output has the size and the kind that the arguments ask for."""

    ended = asyncio.Event()
    spec = ToolSpec(name="shout", description="Shouts.", parameters={"type": "object"})

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        call.progress("breathing in")
        if args["how"] == "for ever":
            await self._for_ever()
        await asyncio.sleep(0.05)
        if args["how"] == "text":
            return CallResult(output="a" * args["size"])
        for _ in range(args["size"] // 1000):
            await call.sink.write(b"a" * 1000)
        return CallResult(media_type=args["how"])

    async def _for_ever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.fixture
def shouting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tools(_: McpToolCatalog) -> dict[str, Tool]:
        return {"shout": ShoutingTool()}

    monkeypatch.setattr(McpToolCatalog, "tools", tools)


@pytest.mark.usefixtures("shouting")
async def test_a_large_output_is_truncated_with_a_note(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        for how in ("text", "text/csv"):
            output = _text(await mcp.call_tool("shout", {"how": how, "size": 1_000_000}))
            assert len(output) < call_results.MAX_RESULT_BYTES + 200
            assert output.endswith("[truncated: the first 262,144 of 1,000,000 bytes]")
            assert _text(await mcp.call_tool("shout", {"how": how, "size": 5000})) == "a" * 5000
        large = await mcp.call_tool("shout", {"how": "image/png", "size": 1_000_000})
        assert _text(large) == "[image/png, 1,000,000 bytes, omitted]"
        small = (await mcp.call_tool("shout", {"how": "image/png", "size": 3000})).content[0]
        assert isinstance(small, types.ImageContent)
        assert base64.b64decode(small.data) == b"a" * 3000


async def test_an_invalid_idempotency_key_is_ignored(server: InProcessServer, store: Database) -> None:
    owner = await person(store)

    async def added(key: object) -> None:
        meta = {mcp_server.IDEMPOTENCY_KEY_FIELD: key}
        params = {"name": "todo_add", "arguments": {"text": "Pylon"}, "_meta": meta}
        answer = await _post(server, "tools/call", headers=owner.headers, params=params)
        assert answer.status_code == 200
        assert 'isError":true' not in answer.text, answer.text

    for key in ("a\0b", "a\nb", "ключ", "a b", "", "k" * 201, 7):
        await added(key)
        await added(key)
    for _ in range(3):
        await added("call-1")
    async with store.driver() as driver:
        assert len(await todos.of_owner(driver, owner.id)) == 15


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_progress_reaches_the_client(server: InProcessServer, store: Database, mode: str) -> None:
    messages: list[str | None] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async with client(server, (await person(store)).headers, mode=mode) as mcp:
        await mcp.call_tool("shout", {"how": "text", "size": 1}, progress_callback=heard)
    assert messages == ["breathing in"]


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_disconnects_cancels_its_call(server: InProcessServer, store: Database, mode: str) -> None:
    ShoutingTool.ended = asyncio.Event()
    under_way = asyncio.Event()

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        under_way.set()

    async with client(server, (await person(store)).headers, mode=mode) as mcp:
        call = asyncio.create_task(mcp.call_tool("shout", {"how": "for ever", "size": 1}, progress_callback=heard))
        async with asyncio.timeout(10):
            await under_way.wait()
        call.cancel()
        await asyncio.wait({call})
    async with asyncio.timeout(10):
        await ShoutingTool.ended.wait()


@pytest.mark.usefixtures("shouting")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_call_ends_when_its_token_is_revoked(
    server: InProcessServer, store: Database, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_watch, "CHECK_INTERVAL_SECONDS", 0.05)
    ShoutingTool.ended = asyncio.Event()
    under_way = asyncio.Event()
    caller, other = await person(store), await person(store)
    checks: list[Caller] = []
    authenticate = access_tokens.authenticate

    async def counted(*request: Any) -> tuple[Caller, bool]:
        found = await authenticate(*request)
        checks.append(found[0])
        return found

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        under_way.set()

    monkeypatch.setattr(access_tokens, "authenticate", counted)
    async with client(server, caller.headers, mode=mode) as mcp, asyncio.timeout(20):
        call = asyncio.create_task(mcp.call_tool("shout", {"how": "for ever", "size": 1}, progress_callback=heard))
        await under_way.wait()
        await api_tokens.revoke(store, other.token_id, other.caller)
        checks.clear()
        while len(checks) < 2:
            await asyncio.sleep(0.01)
        assert not call.done(), "another token was revoked"
        await api_tokens.revoke(store, caller.token_id, caller.caller)
        result = await call
        assert (result.is_error, _text(result)) == (True, access_watch.ACCESS_ENDED)
        await ShoutingTool.ended.wait()


async def test_pages_of_other_sites_are_refused(server: InProcessServer) -> None:
    answer = await _post(server, "tools/list", headers={"Origin": "https://evil.example"})
    assert answer.status_code == 403


async def test_only_post_is_supported(server: InProcessServer) -> None:
    for method in ("GET", "DELETE", "PUT"):
        answer = await server.http.request(method, "/mcp", headers=HEADERS)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST"), method
    assert (await server.http.post("/mcp", content=b"{", headers=HEADERS)).status_code == 400
    assert (await server.http.post("/mcp", content=b"[]", headers=HEADERS)).status_code == 400
    too_much = b'{"a": "' + b"x" * (2 << 20) + b'"}'
    assert (await server.http.post("/mcp", content=too_much, headers=HEADERS)).status_code == 413
    # The SDK would take almost two seconds of the event loop for a megabyte of empty arrays.
    many = b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": [' + b"[]," * 20_000 + b"[]]}}"
    assert (await server.http.post("/mcp", content=many, headers=HEADERS)).status_code == 413


async def test_requests_count_towards_the_rate_limit(postgres_url: str, template: str) -> None:
    async with shared(postgres_url, template, with_executor=False, KHALA_REQUESTS_PER_MINUTE="3") as inside:
        statuses = [(await _post(inside, "tools/list")).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert (await inside.http.get("/groups")).status_code == 429
        assert (await inside.http.get("/health")).json() == {"ok": True}


async def test_mcp_servers_are_shown_to_accounts_without_their_secrets(
    server: InProcessServer, store: Database
) -> None:
    assert (await server.http.get("/mcp-servers")).status_code == 401
    headers = (await person(store)).headers
    async with asyncio.timeout(20):
        while True:
            answer = (await server.http.get("/mcp-servers", headers=headers)).raise_for_status()
            [silent] = answer.json()["items"]
            if silent["state"] == "failed":
                break
    assert "hush" not in answer.text
    assert (silent["name"], silent["transport"], silent["tools"], silent["connectedAt"]) == ("silent", "http", 0, None)
    assert silent["error"] == "The server does not respond at its address."
    assert silent["attempts"] >= 1


async def test_khala_can_use_another_khala(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    other = McpServerConfig(name="khala", url=f"{server.url}/mcp/tasks", headers=owner.headers)
    async with connected(other) as connections:
        assert set(connections.tools()) == {"khala__todo_add", "khala__todo_list", "khala__todo_complete"}
        assert (await use(connections, "khala__todo_list")).ok


async def test_many_calls_at_once_are_answered_or_refused(
    server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        answers = await asyncio.gather(*(mcp.call_tool("todo_list", {}) for _ in range(30)))
        refused = [answer for answer in answers if answer.is_error]
        assert all("at once" in _text(answer) for answer in refused)
        assert len(refused) < 30
    monkeypatch.setattr(concurrent_calls, "MAX_CONCURRENT_CALLS", 0)
    async with client(server, owner.headers) as mcp:
        assert "at once" in _text(await mcp.call_tool("todo_list", {}))


def _text(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


async def _post(
    server: InProcessServer,
    method: str,
    group: str = "",
    headers: dict[str, str] | None = None,
    *,
    params: dict[str, Any] | None = None,
    meta: bool = False,
) -> httpx.Response:
    """A request without the client; `meta` makes it one of the protocol version without a handshake."""
    more: dict[str, str] = {}
    sent = dict(params or {})
    if meta:
        version = "2026-07-28"
        sent["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        more = {"Mcp-Protocol-Version": version, "Mcp-Method": method}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}
    return await server.http.post(f"/mcp{group}", json=body, headers={**HEADERS, **more, **(headers or {})})


def _error(answer: httpx.Response) -> dict[str, Any]:
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = next(line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    error: dict[str, Any] = json.loads(text)["error"]
    return error
