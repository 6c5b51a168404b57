"""Facts about the machine on which the benchmark ran."""

import os
import platform
import subprocess
from pathlib import Path

import psutil

from khala.store.postgres.database import Driver
from tests.bench.counters import postmaster
from tests.bench.processes import ROOT


async def facts(connection: Driver) -> dict[str, str]:
    """Machine, versions and commit."""
    host = host_facts()
    return {**host, "postgres": await _postgres(connection), "commit": host["commit"]}


def host_facts() -> dict[str, str]:
    """Machine, version of Python and commit."""
    return {
        "cores": f"{os.cpu_count()} ({_processor()})",
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


async def _postgres(connection: Driver) -> str:
    version = await connection.fetchval("SHOW server_version")
    fsync = await connection.fetchval("SHOW fsync")
    pid = await postmaster(connection)
    try:
        folder = "elsewhere" if pid is None else psutil.Process(pid).cwd()
    except psutil.Error:
        folder = "unknown"
    return f"{version}, fsync {fsync}, data in {folder}"


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"
