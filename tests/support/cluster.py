"""A Khala deployment of several processes: web processes, executors, and nginx in front of them."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.nginx import Nginx, nginx
from tests.support.server import Process, Server, Worker, ended

READY_LINE = "Khala works as executor-"
"""What an executor logs when it is ready."""
START_TIMEOUT_SECONDS = 90.0
"""For one of several processes to become ready on a busy machine."""
MAX_CONCURRENT_STARTS = 2
"""A start needs a whole core."""


class Cluster:
    """Processes on one database. `url` and `socket_url` lead to nginx."""

    def __init__(self, webs: list[Server], workers: list[Worker], front: Nginx) -> None:
        self.webs = webs
        self.workers = workers
        self.front = front
        self.url = front.url
        self.socket_url = front.socket_url

    @property
    def processes(self) -> list[Process]:
        """All processes of Khala."""
        return [*self.webs, *self.workers]

    def restart(self, process: Process) -> None:
        """Restart a process by SIGTERM, as a deployment does; returns when it is ready. It must end with status 0."""
        assert process.kill(signal.SIGTERM) == 0
        _start_and_wait(process)

    def start_missing(self) -> None:
        """Start all processes that do not run; returns when all are ready."""
        with ThreadPoolExecutor(MAX_CONCURRENT_STARTS) as starting:
            list(starting.map(_start_and_wait, (process for process in self.processes if not process.running())))

    def crashes(self) -> list[str]:
        """The lines of all logs with unexpected errors."""
        return [line for process in self.processes for line in process.crashes()]


@contextlib.contextmanager
def cluster(database_url: str, folder: Path, *, webs: int = 2, workers: int = 2, **env: str) -> Iterator[Cluster]:
    """Run the deployment for as long as this is open, configured by these environment variables."""
    shared = {
        "DATABASE_URL": database_url,
        "KHALA_MODEL": "demo",
        "KHALA_TRUSTED_PROXIES": "127.0.0.1",
        "KHALA_LEASE_SECONDS": "3",
        "KHALA_GRACE_SECONDS": "0",
        "KHALA_REQUESTS_PER_MINUTE": "0",
    } | env
    servers = [Server(folder / f"web-{number}.log", shared, "--no-executor") for number in range(webs)]
    executors = [Worker(folder / f"worker-{number}.log", shared) for number in range(workers)]
    with ended(*servers, *executors), nginx([server.port for server in servers], folder) as front:
        made = Cluster(servers, executors, front)
        made.start_missing()
        yield made


def _start_and_wait(process: Process) -> None:
    began = process.log.read_text().count(READY_LINE) if process.log.exists() else 0
    if isinstance(process, Server):
        process.begin()
        process.wait_until_ready(within=START_TIMEOUT_SECONDS)
    else:
        process.start()
        process.wait_for(READY_LINE, times=began + 1, within=START_TIMEOUT_SECONDS)
