"""A wheel, installed without a checkout, contains everything that operators need."""

import asyncio
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from khala.domain import ids
from tests.support import postgres
from tests.support.server import ROOT, process_environment

# A wheel with the page in it is built first.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `khala` program of a new environment with the installed wheel, and this environment's dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=400)
    (wheel,) = folder.glob("*.whl")
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
