"""A wheel, installed without a checkout, contains everything that operators need."""

import asyncio
import json
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import npm_projects
from infra.npm_projects import CLIENTS, NODE
from infra.typescript_clients import PACKAGES
from khala.domain import ids
from tests.support import postgres
from tests.support.guest import Guest
from tests.support.ports import free_port
from tests.support.server import ROOT, process_environment
from tests.system import test_docs_examples as docs

# A wheel with the page in it is built first.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `khala` program of a new environment with the installed wheel, and this environment's dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=400)
    (wheel,) = folder.glob("khala_server-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    uv = str(Path(sys.executable).parent / "uv")
    install = [uv, "pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "needs.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "venv" / "bin" / "khala"


def _printed(installed: Path, program: str, folder: Path) -> str:
    """The output of this Python program in the environment, run in this folder."""
    command = [str(installed.parent / "python"), "-c", program]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database."""
    name = f"khala_test_{ids.new().hex}"
    asyncio.run(postgres.execute(postgres_url, f'CREATE DATABASE "{name}"'))
    yield postgres.named(postgres_url, name)
    asyncio.run(postgres.execute(postgres_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


def test_a_wheel_installs_one_package_with_the_page_and_the_migrations(installed: Path, tmp_path: Path) -> None:
    (site,) = (installed.parents[1] / "lib").glob("python*/site-packages")
    assert {path.name for path in site.iterdir() if not path.name.endswith((".dist-info", ".pth"))} == {"khala"}
    assert (site / "khala" / "web" / "index.html").is_file()
    assert len(list((site / "khala" / "npm").glob("khala-*.tgz"))) == len(PACKAGES)
    assert list((site / "khala" / "migrations" / "versions").glob("0001*.py"))
    assert _printed(installed, "import khala; print(khala.__file__)", tmp_path) == f"{site}/khala/__init__.py\n"


def test_a_project_with_a_package_called_app_is_not_disturbed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("NAME = 'mine'\n")
    assert _printed(installed, "import khala.main, app; print(app.NAME)", tmp_path) == "mine\n"
    module = [str(installed.parent / "python"), "-m", "khala", "--help"]
    help_text = subprocess.run(module, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "serve" in help_text


def test_a_wheel_backs_up_restores_and_partitions_without_a_checkout(
    installed: Path, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    env = {name: value for name, value in process_environment().items() if name != "PYTHONPATH"}
    env |= {"KHALA_HOME": str(tmp_path / "home"), "DATABASE_URL": database_url}

    def khala(*words: object, **more: str) -> str:
        command = [str(installed), *map(str, words)]
        done = subprocess.run(command, env=env | more, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    made = khala("backup", "dump", tmp_path / "backups").splitlines()[-1]
    assert (Path(made) / "database.dump").stat().st_size > 0
    assert "0 differences" in khala("restore", "dump", made, DATABASE_URL=empty_url)
    assert "PARTITION BY HASH" in khala("partition-parts", "hash", "--print")
    khala("partition-parts", "month", DATABASE_URL=empty_url)
    assert khala("with-postgres", "psql", "-XAtc", "SELECT 6 * 7", DATABASE_URL=empty_url) == "42\n"
    assert khala("blobs", "save", tmp_path / "saved") == "0 blobs copied\n"
    for name in ("import", "upgrade-check"):
        assert f"khala {name}" in khala(name, "--help")


def test_a_new_project_passes_its_test_and_builds_its_page(installed: Path, tmp_path: Path) -> None:
    _in_project(installed, tmp_path, str(installed), "new", "shop")
    project = tmp_path / "shop"
    tested = _in_project(installed, project, str(installed.parent / "python"), "-m", "pytest", "-q")
    assert "1 passed" in tested
    # The packages of the registry are those of the clients' lock file, so that nothing is downloaded.
    npm_projects.install(CLIENTS)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    for name in ("client", "react"):
        target = project / "web" / "node_modules" / "@khala" / name
        target.mkdir(parents=True)
        (archive,) = (project / "web" / "vendor").glob(f"khala-{name}-*.tgz")
        with tarfile.open(archive) as packed:
            packed.extractall(target, filter=_without_first_folder)
        assert json.loads((project / "web" / "package.json").read_text())["dependencies"][f"@khala/{name}"] == (
            f"file:vendor/{archive.name}"
        )
    for program in ("typescript/bin/tsc", "vite/bin/vite.js build"):
        path, *words = program.split()
        _in_project(installed, project / "web", str(NODE), str(CLIENTS / "node_modules" / path), *words)
    assert list((project / "web" / "dist" / "assets").glob("*.js"))


def _without_first_folder(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The member of an npm package, which is in the folder `package` there."""
    return tarfile.data_filter(member.replace(name=member.name.partition("/")[2]), folder)


def _in_project(installed: Path, folder: Path, *command: str) -> str:
    """The output of the command in this folder, with the environment of a developer."""
    env = {name: value for name, value in process_environment().items() if name not in {"PYTHONPATH", "KHALA_HOME"}}
    env["PATH"] = f"{installed.parent}:{env['PATH']}"
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_builds_a_first_agent(installed: Path, tmp_path: Path) -> None:
    page = docs.FIRST_AGENT
    shell = [code for language, _, code in docs.blocks(page) if language == "sh"]
    create, test = shell
    _in_project(installed, tmp_path, "bash", "-euc", create)
    project = tmp_path / "shop"
    port = free_port()
    log = tmp_path / "dev.log"
    env = {name: value for name, value in process_environment().items() if name not in {"PYTHONPATH", "DATABASE_URL"}}
    with log.open("wb") as out:
        command = [str(installed), "dev", "--port", str(port)]
        process = subprocess.Popen(command, cwd=project, env=env, stdout=out, stderr=out)
    try:
        _wait_for(log, "Press Ctrl-C to stop.")
        assert "agents: app:counter; tools: count_words" in log.read_text()
        files = docs.files(page)
        (project / "agents.py").write_text(files["agents.py"])
        (shown,) = [code for language, _, code in docs.blocks(page) if language == "text"]
        _wait_for(log, shown.strip())
        (project / "tests" / "test_agent.py").write_text(files["tests/test_agent.py"])
        guest = Guest(f"http://127.0.0.1:{port}")
        guest.approve(guest.send("app:refunds", "A-17"))
        assert guest.answer() == "You bought a kettle.\nYou get 39 back."
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "1 passed" in _in_project(installed, project, "bash", "-euc", test)


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
