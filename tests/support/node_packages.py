"""Programs for Node with packages from npm: installed once by their lock file, run by the bundled Node."""

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

CACHE = Path(__file__).parents[2] / ".cache" / "node_packages"
PACKAGES = ("package.json", "package-lock.json")
TIMEOUT_SECONDS = 60
INSTALL_TIMEOUT_SECONDS = 400
"""The largest client has a thousand packages."""


async def run(program: Path, **env: str) -> dict[str, Any]:
    """Run the program, whose folder has a lock file; returns the JSON that it prints."""
    installed_program = await asyncio.to_thread(install, program)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(NODE), str(installed_program), env={**os.environ, **env}, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return dict(json.loads(output))


def install(program: Path) -> Path:
    """The program beside its packages. Of concurrent processes, one installs them, atomically."""
    folder = installed_packages(program.parent)
    content = program.read_bytes()
    copy = folder / f"{program.stem}-{sha256(content).hexdigest()[:16]}{program.suffix}"
    if not copy.exists():
        partial = copy.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.rename(copy)
    return copy


def installed_packages(source: Path) -> Path:
    """The folder with the packages of the lock file in `source`."""
    digest = sha256(b"".join((source / name).read_bytes() for name in PACKAGES)).hexdigest()[:16]
    folder = CACHE / f"{source.name}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _install(source, folder)
    return folder


def _install(source: Path, folder: Path) -> None:
    shutil.rmtree(partial := folder.with_suffix(".partial"), ignore_errors=True)
    partial.mkdir()
    for name in PACKAGES:
        shutil.copy(source / name, partial)
    ci = [str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    env = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(
        ci, cwd=partial, env=env, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    partial.rename(folder)
