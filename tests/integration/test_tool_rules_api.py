"""The tools that each caller is offered, and the action for each call, by rules and permissions.

Rules are set by the operator, the user and the thread.
"""

from typing import Any
from uuid import UUID

import pytest

from khala.domain.tools import ToolActor, ToolRule, ToolSpec
from khala.store.postgres.database import Database
from khala.tools.port import CallContext, CallResult
from khala.tools.tool_registry import ToolRegistry, ToolRegistryOptions
from tests.support.callers import owned_thread, person
from tests.support.in_process import InProcessServer
from tests.support.people import add_member
from tests.support.shared_server import server_fixture
from tests.support.tool_calls import call, guest, user

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False, KHALA_TOOLS_DENY="todo_complete")


def tool_registry(store: Database, *patterns: str, deny: str | None = None, connections: Any = None) -> ToolRegistry:
    rules = () if deny is None else (ToolRule(pattern=deny, action="deny"),)
    options = ToolRegistryOptions(offered=patterns or ("*",), rules=rules)
    return ToolRegistry(store, None, sandbox=None, connections=connections, options=options)


def rules(*patterns: tuple[str, str]) -> dict[str, Any]:
    return {"items": [{"pattern": pattern, "action": action} for pattern, action in patterns]}


async def actions(server: InProcessServer, who: dict[str, str], thread_id: UUID | str | None = None) -> dict[str, str]:
    params = {} if thread_id is None else {"threadId": str(thread_id)}
    answer = await server.http.get("/api/tools", headers=who, params=params)
    assert answer.status_code == 200, answer.text
    return {tool["name"]: tool["action"] for tool in answer.json()["items"]}


async def put(server: InProcessServer, path: str, who: dict[str, str], body: dict[str, Any]) -> int:
    answer = await server.http.put(f"/api{path}", headers=who, json=body)
    if answer.status_code == 200:
        assert (await server.http.get(f"/api{path}", headers=who)).json() == body
    return answer.status_code


async def test_a_user_is_offered_all_tools_and_a_guest_those_without_network(
    server: InProcessServer, store: Database
) -> None:
    everything = await actions(server, (await person(store)).headers)
    assert list(everything)[:8] == [
        "read_file", "write_file", "edit_file", "delete_file", "list_directory", "glob", "grep", "todo_add",
    ]  # fmt: skip
    assert (everything["read_file"], everything["delete_file"]) == ("allow", "ask")
    listed = (await server.http.get("/api/tools", headers=(await person(store)).headers)).json()["items"]
    assert [tool["name"] for tool in listed if tool.get("destructive")] == ["delete_file", "memory_forget"]
    assert not any("title" in tool for tool in listed)
    thread = await server.thread()
    for who, where in ((thread.headers, thread.id), ({}, None)):
        offered = await actions(server, who, where)
        assert "read_file" in offered
        assert not {"fetch_url", "run_code", "todo_complete"} & set(offered)
    assert "fetch_url" in everything


async def test_the_tools_of_a_thread_are_listed_only_for_its_readers(server: InProcessServer, store: Database) -> None:
    thread_id = await owned_thread(store, await person(store))
    answer = await server.http.get(f"/api/tools?threadId={thread_id}", headers=(await person(store)).headers)
    assert answer.status_code == 403


async def test_rules_change_the_action_for_calls(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    thread_id = await owned_thread(store, owner)
    assert await put(server, "/me/tool-rules", owner.headers, rules(("delete_*", "allow"), ("grep", "deny"))) == 200
    found = await actions(server, owner.headers)
    assert (found["delete_file"], "grep" in found) == ("allow", False)
    thread_rules = rules(("grep", "ask"), ("write_file", "deny"))
    assert await put(server, f"/threads/{thread_id}/tool-rules", owner.headers, thread_rules) == 200
    here = await actions(server, owner.headers, thread_id)
    assert (here["grep"], here["delete_file"], "write_file" in here) == ("ask", "allow", False)
    assert "write_file" in await actions(server, owner.headers)
    assert await put(server, "/me/tool-rules", owner.headers, rules()) == 200
    assert (await actions(server, owner.headers))["delete_file"] == "ask"


async def test_no_rule_permits_a_tool_that_the_operator_denies(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    assert await put(server, "/me/tool-rules", owner.headers, rules(("*", "allow"))) == 200
    found = await actions(server, owner.headers)
    assert (found["delete_file"], "todo_complete" in found) == ("allow", False)


async def test_a_guests_thread_has_rules_by_its_key(server: InProcessServer) -> None:
    thread = await server.thread()
    path = f"/threads/{thread.id}/tool-rules"
    assert await put(server, path, thread.headers, rules(("delete_file", "allow"), ("fetch_url", "allow"))) == 200
    found = await actions(server, thread.headers, thread.id)
    assert (found["delete_file"], "fetch_url" in found) == ("allow", False)
    assert await put(server, path, {}, rules()) == 403


async def test_rules_of_another_users_thread_can_only_restrict_a_members_tools(
    server: InProcessServer, store: Database
) -> None:
    owner, member = await person(store), await person(store)
    thread_id = await owned_thread(store, owner)
    await add_member(store, thread_id, member.id, "editor")
    path = f"/threads/{thread_id}/tool-rules"
    sent = rules(("delete_file", "allow"), ("glob", "deny"), ("grep", "allow"))
    assert await put(server, path, owner.headers, sent) == 200
    assert await put(server, path, member.headers, rules()) == 403
    assert await put(server, "/me/tool-rules", member.headers, rules(("grep", "deny"))) == 200
    theirs, mine = await actions(server, member.headers, thread_id), await actions(server, owner.headers, thread_id)
    assert (theirs["delete_file"], "glob" in theirs, "grep" in theirs) == ("ask", False, False)
    assert (mine["delete_file"], "glob" in mine, mine["grep"]) == ("allow", False, "allow")


async def test_a_token_with_only_the_write_scope_changes_no_rules(server: InProcessServer, store: Database) -> None:
    agent = await person(store, scopes=("read", "write"))
    thread_id = await owned_thread(store, agent)
    allow = rules(("*", "allow"))
    assert await put(server, "/me/tool-rules", agent.headers, allow) == 403
    assert await put(server, f"/threads/{thread_id}/tool-rules", agent.headers, allow) == 403
    guests = await server.thread()
    assert await put(server, f"/threads/{guests.id}/tool-rules", agent.headers | guests.headers, allow) == 403
    assert (await actions(server, agent.headers, thread_id))["delete_file"] == "ask"


@pytest.mark.parametrize(
    "items",
    [
        [{"pattern": "", "action": "ask"}],
        [{"pattern": "x" * 201, "action": "ask"}],
        [{"pattern": "\0", "action": "ask"}],
        [{"pattern": "x", "action": "maybe"}],
        [{"pattern": "x", "action": "ask"}] * 101,
        [{"action": "ask"}],
        "x",
    ],
)
async def test_invalid_rules_are_refused(server: InProcessServer, store: Database, items: Any) -> None:
    who = (await person(store)).headers
    assert await put(server, "/me/tool-rules", who, {"items": items}) == 400


class ServerTool:
    """A tool of an MCP server."""

    def __init__(self, name: str) -> None:
        self.spec = ToolSpec(name=name, description="", parameters={"type": "object"}, source=name.partition("__")[0])

    async def run(self, args: dict[str, Any], call: CallContext) -> CallResult:
        return CallResult(output="done")


class Servers:
    """A stand-in for the connections to MCP servers."""

    names = ("files",)

    def __init__(self, *tools: str) -> None:
        self._tools = tools

    def tools(self) -> dict[str, ServerTool]:
        return {name: ServerTool(name) for name in self._tools}


async def offered_names(box: ToolRegistry, actor: ToolActor, *patterns: str) -> list[str]:
    return list((await box.offer(actor, patterns or None)).tools)


async def test_tools_of_servers_come_after_built_in_ones_and_cannot_replace_them(store: Database) -> None:
    who = user((await person(store)).id)
    served = Servers("zeal__b", "files__delete_file", "read_file", "bad name", "alpha__a")
    found = await offered_names(tool_registry(store, connections=served), who)
    assert found[0] == "read_file"
    assert found[-3:] == ["alpha__a", "files__delete_file", "zeal__b"]
    assert "files" in tool_registry(store, connections=served).reserved_names
    denied = await offered_names(tool_registry(store, connections=served, deny="delete_file"), who)
    assert not [name for name in denied if "delete_file" in name]


async def test_patterns_of_the_operator_and_of_a_run_leave_tools_out(store: Database) -> None:
    who = user((await person(store)).id)
    assert await offered_names(tool_registry(store, "todo_*", "grep"), who) == [
        "grep",
        "todo_add",
        "todo_list",
        "todo_complete",
    ]
    assert await offered_names(tool_registry(store, "todo_*"), who, "*_list", "read_file", "") == ["todo_list"]
    box = ToolRegistry(store, None, sandbox=None, connections=None, options=ToolRegistryOptions(offered=()))
    assert await offered_names(box, who) == []


async def test_a_missing_permission_of_a_call_is_named(store: Database) -> None:
    fetch = (await tool_registry(store).offer(user((await person(store)).id))).tools["fetch_url"]
    visitor = guest((await person(store)).id)
    result = await call(fetch, visitor, url="http://127.0.0.1/")
    assert (result.ok, result.result.code) == (False, "forbidden")
    assert result.text == "fetch_url needs the permission network, which this caller does not have."
