"""Runs pytest in forks of a process that has imported the libraries, which takes seconds, but no module of Khala.

Each line of standard input is a run as JSON, [folder, arguments, output file]. The answer has two lines: the pid of the
fork, which leads its own process group, and its exit status once it has ended.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import pytest

LIBRARIES = (
    "docker",
    "testcontainers.community.postgres",
    "sqlalchemy.ext.asyncio",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "asyncpg",
    "msgspec",
    "structlog",
    "litestar",
    "httpx",
    "websockets.asyncio.client",
    "uvicorn",
    "alembic.command",
    "joserfc.jwt",
    "requests",
    "opentelemetry.trace",
    "hypothesis.strategies",
    "aiohttp",
)
KHALA = {"khala", "tests"}
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def main() -> None:
    """Serve until standard input ends."""
    _end_with_parent()
    for name in LIBRARIES:
        importlib.import_module(name)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in KHALA)
    if loaded:
        raise RuntimeError(f"the fork server must not import modules that mutants change: {loaded}")
    for line in sys.stdin:
        folder, arguments, output = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(folder, arguments, output)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _run(folder: str, arguments: list[str], output: str) -> NoReturn:
    os.setpgid(0, 0)
    _end_with_parent()
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.path[:0] = [folder, str(Path(folder, "app"))]
    status: Any = 3
    try:
        status = int(pytest.main(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main()
