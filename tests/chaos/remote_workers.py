"""Random kills of remote workers and of their servers: `python -m tests.chaos.remote_workers [--seed N] [--kills N]`.

Two servers have one database, two workers are each connected to another server, and runs count. `kill -9` ends workers
and servers at random, and they are started again. In the end each answer has its exact text, its parts have consecutive
seqs, and `khala verify` finds nothing.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.account_with_data import account, own_thread
from tests.support.client import Thread, text_of
from tests.support.in_process import InProcessServer
from tests.support.remote_workers import create_agent, create_token
from tests.support.server import Server, command, ended

CLIENT = Path(__file__).parents[2] / "app" / "clients" / "python"
AGENT = "counter"
SERVER_ENV = {"KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "0"}


class CountingWorker:
    """A worker process that counts for its agent."""

    def __init__(self, url: str, token: str, log: Path) -> None:
        self._environment = {
            "KHALA_SERVER": url,
            "KHALA_TOKEN": token,
            "KHALA_AGENT": AGENT,
            "PYTHONPATH": str(CLIENT / "src"),
        }
        self._log = log
        self._process = self._start()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.end()
        self._process = self._start()

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(CLIENT / "examples" / "conformance_worker.py")]
        with self._log.open("a") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)


@contextmanager
def working(workers: list[CountingWorker]) -> Iterator[None]:
    """End these workers when this closes."""
    try:
        yield
    finally:
        for worker in workers:
            worker.end()


async def run(database_url: str, folder: Path, *, seed: int, kills: int, runs: int = 4, count: int = 300) -> list[str]:
    """Kill workers and servers at random. Returns what is wrong in the end."""
    rng = random.Random(seed)
    env = SERVER_ENV | {"DATABASE_URL": database_url}
    servers = [Server(folder / f"server{number}.log", env) for number in range(2)]
    with ended(*servers):
        for server in servers:
            await asyncio.to_thread(server.start)
        inside = InProcessServer(servers[0].url, httpx.AsyncClient(), database_url)
        async with account(inside) as who:
            await create_agent(who, AGENT)
            secret = (await create_token(who, AGENT))["token"]
            workers = [
                CountingWorker(server.url, secret, folder / f"worker{number}.log")
                for number, server in enumerate(servers)
            ]
            with working(workers):
                threads = [await own_thread(who) for _ in range(runs)]
                sent = [await thread.send(f"count {count}", options={"agent": AGENT}) for thread in threads]
                for _ in range(kills):
                    await asyncio.sleep(rng.uniform(0.2, 1.5))
                    restarts = [*(worker.restart for worker in workers), *(server.restart for server in servers)]
                    await asyncio.to_thread(rng.choice(restarts))
                problems = [
                    problem
                    for thread, ids in zip(threads, sent, strict=True)
                    for problem in await _problems(thread, ids["runId"], count)
                ]
    verified = await asyncio.to_thread(command, env, "verify")
    return problems + ([] if verified.returncode == 0 else [verified.stdout])


async def _problems(thread: Thread, run_id: str, count: int) -> list[str]:
    """What is wrong with the answer."""
    ended_run = await thread.ended(run_id, within=120)
    parts = await thread.parts(run_id)
    text = text_of((await thread.snapshot())["messages"][-1])
    problems = [] if ended_run["status"] == "final" else [f"{run_id} ended {ended_run['status']}"]
    if text != "".join(f"{number} " for number in range(1, count + 1)):
        problems.append(f"{run_id} has the text {text[:200]!r}… of {len(text)} characters")
    if [part["seq"] for part in parts] != list(range(len(parts))):
        problems.append(f"{run_id} has the seqs {[part['seq'] for part in parts]}")
    return problems


def main() -> int:
    """Run the scenario on a new database of the tests' server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--database", required=True, help="URL of an empty, migrated database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(options.database, Path(folder), seed=options.seed, kills=options.kills, count=1500))
    sys.stdout.write(f"seed {options.seed}: {'; '.join(found) or 'nothing is wrong'}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
