"""Checks, tests and packs the npm packages in `app/clients/typescript`.

Usage: python infra/typescript_clients.py install|check|test|pack [arguments]
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from infra import npm_projects  # `infra` is found by the line above
from infra.npm_projects import CLIENTS, locked, npm

PACKAGES = ("client", "react", "element")
"""The packages that are published. A package comes after those that it imports."""


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
        for package in PACKAGES:
            npm(CLIENTS, "pack", "--silent", "--workspace", package, "--pack-destination", folder)


COMMANDS: dict[str, Callable[..., None]] = {"install": install, "check": check, "test": test, "pack": pack}

if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["help"]
    if command not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[command](*rest)
