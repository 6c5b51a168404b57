"""OpenAI's client for Node: installed once by its lock file, run by the bundled Node."""

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.support.oidc.install import NODE, NPM

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[3] / ".cache" / "openai_node"
PACKAGES = ("package.json", "package-lock.json")
PROGRAM = "talk.mjs"


async def talk(base_url: str, key: str) -> dict[str, Any]:
    """Run the program against this server; returns the results that it prints."""
    program = await asyncio.to_thread(_installed)
    env = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(str(NODE), str(program), env=env, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(60):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return dict(json.loads(output))


def _installed() -> Path:
    """The program beside its packages. Of concurrent processes, one installs them, atomically."""
    folder = CACHE / sha256(b"".join((HERE / name).read_bytes() for name in (*PACKAGES, PROGRAM))).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(folder)
    return folder / PROGRAM


def _install(folder: Path) -> None:
    shutil.rmtree(partial := folder.with_suffix(".partial"), ignore_errors=True)
    partial.mkdir()
    for name in (*PACKAGES, PROGRAM):
        shutil.copy(HERE / name, partial)
    ci = [str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    env = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(ci, cwd=partial, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    partial.rename(folder)
