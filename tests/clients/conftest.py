"""Fixtures for tests of the npm packages in `app/clients/typescript`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.npm_projects import CLIENTS, NODE, NPM, environment
from infra.typescript_clients import PACKAGES, PACKED
from tests.support import postgres
from tests.support.ports import free_port
from tests.support.server import ROOT, Server, ended

PROGRAMS = Path(__file__).parent / "typescript"


def _packed() -> Path:
    """The folder with the tarballs of these sources. Of concurrent processes, one builds them."""
    build = [sys.executable, str(ROOT / "infra" / "typescript_clients.py"), "build"]
    subprocess.run(build, check=True, timeout=150)
    return PACKED


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the repository, in which the tarballs of all packages are installed by npm."""
    folder = tmp_path_factory.mktemp("consumer")
    (folder / "package.json").write_text('{"name": "consumer", "private": true, "type": "module"}')
    files = sorted(map(str, _packed().glob("*.tgz")))
    assert len(files) == len(PACKAGES)
    # What the packages need besides each other is linked below, so that no registry is asked.
    install = ["install", "--offline", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", *files]
    done = subprocess.run(
        [str(NODE), str(NPM), *install], cwd=folder, env=environment(), capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("react", "react-dom", "@types", "typescript", "ai", "@ai-sdk", "vite"):
        (folder / "node_modules" / name).symlink_to(CLIENTS / "node_modules" / name)
    for program in PROGRAMS.iterdir():
        (folder / program.name).write_bytes(program.read_bytes())
    return folder


@pytest.fixture(scope="module")
def page_port() -> int:
    """The port of pages that may call the server across origins."""
    return free_port()


@pytest.fixture(scope="module")
def server(
    postgres_url: str, template: str, tmp_path_factory: pytest.TempPathFactory, page_port: int
) -> Iterator[Server]:
    """`khala serve` with a short lease, so that another executor soon takes over the run of a killed one."""
    settings = {"KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": "2", "KHALA_GRACE_SECONDS": "1"}
    settings["KHALA_ORIGINS"] = f"http://127.0.0.1:{page_port}"
    with postgres.sync_database(postgres_url, template) as url:
        process = Server(tmp_path_factory.mktemp("server") / "server.log", {"DATABASE_URL": url} | settings)
        with ended(process):
            process.start()
            yield process
