"""An executor that is killed while an agent in Python runs: no step that was stored is repeated, no text is lost."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx

from tests.support import app_agents
from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.observed_run import assert_verified
from tests.support.server import Server, Worker, ended

STEPS = 6


async def test_another_executor_goes_on_after_the_last_stored_step(database_url: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    env = {
        "DATABASE_URL": database_url,
        "KHALA_MODEL": "demo",
        "KHALA_LEASE_SECONDS": "1.2",
        "KHALA_GRACE_SECONDS": "0",
        "KHALA_APP": app_agents.MODULE,
        "KHALA_APP_JOURNAL": str(journal),
    }
    server = Server(tmp_path / "server.log", env, "--no-executor")
    workers: list[Worker] = []

    def start_worker() -> None:
        workers.append(Worker(tmp_path / f"worker{len(workers)}.log", env))
        workers[-1].start()

    with ended(server):
        server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            thread = await Thread.create(http)
            start_worker()
            try:
                agent = Agent(thread, await thread.send("Go", options={"agent": "app:long"}))
                async with asyncio.timeout(60):
                    while len(await agent.parts("tool-result")) < 2 or "begin 2" not in journal.read_text():
                        await asyncio.sleep(0.02)
                workers[-1].kill()
                start_worker()
                assert (await agent.ended(within=60))["status"] == "final"
                text = await agent.text()
            finally:
                for worker in workers:
                    if worker.running():
                        worker.kill()
    sums = [sum(range(number + 1)) for number in range(STEPS)]
    assert text == "".join(f"After step {number}, the sum is {total}.\n" for number, total in enumerate(sums))
    ends = Counter(line for line in journal.read_text().splitlines() if line.startswith("end"))
    assert set(ends) == {f"end {number}" for number in range(STEPS)}
    assert all(ends[f"end {number}"] == 1 for number in (0, 1, 3, 4, 5)), "only the interrupted step may be repeated"
    assert not server.crashes()
    assert_verified({"DATABASE_URL": database_url})
