"""The reference server of MCP, `server-everything`: installed once by its lock file, run by the bundled Node."""

import fcntl
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from tests.support.oidc.install import NODE, NPM

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[3] / ".cache" / "everything"
PACKAGES = ("package.json", "package-lock.json")
PROGRAM = Path("node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")


def command(transport: str) -> list[str]:
    """The command that starts it, with `stdio`, or with `streamableHttp` on the port of the variable PORT."""
    return [str(NODE), str(_installed() / PROGRAM), transport]


def _installed() -> Path:
    """The folder of the server. Of concurrent processes, one installs it, atomically."""
    folder = CACHE / sha256(b"".join((HERE / name).read_bytes() for name in PACKAGES)).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    shutil.rmtree(partial := folder.with_suffix(".partial"), ignore_errors=True)
    partial.mkdir()
    for name in PACKAGES:
        shutil.copy(HERE / name, partial)
    ci = [str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    env = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(ci, cwd=partial, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    partial.rename(folder)
