"""Programs that tests need beside Python's own: `infra/services.sh` installs them."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""Where programs are; those that only root starts as a rule are in no user's path."""

STARTING = 10.0
"""Seconds that one has to listen."""


def program(name: str) -> str:
    """The program's path; where it could have been installed, its absence is a failure."""
    found = shutil.which(name, path=PLACES)
    if found is None and (os.environ.get("CI") or os.geteuid() == 0):
        pytest.fail(f"{name} is not there: run `sh infra/services.sh {name}`.")
    if found is None:
        pytest.skip(f"{name} is not installed, and may not be by this user.")
    return found


def wait_for_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until the program listens; `log` is where it would say why it doesn't."""
    deadline = time.monotonic() + STARTING
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"nobody listens at {port}:\n{log.read_text()}")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
