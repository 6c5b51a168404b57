"""Builds, checks and tests the page and the console in `app/web`, and builds the gallery of their components.

Usage: python infra/web.py install|build|gallery|check|test|dev [arguments]
"""

import gzip
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infra import npm_projects  # `infra` is found by the line above
from infra.npm_projects import CACHE, CLIENTS, NODE, PAGE, digest, has_content, locked, npm, sources

DIST = PAGE / "dist"
GALLERY_SOURCES = PAGE / "gallery"
GALLERY = CACHE / "gallery"
COMPRESSIBLE = {".html", ".js", ".css", ".svg", ".wasm", ".webmanifest"}


def install() -> None:
    """Install the packages of the lock file, unless they are installed."""
    npm_projects.install(PAGE)


def build() -> None:
    """Build the page and the console into `app/web/dist`, unless its sources have not changed since the last build."""
    with locked("web-build"):
        stamp = DIST / ".built"
        own = [path for path in sources(PAGE) if GALLERY_SOURCES not in path.parents]
        wanted = digest([*own, *sources(CLIENTS / "client")])
        if not has_content(stamp, wanted):
            _prepare()
            npm(PAGE, "run", "--silent", "build")
            _compress()
            stamp.write_text(wanted)


def gallery() -> None:
    """Build the gallery of components into `.cache/gallery`, unless its sources have not changed since then."""
    with locked("web-build"):
        stamp = GALLERY / ".built"
        wanted = digest([*sources(PAGE), *sources(CLIENTS / "client")])
        if not has_content(stamp, wanted):
            _prepare()
            npm(PAGE, "run", "--silent", "gallery")
            stamp.write_text(wanted)


def check() -> None:
    """Check the page's style and types."""
    _prepare()
    npm(PAGE, "run", "--silent", "check")


def test(*arguments: str) -> None:
    """Run the page's own tests."""
    _prepare()
    npm(PAGE, "run", "--silent", "test", "--", *arguments)


def dev(*arguments: str) -> None:
    """Serve the page with hot reload. Requests to the API go to the server at KHALA_URL (http://127.0.0.1:8000)."""
    install()
    os.chdir(PAGE)
    # Replaces this process, so that a signal to this process ends Vite.
    os.execve(NODE, [str(NODE), "node_modules/vite/bin/vite.js", *arguments], npm_projects.environment())


def _prepare() -> None:
    """Install the packages and declare the messages, one process at a time: a check and a build may run at once."""
    install()
    with locked("web-messages"):
        npm_projects.node(PAGE, "messages.js")


def _compress() -> None:
    """Write a compressed copy next to each file that gets smaller by it. The server itself compresses nothing."""
    for path in DIST.rglob("*"):
        if path.suffix in COMPRESSIBLE:
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            if len(packed) < path.stat().st_size:
                path.with_name(f"{path.name}.gz").write_bytes(packed)


COMMANDS: dict[str, Callable[..., None]] = {
    "install": install,
    "build": build,
    "gallery": gallery,
    "check": check,
    "test": test,
    "dev": dev,
}

if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[command](*rest)
