"""Resources and prompts over MCP: the official client reads them, and no caller reads those of others."""

import base64
from collections.abc import AsyncIterator
from uuid import UUID

import mcp_types as types
import pytest
import pytest_asyncio
from mcp import Client, MCPError

from khala.api.mcp import resource_contents, resources
from khala.domain.access import Scope
from khala.domain.memories import MemorySpace, NewMemory
from khala.store.accounts import api_tokens
from khala.store.memories import memories
from khala.store.postgres.database import Database
from khala.store.tools import workspace_files
from tests.support.blobs import create_blob
from tests.support.callers import Person, owned_thread, person
from tests.support.in_process import InProcessServer
from tests.support.official_mcp_client import client
from tests.support.people import make_member
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

POET = {
    "name": "poet",
    "title": "Poet",
    "description": "Writes short poems.",
    "instructions": "Answer in rhyme.",
    "tools": [],
    "examples": [],
}
PNG = b"\x89PNG\r\n\x1a\n\0\0"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template, with_executor=False) as inside:
        yield inside


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def store(server: InProcessServer) -> AsyncIterator[Database]:
    database = Database(server.database_url)
    yield database
    await database.close()


async def uris(mcp: Client) -> list[str]:
    """The URIs of all pages of the list."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await mcp.list_resources(cursor=cursor)
        found += [resource.uri for resource in page.resources]
        cursor = page.next_cursor
        if cursor is None:
            return found


async def read(mcp: Client, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    [content] = (await mcp.read_resource(uri)).contents
    return content


async def text_of(mcp: Client, uri: str) -> str:
    content = await read(mcp, uri)
    assert isinstance(content, types.TextResourceContents)
    return content.text


async def code_of(mcp: Client, uri: str) -> str:
    """The code with which reading the resource is refused."""
    with pytest.raises(MCPError) as refused:
        await mcp.read_resource(uri)
    assert refused.value.code == types.INVALID_PARAMS
    return str(refused.value.data["code"])


async def with_memory(store: Database, owner: Person, text: str) -> str:
    space = MemorySpace(scope="user", owner_id=owner.id)
    memory, _ = await memories.add(store, space, NewMemory(text=text))
    return f"khala://memories/{memory.id}"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_reads_resources(
    server: InProcessServer, store: Database, mode: str
) -> None:
    owner = await person(store)
    await workspace_files.write(store, owner.id, "notes/a plan?.md", b"En taro Adun")
    await workspace_files.write(store, owner.id, "pixel", PNG)
    memory = await with_memory(store, owner, "Tassadar likes tea")
    ref = await create_blob(store, await owned_thread(store, owner), b"a long output")
    blob = f"khala://blobs/{ref.blob_id}"
    async with client(server, owner.headers, mode=mode) as mcp:
        listed = (await mcp.list_resources()).resources
        assert [one.uri for one in listed] == [
            "khala://files/notes/a%20plan%3F.md", "khala://files/pixel", memory, blob
        ]  # fmt: skip
        assert (listed[0].name, listed[0].size) == ("notes/a plan?.md", 12)
        assert await text_of(mcp, listed[0].uri) == "En taro Adun"
        assert '"text":"Tassadar likes tea"' in await text_of(mcp, memory)
        assert await text_of(mcp, blob) == "a long output"
        binary = await read(mcp, "khala://files/pixel")
        assert isinstance(binary, types.BlobResourceContents)
        assert (binary.mime_type, base64.b64decode(binary.blob)) == ("image/png", PNG)
        templates = (await mcp.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == [
            "khala://files/{+path}", "khala://memories/{id}", "khala://blobs/{id}"
        ]  # fmt: skip


async def test_resources_of_others_are_neither_listed_nor_read(server: InProcessServer, store: Database) -> None:
    owner, other, viewer = await person(store), await person(store), await person(store)
    await workspace_files.write(store, owner.id, "plan.md", b"mine")
    memory = await with_memory(store, owner, "A secret")
    thread_id = await owned_thread(store, owner)
    blob = f"khala://blobs/{(await create_blob(store, thread_id)).blob_id}"
    await make_member(store, thread_id, viewer.id, "viewer", owner.caller)
    async with client(server, other.headers) as mcp:
        assert await uris(mcp) == []
        assert await code_of(mcp, "khala://files/plan.md") == "not_found"
        assert await code_of(mcp, memory) == "not_found"
        assert await code_of(mcp, blob) == "forbidden"
    async with client(server, viewer.headers) as mcp:
        assert await uris(mcp) == [blob], "a member reads the blobs of the thread, and nothing else of its owner"
        assert await code_of(mcp, memory) == "not_found"
    async with client(server) as mcp:
        assert await uris(mcp) == []
        for uri in ("khala://files/plan.md", memory):
            assert await code_of(mcp, uri) == "not_found"


async def test_a_key_of_the_thread_reads_its_blobs_as_over_rest(server: InProcessServer, store: Database) -> None:
    thread = await server.thread()
    blob = f"khala://blobs/{(await create_blob(store, UUID(thread.id))).blob_id}"
    async with client(server, thread.headers) as mcp:
        assert await text_of(mcp, blob) == "En taro Adun"
    async with client(server) as mcp:
        assert await code_of(mcp, blob) == "forbidden"


async def test_resources_follow_groups_scopes_and_rules(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    await workspace_files.write(store, owner.id, "plan.md", b"mine")
    memory = await with_memory(store, owner, "Rex is a dog")
    file = "khala://files/plan.md"
    for group, expected in (("/files", [file]), ("/memory", [memory]), ("/tasks", [])):
        async with client(server, owner.headers, group) as mcp:
            assert await uris(mcp) == expected, group
    async with client(server, owner.headers, "/memory") as mcp:
        assert await code_of(mcp, file) == "not_found"
    scopes: tuple[Scope, ...] = ("read",)
    _, secret = await api_tokens.create(store, owner.caller, "a program", scopes, None)
    async with client(server, {"Authorization": f"Bearer {secret}"}) as mcp:
        assert await uris(mcp) == [file, memory]
    rule = {"pattern": "read_file", "action": "deny"}
    changed = await server.http.put("/api/me/tool-rules", json={"items": [rule]}, headers=owner.headers)
    changed.raise_for_status()
    async with client(server, owner.headers) as mcp:
        assert await uris(mcp) == [memory]
        assert await code_of(mcp, file) == "not_found"


async def test_the_list_has_pages(server: InProcessServer, store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await person(store)
    for name in ("b", "a", "C", "é"):
        await workspace_files.write(store, owner.id, name, b"")
    thread_id = await owned_thread(store, owner)
    made = [await with_memory(store, owner, f"Fact {number}") for number in range(3)]
    stored = [f"khala://blobs/{(await create_blob(store, thread_id)).blob_id}" for _ in range(3)]
    files = [f"khala://files/{name}" for name in ("C", "a", "b", "%C3%A9")]
    for size in (1, 2, 3, 4, 7, 10):
        monkeypatch.setattr(resources, "PAGE_SIZE", size)
        async with client(server, owner.headers) as mcp:
            assert len((await mcp.list_resources()).resources) == size
            assert await uris(mcp) == [*files, *reversed(made), *reversed(stored)], size
    async with client(server, owner.headers) as mcp:
        for cursor in (
            "nonsense",
            "ZmlsZXM",
            base64.b64encode(b"files a\0").decode(),
            base64.b64encode(b"x y").decode(),
        ):
            with pytest.raises(MCPError) as refused:
                await mcp.list_resources(cursor=cursor)
            assert refused.value.code == types.INVALID_PARAMS


async def test_a_uri_that_names_nothing_is_an_error(server: InProcessServer, store: Database) -> None:
    owner = await person(store)
    async with client(server, owner.headers) as mcp:
        for uri in ("khala://files/", "khala://files/none", "khala://memories/7", "khala://blobs/x", "khala://x/y",
                    "khala://files", "files/a", "https://example.com/", "khala://files/%FF", ""):  # fmt: skip
            assert await code_of(mcp, uri) == "not_found", uri
        for uri in ("khala://files/../a", "khala://files/%2e%2e/a", "khala://files//etc/passwd", "khala://files/a%00"):
            assert await code_of(mcp, uri) == "invalid_input", uri


async def test_a_resource_that_is_too_large_is_refused_with_the_place_to_read_it(
    server: InProcessServer, store: Database
) -> None:
    owner = await person(store)
    thread_id = await owned_thread(store, owner)
    ref = await create_blob(store, thread_id, b"a" * (resource_contents.MAX_RESOURCE_BYTES + 1))
    async with client(server, owner.headers) as mcp:
        with pytest.raises(MCPError) as refused:
            await mcp.read_resource(f"khala://blobs/{ref.blob_id}")
    assert refused.value.data["code"] == "payload_too_large"
    assert f"/api/blobs/{ref.blob_id}" in refused.value.message


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_agents_are_prompts(server: InProcessServer, store: Database, mode: str) -> None:
    owner = await person(store)
    (await server.http.post("/api/agents", json=POET, headers=owner.headers)).raise_for_status()
    async with client(server, owner.headers, mode=mode) as mcp:
        prompts = {prompt.name: prompt for prompt in (await mcp.list_prompts()).prompts}
        assert (prompts["poet"].title, prompts["poet"].description) == ("Poet", "Writes short poems.")
        assert [(argument.name, argument.required) for argument in prompts["poet"].arguments or ()] == [("task", False)]
        alone = await mcp.get_prompt("poet")
        assert [_said(message) for message in alone.messages] == [("user", "Answer in rhyme.")]
        both = await mcp.get_prompt("poet", {"task": "A poem about Aiur"})
        assert [text for _, text in map(_said, both.messages)] == ["Answer in rhyme.", "A poem about Aiur"]


async def test_prompts_are_those_of_the_agents_that_the_caller_may_use(
    server: InProcessServer, store: Database
) -> None:
    owner, other = await person(store), await person(store)
    (await server.http.post("/api/agents", json=POET, headers=owner.headers)).raise_for_status()
    async with client(server, other.headers) as mcp:
        listed = {prompt.name for prompt in (await mcp.list_prompts()).prompts}
        agents = (await server.http.get("/api/agents", headers=other.headers)).json()["items"]
        assert listed == {agent["name"] for agent in agents if agent["instructions"]} != set()
        for name in ("poet", "", "no-such", "a\0b", "~" + "x" * 30):
            with pytest.raises(MCPError) as refused:
                await mcp.get_prompt(name)
            assert (refused.value.code, refused.value.data) == (types.INVALID_PARAMS, {"code": "not_found"}), name
    for group, has_poet in (("/agents", True), ("/tasks", False)):
        async with client(server, owner.headers, group) as mcp:
            assert ("poet" in {prompt.name for prompt in (await mcp.list_prompts()).prompts}) is has_poet
    guest = {agent["name"] for agent in (await server.http.get("/api/agents")).json()["items"] if agent["instructions"]}
    async with client(server) as mcp:
        assert {prompt.name for prompt in (await mcp.list_prompts()).prompts} == guest


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_paths_of_own_files_are_completed(server: InProcessServer, store: Database, mode: str) -> None:
    owner, other = await person(store), await person(store)
    for name in ("notes/a.md", "notes/b.md", "no%es", *(f"many/{number:03}" for number in range(101))):
        await workspace_files.write(store, owner.id, name, b"")
    files = types.ResourceTemplateReference(uri="khala://files/{+path}")
    memory = types.ResourceTemplateReference(uri="khala://memories/{id}")
    agent = types.PromptReference(name="researcher")

    async with client(server, owner.headers, mode=mode) as mcp:
        for value, expected in (("notes/", ["notes/a.md", "notes/b.md"]), ("no%", ["no%es"]), ("x", []), ("a\0", [])):
            found = (await mcp.complete(files, {"name": "path", "value": value})).completion
            assert (found.values, found.has_more) == (expected, False), value
        many = (await mcp.complete(files, {"name": "path", "value": "many/"})).completion
        assert (len(many.values), many.has_more) == (100, True)
        for ref, name in ((memory, "id"), (agent, "task"), (files, "id")):
            assert (await mcp.complete(ref, {"name": name, "value": "x"})).completion.values == []
        for unknown in (types.ResourceTemplateReference(uri="khala://files/a"), types.PromptReference(name="no-such")):
            with pytest.raises(MCPError) as refused:
                await mcp.complete(unknown, {"name": "path", "value": ""})
            assert (refused.value.code, refused.value.data) == (types.INVALID_PARAMS, {"code": "not_found"})
    for headers, group in ((other.headers, ""), (None, "")):
        async with client(server, headers, group, mode=mode) as mcp:
            assert (await mcp.complete(files, {"name": "path", "value": ""})).completion.values == []
    async with client(server, owner.headers, "/memory", mode=mode) as mcp:
        with pytest.raises(MCPError):
            await mcp.complete(files, {"name": "path", "value": ""})


def _said(message: types.PromptMessage) -> tuple[str, str]:
    assert isinstance(message.content, types.TextContent)
    return message.role, message.content.text
