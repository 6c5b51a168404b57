"""Fixtures for the embedded Postgres. Each test gets its own home, copied from one that was used before."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from khala.store.embedded import EmbeddedPostgres
from khala.store.embedded.layout import ClusterLayout, lay_out
from tests.support.embedded import (
    MEMORY,
    Member,
    eventually,
    running,
)


@pytest.fixture
def bare() -> Iterator[Path]:
    """The path of a home that does not exist yet.

    Its parent is closed to all other users, as `mkdtemp` makes it. The fixture ends when no process uses the home any
    more.
    """
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as closed:
        path = Path(closed, "home")
        yield path
        eventually(lambda: not running(path))
        # A killed supervisor leaves its socket directory behind.
        shutil.rmtree(lay_out(path).socket_directory, ignore_errors=True)


@pytest.fixture(scope="module")
def used() -> Iterator[Path]:
    """A home that was used before, to copy from."""
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as directory:
        path = Path(directory, "home")
        EmbeddedPostgres.start(path).stop()
        yield path


@pytest.fixture
def home(bare: Path, used: Path) -> Path:
    """A home with a database and no server."""
    subprocess.run(["cp", "-a", used, bare], check=True)
    return bare


@pytest.fixture
def layout(home: Path) -> ClusterLayout:
    return lay_out(home)


@pytest.fixture
def server(home: Path) -> Iterator[EmbeddedPostgres]:
    started = EmbeddedPostgres.start(home)
    yield started
    started.stop()


@pytest.fixture
def members() -> Iterator[Callable[..., Member]]:
    """Starts members, and ends those that still run after the test."""
    started: list[Member] = []

    def start(home: Path, **options: object) -> Member:
        started.append(Member(home, **options))  # type: ignore[arg-type]  # passed through
        return started[-1]

    yield start
    for member in started:
        member.kill()


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A home that any user can own."""
    with tempfile.TemporaryDirectory(prefix="khala-test-", dir=MEMORY) as directory:
        Path(directory).chmod(0o755)
        path = Path(directory, "home")
        path.mkdir()
        yield path
        eventually(lambda: not running(path))
