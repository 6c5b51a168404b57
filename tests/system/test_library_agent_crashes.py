"""An executor that is killed while agents of other libraries answer: what was stored is not repeated."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support import pydantic_agents, slow_graph
from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.providers import Reply, in_steps, serving
from tests.support.server import Server, Worker, ended
from tests.support.wires import UseTool

pytestmark = pytest.mark.timeout(300)
LOOK_UP = Reply(tokens=("I ", "look."), calls=(UseTool(name="order_status", args={"order": "A-17"}),))
AGENTS = ("graph-slow", "pydantic-clerk")


async def test_a_graph_goes_on_at_the_next_node_and_an_agent_at_the_next_reply(
    database_url: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    async with serving(default=in_steps(LOOK_UP, Reply(tokens=("It is ", "paid."), hang_after=1))) as provider:
        env = {
            "DATABASE_URL": database_url,
            "KHALA_MODEL": "demo",
            "KHALA_LEASE_SECONDS": "1.2",
            "KHALA_GRACE_SECONDS": "0",
            "KHALA_APP": f"{slow_graph.MODULE},{pydantic_agents.MODULE}",
            "KHALA_APP_JOURNAL": str(journal),
            "KHALA_TEST_PROVIDER": provider.url,
        }
        server = Server(tmp_path / "server.log", env, "--no-executor")
        workers = [Worker(tmp_path / f"worker{number}.log", env) for number in range(2)]
        with ended(server):
            server.start()
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
                try:
                    workers[0].start()
                    runs = []
                    for name in AGENTS:
                        thread = await Thread.create(http)
                        runs.append(Agent(thread, await thread.send("Go", options={"agent": f"app:{name}"})))
                    async with asyncio.timeout(90):
                        while "second node" not in journal.read_text():
                            await asyncio.sleep(0.02)
                        while "It is " not in await runs[1].text():
                            await asyncio.sleep(0.1)
                    workers[0].kill()
                    provider.default = in_steps(LOOK_UP, Reply(tokens=("It is ", "paid.")))
                    (tmp_path / "journal.go").touch()
                    workers[1].start()
                    for run in runs:
                        assert (await run.ended(within=60))["status"] == "final"
                    texts = [await run.text() for run in runs]
                finally:
                    for worker in workers:
                        if worker.running():
                            worker.kill()
        assert texts == ["One two", "I look.It is paid."]
        effects = journal.read_text().splitlines()
        assert (effects.count("first node"), effects.count("second node")) == (1, 2)
        assert effects.count("order_status A-17") == 1
        assert not server.crashes()
