"""Khala as an operator runs it for many: processes that serve, processes that work, and nginx before them."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.nginx import Nginx, nginx
from tests.support.server import Process, Server, Worker, ended

WORKING = "Khala works as executor-"
"""What a worker says when it is ready."""
PATIENCE = 90.0
"""Seconds that one of several has to become ready, on a machine that has other things to do."""
STARTING = 2
"""Processes that are started at once; a start is all computation."""


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
        """All of Khala's."""
        return [*self.webs, *self.workers]

    def restart(self, process: Process) -> None:
        """Stop it as a deployment does, and start it again; returns when it is ready. It must end well."""
        assert process.kill(signal.SIGTERM) == 0
        _ready(process)

    def mend(self) -> None:
        """Start whoever does not run; returns when all are ready."""
        with ThreadPoolExecutor(STARTING) as starting:
            list(starting.map(_ready, (process for process in self.processes if not process.running())))

    def crashes(self) -> list[str]:
        """What any log tells of an error that nobody has named."""
        return [line for process in self.processes for line in process.crashes()]


@contextlib.contextmanager
def cluster(database_url: str, folder: Path, *, webs: int = 2, workers: int = 2, **env: str) -> Iterator[Cluster]:
    """All of them for as long as this is open, configured by these environment variables."""
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
        made.mend()
        yield made


def _ready(process: Process) -> None:
    began = process.log.read_text().count(WORKING) if process.log.exists() else 0
    if isinstance(process, Server):
        process.begin()
        process.wait_until_ready(within=PATIENCE)
    else:
        process.start()
        process.wait_for(WORKING, times=began + 1, within=PATIENCE)
