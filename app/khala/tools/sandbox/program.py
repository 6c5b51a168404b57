"""What a sandbox runs, within which limits, and how that ended."""

from typing import Literal, TypeAlias

import msgspec

Language: TypeAlias = Literal["python", "javascript", "shell"]
ExitReason: TypeAlias = Literal["exited", "timeout", "memory", "output", "signal"]

MIB = 1024 * 1024


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Source code, what it reads on its standard input, and how many seconds it may take."""

    language: Language
    code: str
    stdin: bytes = b""
    seconds: float = 10.0


class ProgramExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended.

    `code` is None where it was ended for it: at its `timeout`, over its `memory` (or number of files, mappings or
    record locks), or for its `output`. A program that died of a signal has 128 and the signal's number. `seconds`
    passed by the clock on the wall. `stderr` is the end of what it wrote there.
    """

    code: int | None
    reason: ExitReason
    seconds: float
    stderr: bytes


class SandboxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of each sandbox, and how many there are at once in this process. Sizes are bytes.

    `memory` holds for each process, and for all together including their files; `disk` for `/tmp` and for `/dev/shm`;
    `file` for one file; `stderr` is how much of its end is kept, `stderr_most` how much may be written.
    """

    at_once: int = 4
    patience: float = 10.0
    """Seconds to wait for one of them to become free."""
    memory: int = 512 * MIB
    kernel: int = 64 * MIB
    """What the kernel may hold for the sandbox beyond `memory`, where a control group counts it."""
    maps: int = 16_384
    """Mappings of all processes together, each of which takes some 250 bytes of the kernel's."""
    max_locks: int = 4096
    """Record locks of all processes together, each of which takes some 200 bytes of the kernel's: one for each
    descriptor that they may have."""
    disk: int = 64 * MIB
    file: int = 64 * MIB
    files: int = 10_000
    processes: int = 64
    """Processes and threads together."""
    open_files: int = 64
    """In each process."""
    stderr: int = 16 * 1024
    stderr_most: int = 16 * MIB
