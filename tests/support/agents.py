"""Runs with tool calls of the demo model, and their results."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.mcp_client import HttpMcpServer
from tests.support.mcp_server import calls

PECULIAR = "peculiar__"
TIMEOUT_SECONDS = 30.0


class Agent:
    """One run of a thread."""

    def __init__(self, thread: Thread, sent: dict[str, Any]) -> None:
        self.thread = thread
        self.run_id: str = sent["runId"]
        self.answer: str = sent["assistantMessageId"]

    async def run(self) -> dict[str, Any]:
        return await self.thread.run(self.run_id)

    async def ended(self, *, within: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        return await self.thread.ended(self.run_id, within=within)

    async def parts(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The data of all parts of one kind; without a kind, of all parts together with their kinds."""
        found = await self.thread.parts(self.run_id)
        return [
            part["data"] | ({} if kind else {"kind": part["kind"]}) for part in found if kind in (None, part["kind"])
        ]

    async def message(self) -> dict[str, Any]:
        return next(message for message in (await self.thread.snapshot())["messages"] if message["id"] == self.answer)

    async def text(self) -> str:
        return text_of(await self.message())

    async def cards(self) -> list[dict[str, Any]]:
        """The tool blocks of the answer."""
        return [block for block in (await self.message())["content"] if block["type"] == "tool"]

    async def states(self) -> list[str]:
        return [card["state"] for card in await self.cards()]

    async def until(self, *states: str, within: float = TIMEOUT_SECONDS) -> list[dict[str, Any]]:
        """Wait until the cards are in these states; returns them."""
        async with asyncio.timeout(within):
            while True:
                cards = await self.cards()
                if [card["state"] for card in cards] == list(states):
                    return cards
                await asyncio.sleep(0.03)

    async def status(self, status: str, *, within: float = TIMEOUT_SECONDS) -> None:
        """Wait until the run is in this state."""
        async with asyncio.timeout(within):
            while (await self.run())["status"] != status:
                await asyncio.sleep(0.03)

    async def receipts(self, kind: str | None = None) -> list[dict[str, Any]]:
        response = await self.thread.http.get(f"/api/runs/{self.run_id}/receipts", headers=self.thread.headers)
        return [receipt for receipt in response.raise_for_status().json()["items"] if kind in (None, receipt["type"])]

    async def decide(self, call_id: str, **decision: Any) -> Any:
        """Decide about a call that waits for approval; returns the response."""
        path = f"/api/runs/{self.run_id}/approvals/{call_id}"
        return await self.thread.http.post(path, json=decision, headers=self.thread.headers)

    async def cancel(self) -> None:
        response = await self.thread.http.post(f"/api/runs/{self.run_id}/cancel", headers=self.thread.headers)
        response.raise_for_status()


async def act(thread: Thread, text: str, **options: Any) -> Agent:
    """Send a message with directives to the demo model."""
    return Agent(thread, await thread.send(text, options={"autopilot": True} | options))


def call(name: str, **args: Any) -> str:
    """A directive by which the demo model calls a tool."""
    return f"/call {name} {json.dumps(args)}"


async def rules(thread: Thread, **actions: str) -> None:
    """Set the rules of this thread; `_all` stands for every tool."""
    items = [{"pattern": name.replace("_all", "*"), "action": action} for name, action in actions.items()]
    path = f"/api/threads/{thread.id}/tool-rules"
    (await thread.http.put(path, json={"items": items}, headers=thread.headers)).raise_for_status()


@contextlib.contextmanager
def _configured(folder: Path, served: HttpMcpServer, **settings: Any) -> Any:
    server = {"url": f"http://127.0.0.1:{served.port}/mcp", "anonymous": True, "timeout": 30} | settings
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"peculiar": server}}))
    yield path


@contextlib.asynccontextmanager
async def peculiar(folder: Path, *, handshake: bool = True) -> AsyncIterator[tuple[HttpMcpServer, Path]]:
    """An MCP server of test tools over HTTP, and its journal."""
    journal = folder / "journal"
    served = HttpMcpServer(journal, handshake=handshake)
    served.start()
    try:
        await served.wait_ready()
        yield served, journal
    finally:
        served.kill()


@contextlib.asynccontextmanager
async def with_peculiar(database_url: str, folder: Path, **env: str) -> AsyncIterator[tuple[InProcessServer, Path]]:
    """Khala with the test tools, which guests may use, and the journal of the tools.

    With `MODERN`, their server speaks only the protocol version without a handshake.
    """
    timeout = float(env.pop("TIMEOUT", "30"))
    allowed = {name: bool(env.pop(name.upper(), "")) for name in ("sampling", "elicitation")}
    async with peculiar(folder, handshake=not env.pop("MODERN", "")) as (served, journal):
        with _configured(folder, served, timeout=timeout, **allowed) as config:
            async with khala(database_url, with_executor=True, KHALA_MCP_CONFIG=str(config), **env) as inside:
                await connected(inside)
                yield inside, journal


async def connected(inside: InProcessServer) -> None:
    """Wait until the test tools are offered."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            thread = await inside.thread()
            offered = await inside.http.get("/api/tools", params={"threadId": thread.id}, headers=thread.headers)
            if any(one["name"].startswith(PECULIAR) for one in offered.raise_for_status().json()["items"]):
                return
            await asyncio.sleep(0.05)


def done(journal: Path, tool: str, event: str = "began") -> int:
    """How often the journal has this event of the tool."""
    return len(calls(journal, tool, event))
