"""Processes that use an embedded Postgres, and queries about them."""

import asyncio
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psutil
import pytest

from khala.store.embedded import locks
from khala.store.embedded.layout import ClusterLayout

ROOT = Path(__file__).parents[2]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

MEMBER = """
import json, sys
from pathlib import Path
from khala.store.embedded import EmbeddedPostgres, EmbeddedPostgresError
try:
    server = EmbeddedPostgres.start(Path(sys.argv[1]))
except EmbeddedPostgresError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit()
print(json.dumps({"url": server.url, "version": server.version}), flush=True)
for line in sys.stdin:
    getattr(server, line.strip())()
    print(json.dumps({"did": line.strip()}), flush=True)
"""
"""A process that joins the server, and then calls the methods that its input names."""

ORPHAN = """
import os, sys
from pathlib import Path
from khala.store.embedded import cluster, find_binaries, layout, locks
cluster._die_with = lambda parent, how: lambda: None
folders = layout.lay_out(Path(sys.argv[1]))
layout.make_private(folders.socket_directory, folders.uid, folders.gid)
lock = locks.acquire(folders.server_lock)
print(cluster.launch(folders, find_binaries(), lock, "orphan").pid, flush=True)
os._exit(0)
"""
"""A supervisor that dies on a system without a death signal for its server."""


class Member:
    """Another process that uses the server."""

    def __init__(self, home: Path, *, uid: int | None = None, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [interpreter(uid), "-c", MEMBER, str(home)],
            env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])} | (env or {}),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )

    def read_answer(self) -> dict[str, str]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if readable else ""
        assert line, "the process sent no answer"
        answer: dict[str, str] = json.loads(line)
        return answer

    def call(self, method: str) -> dict[str, str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{method}\n")
        self.process.stdin.flush()
        return self.read_answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def interpreter(uid: int | None) -> str:
    """A Python that this user may run; that of the tests may be in root's home."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if uid is None:
            return python
        command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(command, user=uid, group=uid, extra_groups=[], cwd="/", check=False).returncode == 0:
                return python
        except OSError:
            continue
    pytest.fail(f"user {uid} can run no Python on this machine")


def eventually(condition: Callable[[], bool], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)


def sql(url: str, *statements: str) -> object:
    """Run the statements; returns the first value of the last one."""

    async def run() -> object:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(run())


def serving(url: str) -> bool:
    try:
        return sql(url, "SELECT true") is True
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


def postmaster(layout: ClusterLayout) -> psutil.Process:
    return psutil.Process(int(locks.read(layout.server_lock)))


def supervisor(layout: ClusterLayout) -> psutil.Process:
    parent = postmaster(layout).parent()
    assert parent is not None
    assert "khala.store.embedded.supervisor" in parent.cmdline()
    return parent


def running(home: Path) -> list[psutil.Process]:
    """All processes of this home's server, by their working folders and command lines."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.pid != os.getpid()
        and any(str(home) in part for part in (*(process.info["cmdline"] or ()), process.info["cwd"] or ""))
    ]


def ended(layout: ClusterLayout) -> bool:
    return not locks.held(layout.supervisor_lock) and not locks.held(layout.server_lock)
