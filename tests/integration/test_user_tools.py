"""Tools of users: none runs before its user approves it, and a tool can access only its arguments."""

import asyncio
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.domain.tools import ToolActor
from khala.store.postgres.database import Database
from khala.store.tools import user_tools
from khala.store.tools.user_tools import UserToolDefinition
from khala.tools.port import Tool
from khala.tools.sandbox import Sandbox, missing_requirement
from khala.tools.tool_registry import ToolRegistry, ToolRegistryOptions
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture
from tests.support.tool_calls import call, user

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOUT: dict[str, Any] = {
    "name": "shout",
    "description": "Say it in capitals.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "language": "python",
    "code": "import json, sys\nprint(json.dumps({'said': json.load(sys.stdin)['text'].upper()}))",
}

server = server_fixture(with_executor=False)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tool_registry(store: Database) -> ToolRegistry:
    sandbox = await Sandbox.find()
    assert sandbox is not None, missing_requirement()
    return ToolRegistry(store, None, sandbox=sandbox, connections=None, options=ToolRegistryOptions())


class ToolAuthor:
    """A user who creates tools over REST."""

    def __init__(self, server: InProcessServer, who: Person) -> None:
        self.http = server.http
        self.who = who

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self.http.request(method, f"/api/tools{path}", json=body, headers=headers or self.who.headers)

    async def make(self, **changes: Any) -> dict[str, Any]:
        answer = await self.ask("POST", "", SHOUT | changes)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def decide(self, name: str, *, approved: bool = True, **more: Any) -> httpx.Response:
        return await self.ask("POST", f"/{name}/decision", {"approved": approved} | more)

    async def usable(self, tool_registry: ToolRegistry, **changes: Any) -> Tool:
        """A tool of this kind, approved and offered."""
        made = await self.make(**changes)
        assert (await self.decide(made["name"])).status_code == 200
        return (await tool_registry.offer(self.actor)).tools[made["name"]]

    @property
    def actor(self) -> ToolActor:
        return user(self.who.id)


@pytest_asyncio.fixture(loop_scope="module")
async def author(server: InProcessServer, store: Database) -> ToolAuthor:
    return ToolAuthor(server, await person(store))


async def test_a_tool_is_offered_after_its_users_approval_and_only_to_that_user(
    author: ToolAuthor, store: Database, tool_registry: ToolRegistry
) -> None:
    made = await author.make()
    assert (made["state"], "decidedAt" in made) == ("pending", False)
    assert "shout" not in (await tool_registry.offer(author.actor)).tools
    assert (await author.decide("shout")).json()["state"] == "approved"
    offered = (await tool_registry.offer(author.actor)).tools
    assert (offered["shout"].spec.source, *offered["shout"].spec.permissions) == ("user", "code")
    assert "shout" not in (await tool_registry.offer(user((await person(store)).id))).tools
    result = await call(offered["shout"], author.actor, text="en taro adun")
    assert result.json == {"said": "EN TARO ADUN"}
    assert "text: required" in (await call(offered["shout"], author.actor)).text


async def test_the_first_decision_on_a_tool_is_final(author: ToolAuthor, tool_registry: ToolRegistry) -> None:
    await author.make()
    assert (await author.decide("none")).status_code == 404
    assert (await author.decide("shout", approved=False)).json()["state"] == "rejected"
    assert (await author.decide("shout", approved=False)).status_code == 200
    refused = await author.decide("shout")
    assert (refused.status_code, refused.json()["code"]) == (409, "already_decided")
    assert "shout" not in (await tool_registry.offer(author.actor)).tools
    assert (await author.ask("DELETE", "/shout")).status_code == 204
    assert (await author.ask("DELETE", "/shout")).status_code == 404
    await author.make()
    assert (await author.decide("shout")).status_code == 200


async def test_one_of_two_concurrent_decisions_on_a_tool_is_final(author: ToolAuthor) -> None:
    await author.make()
    words = await asyncio.gather(*(author.decide("shout", approved=number % 2 == 0) for number in range(10)))
    assert sorted(answer.status_code for answer in words) == [200] * 5 + [409] * 5


async def test_an_approval_applies_only_to_the_shown_version_of_a_tool(author: ToolAuthor) -> None:
    seen = await author.make()
    await author.ask("DELETE", "/shout")
    await author.make(code="print('something else')")
    refused = await author.decide("shout", digest=seen["digest"])
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    [mine] = (await author.ask("GET", "/mine")).json()["items"]
    assert mine["code"] == "print('something else')"
    assert (await author.decide("shout", digest=mine["digest"])).status_code == 200


async def test_a_token_with_only_the_write_scope_creates_tools_but_cannot_approve_them(
    server: InProcessServer, store: Database
) -> None:
    agent = ToolAuthor(server, await person(store, scopes=("read", "write")))
    await agent.make()
    assert (await agent.decide("shout")).status_code == 403
    assert (await agent.ask("GET", "/mine")).json()["items"][0]["state"] == "pending"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"name": "read_file"}, "name"),
        ({"name": "run_code"}, "name"),
        ({"name": "github__shout"}, "name"),
        ({"name": "1shout"}, "name"),
        ({"name": "s" * 65}, "name"),
        ({"name": "sho ut"}, "name"),
        ({"name": ""}, "name"),
        ({"description": ""}, "description"),
        ({"parameters": {"type": "strin"}}, "parameters"),
        ({"parameters": {"type": "object", "properties": {"a": {"$ref": "http://x"}}}}, "parameters"),
        ({"parameters": {"type": "object", "description": "\0"}}, "parameters"),
        ({"code": " "}, "code"),
        ({"code": "ä" * 40_000}, "code"),
        ({"code": "\0"}, "code"),
        ({"permissions": ["network"]}, "permissions"),
        ({"permissions": ["code", "fs"]}, "permissions"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": 61}, "timeout"),
        ({"language": "shell"}, "language"),
    ],
)
async def test_an_invalid_tool_is_refused_with_the_reason(
    author: ToolAuthor, changes: dict[str, Any], path: str
) -> None:
    answer = await author.ask("POST", "", SHOUT | changes)
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, path), answer.text


async def test_a_name_that_is_taken_is_a_conflict(author: ToolAuthor) -> None:
    answers = await asyncio.gather(*(author.ask("POST", "", SHOUT) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409, 409]


async def test_the_number_of_a_users_tools_is_limited(author: ToolAuthor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khala.store.tools.user_tools.MAX_USER_TOOLS", 3)
    answers = await asyncio.gather(*(author.ask("POST", "", SHOUT | {"name": f"tool{n}"}) for n in range(6)))
    assert sorted(answer.status_code for answer in answers) == [201] * 3 + [409] * 3


async def test_a_tool_that_was_changed_or_deleted_since_it_was_offered_does_not_run(
    author: ToolAuthor, tool_registry: ToolRegistry
) -> None:
    tool = await author.usable(tool_registry)
    await author.ask("DELETE", "/shout")
    assert (await call(tool, author.actor, text="x")).result.code == "not_found"
    await author.make(description="Something else.")
    await author.decide("shout")
    assert (await call(tool, author.actor, text="x")).result.code == "not_found"


async def test_a_programs_output_is_json_or_text_and_a_long_one_goes_to_the_sink(
    author: ToolAuthor, tool_registry: ToolRegistry
) -> None:
    plain = await author.usable(tool_registry, name="plain", code="print('En taro', end='')")
    assert (await call(plain, author.actor, text="x")).result.output == "En taro"
    long = await author.usable(tool_registry, name="long", code="print('x' * 200_000, end='')")
    result = await call(long, author.actor, text="x")
    assert (result.result.output, result.content) == (None, b"x" * 200_000)


async def test_a_program_that_fails_or_times_out_is_a_failure_with_its_reason(
    author: ToolAuthor, tool_registry: ToolRegistry
) -> None:
    crash = await author.usable(tool_registry, name="crash", code="raise ValueError('no pylon')")
    result = await call(crash, author.actor, text="x")
    assert (result.ok, result.result.code) == (False, "failed")
    assert "ValueError: no pylon" in result.text
    slow = await author.usable(tool_registry, name="slow", code="import time\ntime.sleep(60)", timeout=1)
    result = await call(slow, author.actor, text="x")
    assert (result.result.code, result.text) == ("timeout", "Timed out after 1 s.")


async def test_a_program_reaches_no_network_and_none_of_our_files(
    author: ToolAuthor, tool_registry: ToolRegistry, server: InProcessServer
) -> None:
    port = server.url.rpartition(":")[2]
    code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)"
    result = await call(await author.usable(tool_registry, name="reach", code=code), author.actor, text="x")
    assert not result.ok
    look = "import os\nprint(os.environ.get('DATABASE_URL'), os.path.exists('/work'), os.path.exists('/etc/shadow'))"
    result = await call(await author.usable(tool_registry, name="look", code=look), author.actor, text="x")
    assert result.text.strip() == "None False False"


async def test_javascript_is_run_too(author: ToolAuthor, tool_registry: ToolRegistry) -> None:
    code = "let s=''; process.stdin.on('data', d => s += d).on('end', () => console.log(JSON.parse(s).text.length))"
    tool = await author.usable(tool_registry, language="javascript", code=code)
    assert (await call(tool, author.actor, text="four")).result.output == 4


DRAFT_7 = "http://json-schema.org/draft-07/schema#"
HOSTILE: dict[str, dict[str, Any]] = {
    "nested draft": {"properties": {"a": {"$schema": DRAFT_7, "pattern": "^(a+)+$"}}},
    "many types": {"properties": {"a": {"type": ["a", *range(6000)]}}},
    "no schema": {"title": "a", "properties": {"a": {"$ref": "#/title"}}},
    "doubled": {
        "$ref": "#/$defs/d0",
        "$defs": {**{f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(30)}, "d30": {}},
    },
    "remote": {"properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
}


@pytest.mark.parametrize("parameters", HOSTILE.values(), ids=HOSTILE)
async def test_a_schema_that_would_block_the_server_is_refused(author: ToolAuthor, parameters: dict[str, Any]) -> None:
    answer = await author.ask("POST", "", SHOUT | {"name": "hostile", "parameters": {"type": "object"} | parameters})
    assert answer.status_code == 400, answer.text
    problem = answer.json()
    assert (problem["code"], [error["path"] for error in problem["errors"]]) == ("invalid_input", ["parameters"])
    assert len(problem["errors"][0]["message"]) < 300


async def test_a_tool_that_was_approved_before_its_schema_was_refused_fails_as_bad_arguments(
    author: ToolAuthor, store: Database, tool_registry: ToolRegistry
) -> None:
    definition = UserToolDefinition(
        name="old",
        description="From before an upgrade.",
        parameters={"type": "object"} | HOSTILE["nested draft"],
        language="python",
        permissions=("code",),
    )
    await user_tools.add(store, author.who.id, definition, "print(1)")
    await user_tools.decide(store, author.who.id, "old", approve=True, digest=None)
    tool = (await tool_registry.offer(author.actor)).tools["old"]
    async with asyncio.timeout(20):
        result = await call(tool, author.actor, a="a" * 60 + "b")
    assert result.text == "The schema of old can't be used. Only the whole schema may have a $schema, not a part of it."
    assert result.result.code == "bad_arguments"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [2**62 + at for at in range(12_000)]),
        ({"items": {"anyOf": [{"type": "integer"}] * 300}}, ["x"] * 20_000),
        ({"pattern": "[ab]*a[ab]{300}c"}, "ab" * 100_000),
    ],
    ids=["items that hash alike", "millions of errors", "a pattern of many states"],
)
async def test_the_server_answers_while_arguments_are_checked(
    author: ToolAuthor, tool_registry: ToolRegistry, schema: dict[str, Any], value: Any
) -> None:
    name = f"heavy{len(str(value))}"
    tool = await author.usable(tool_registry, name=name, parameters={"type": "object", "properties": {"a": schema}})
    checking = asyncio.create_task(call(tool, author.actor, a=value))
    # The server and the call share this event loop: it answers many times before the check has ended.
    for _ in range(5):
        assert (await author.http.get("/api/health/live")).status_code == 200
        assert not checking.done()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
