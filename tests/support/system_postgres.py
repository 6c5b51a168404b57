"""A Postgres that the system has installed, of another major version than the embedded one."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from khala.operations.programs import programs_version
from khala.store.embedded import find_binaries

START_TIMEOUT_SECONDS = 60.0


class SystemPostgres(msgspec.Struct, frozen=True):
    """A server's major version, the folder of its programs, and where its sockets are."""

    major: int
    programs: Path
    folder: Path

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://khala@/{database}?host={self.folder}"


@contextlib.contextmanager
def system_postgres() -> Iterator[SystemPostgres]:
    """A server on a new cluster."""
    major, programs = _installed()
    folder = Path(tempfile.mkdtemp(prefix="khala-test-system-"))
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    try:
        init = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "khala",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ]
        subprocess.run(init, check=True, user=user, cwd="/", capture_output=True)
        command = [str(programs / "postgres"), "-D", str(data), "-k", str(folder), "-c", "listen_addresses="]
        with (folder / "log").open("wb") as log, _ended(command, user, log.fileno()):
            _wait(programs, folder)
            yield SystemPostgres(major, programs, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> tuple[int, Path]:
    embedded_major = programs_version(find_binaries())
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        major = programs_version(folder)
        if major is not None and major != embedded_major and os.access(folder / "postgres", os.X_OK):
            return major, folder
    # In CI and as root it could have been installed, so its absence is a failure.
    report_missing = pytest.fail if os.environ.get("CI") or os.geteuid() == 0 else pytest.skip
    report_missing("no Postgres of another major version is installed: run `sh infra/services.sh postgres`")
    raise AssertionError


@contextlib.contextmanager
def _ended(command: list[str], user: str | None, log: int) -> Iterator[None]:
    process = subprocess.Popen(command, user=user, cwd="/", stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(2)
        process.wait(30)


def _wait(programs: Path, folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while subprocess.run([programs / "pg_isready", "-h", folder], capture_output=True, check=False).returncode != 0:
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
