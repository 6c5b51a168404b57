"""Programs that a sandbox runs, their limits, and how they end."""

from typing import Literal, TypeAlias

import msgspec

Language: TypeAlias = Literal["python", "javascript", "shell"]
ExitReason: TypeAlias = Literal["exited", "timeout", "memory", "output", "signal"]

MIB = 1024 * 1024


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Source code, standard input, and the time limit in seconds."""

    language: Language
    code: str
    stdin: bytes = b""
    seconds: float = 10.0


class ProgramExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended.

    `code` is None if the program was ended by its `timeout`, by a limit of `memory` (or of the number of files,
    mappings or record locks), or by its limit of `output`. After a signal it is 128 plus the signal's number.
    `seconds` is wall-clock time. `stderr` is the end of its standard error.
    """

    code: int | None
    reason: ExitReason
    seconds: float
    stderr: bytes


class SandboxOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of each sandbox, and how many sandboxes this process runs at once. Sizes are in bytes.

    `memory` applies to each process, and to all together with their files; `disk` to `/tmp` and to `/dev/shm`; `file`
    to one file. A program may write `max_stderr` bytes of standard error, of which the last `stderr` bytes are kept.
    """

    max_sandboxes: int = 4
    wait_seconds: float = 10.0
    """Time to wait for a free sandbox."""
    memory: int = 512 * MIB
    kernel: int = 64 * MIB
    """Memory that the kernel may allocate for the sandbox beyond `memory`, where a control group counts it."""
    max_maps: int = 16_384
    """Mappings of all processes together; each takes about 250 bytes of kernel memory."""
    max_locks: int = 4096
    """Record locks of all processes together, one for each possible descriptor; each takes about 200 bytes of kernel
    memory."""
    disk: int = 64 * MIB
    file: int = 64 * MIB
    max_files: int = 10_000
    max_processes: int = 64
    """Processes and threads together."""
    max_open_files: int = 64
    """In each process."""
    stderr: int = 16 * 1024
    max_stderr: int = 16 * MIB
