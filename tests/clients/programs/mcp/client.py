"""The client of MCP's SDK for Python, over streamable HTTP."""

import contextlib

import anyio
import httpx2
from cells import SERVER, TOKEN, Result, absent, cell, run, works
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client


@contextlib.asynccontextmanager
async def connected(path="/mcp", **more):
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as http,
        Client(streamable_http_client(SERVER + path, http_client=http), **more) as client,
    ):
        yield client


def words(result):
    return " ".join(block.text for block in result.content if block.type == "text")


absent("text", "MCP has tools, and no answers.")
absent("stream", "MCP has tools, and no answers.")


@cell("tools")
async def tools() -> Result:
    versions = []
    for mode in ("auto", "legacy"):
        async with connected(mode=mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"memory_store", "memory_search", "read_file"} <= names, names
            stored = await client.call_tool("memory_store", {"text": f"I live on Aiur, {mode}."})
            assert not stored.is_error, stored
            found = await client.call_tool("memory_search", {"query": "Aiur"})
            assert "Aiur" in words(found), found
            versions.append(client.protocol_version)
    async with connected("/mcp/memory") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} <= names
    return works(f"With the protocol versions {versions[0]} and {versions[1]}; also of one group, as `/mcp/memory`.")


absent("forced", "MCP has tools, and no answers.")


@cell("structured")
async def structured() -> Result:
    async with connected() as client:
        found = await client.call_tool("memory_list", {})
        assert (found.is_error, type(found.structured_content["memories"])) == (False, list), found
    return works("Results of tools have `structuredContent`.")


absent("images", "MCP has tools, and no answers.")
absent("usage", "MCP has tools, and no answers.")


@cell("cancel")
async def cancel() -> None:
    async with connected() as client:
        with anyio.move_on_after(1) as scope:
            await client.call_tool("run_code", {"language": "python", "code": "import time; time.sleep(30)"})
        assert scope.cancelled_caught
        again = await client.call_tool("memory_list", {})
        assert not again.is_error


absent("resume", "Khala's MCP has no sessions: each request is independent.")
absent("approvals", "Over MCP, the person at the client approves: tools that ask are offered and called.")


@cell("errors")
async def errors() -> Result:
    async with connected() as client:
        bad = await client.call_tool("read_file", {"paht": "a.txt"})
        assert bad.is_error
        try:
            await client.call_tool("no_such_tool", {})
        except MCPError as error:
            return works("", str(error), words(bad))
    raise AssertionError("an unknown tool was called")


run()
