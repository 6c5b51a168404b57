"""Environments of their own for Python programs whose packages conflict with those of the tests."""

import fcntl
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "python_packages"
UV = Path(sys.executable).parent / "uv"
INSTALL_TIMEOUT_SECONDS = 300


def interpreter(requirements: Path) -> Path:
    """The interpreter of an environment with these pinned packages. Of concurrent processes, one installs them."""
    digest = sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = CACHE / f"{requirements.parent.name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # An environment cannot be moved, so a file marks a complete one.
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(requirements, folder)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _install(requirements: Path, folder: Path) -> None:
    python = str(folder / "bin" / "python")
    for command in (
        [str(UV), "venv", "--quiet", "--python", sys.executable, str(folder)],
        [str(UV), "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
