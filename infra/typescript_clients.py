"""Checks, tests and packs the npm packages in `app/clients/typescript`.

Usage: python infra/typescript_clients.py install|check|test|pack|build [arguments]
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infra import npm_projects  # `infra` is found by the line above
from infra.npm_projects import CLIENTS, digest, has_content, locked, npm, sources

PACKAGES = ("client", "react", "element")
"""The packages that are published. A package comes after those that it imports."""
PACKED = CLIENTS / "packed"
"""The folder of the tarballs that a wheel of Khala includes."""


def install() -> None:
    """Install the packages of the lock file, unless they are installed."""
    npm_projects.install(CLIENTS)


def check() -> None:
    """Check the style and types of the packages and examples."""
    install()
    npm(CLIENTS, "run", "--silent", "check")


def test(*arguments: str) -> None:
    """Run the packages' unit tests. Takes files and folders, such as `client/src/fold.test.ts`."""
    install()
    npm(CLIENTS, "run", "--silent", "test", "--", *arguments)


def pack(folder: str) -> None:
    """Build the packages, and write their tarballs into the folder, which must exist."""
    install()
    with locked("typescript-pack"):
        _pack(folder)


def build() -> None:
    """Write the tarballs into `PACKED`, unless the sources have not changed since the last build."""
    with locked("typescript-pack"):
        stamp = PACKED / ".built"
        files = [path for package in PACKAGES for path in sources(CLIENTS / package)]
        wanted = digest([*files, CLIENTS / "tsconfig.base.json"])
        if not has_content(stamp, wanted):
            install()
            shutil.rmtree(PACKED, ignore_errors=True)
            PACKED.mkdir()
            _pack(str(PACKED))
            stamp.write_text(wanted)


def _pack(folder: str) -> None:
    for package in PACKAGES:
        npm(CLIENTS, "pack", "--silent", "--workspace", package, "--pack-destination", folder)


COMMANDS: dict[str, Callable[..., None]] = {
    "install": install,
    "check": check,
    "test": test,
    "pack": pack,
    "build": build,
}

if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[command](*rest)
