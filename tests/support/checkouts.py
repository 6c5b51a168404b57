"""Git checkouts for tests, without the settings of the machine."""

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
} | {f"GIT_{role}_{field}": "test@localhost" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}


def git(folder: Path, *arguments: str) -> str:
    """The output of git, without white space at its ends."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=30)
    return done.stdout.strip()


def make_checkout(folder: Path) -> Path:
    """A checkout with one commit of the file `base`."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "base").write_text("base\n")
    git(folder, "add", "base")
    git(folder, "commit", "-q", "-m", "Base")
    return folder


def subjects(folder: Path) -> list[str]:
    """The subjects of the commits of the branch, the oldest first."""
    return git(folder, "log", "--reverse", "--first-parent", "--format=%s").split("\n")
