"""Programs that tests need besides Python packages; `infra/services.sh` installs them."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

SEARCH_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
"""Includes folders of programs for root, which a user's PATH may lack."""

START_TIMEOUT_SECONDS = 10.0
"""For a program to listen."""


def program(name: str) -> str:
    """The path of a program. If it is missing, the test fails in CI and as root, and is skipped otherwise."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None and (os.environ.get("CI") or os.geteuid() == 0):
        pytest.fail(f"{name} is not installed: run `sh infra/services.sh {name}`.")
    if path is None:
        pytest.skip(f"{name} is not installed, and this user may not install it.")
    return path


def wait_for_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until the program listens; a failure shows its log."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"no process listens at port {port}:\n{log.read_text()}")
        time.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
