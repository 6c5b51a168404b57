"""Sizes the memory and the WAL of the embedded Postgres by the memory of the machine, or of its container.

Khala, its tools and the page cache use the same memory, so the server takes less of it than a machine of its own would
give it.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
FALLBACK_MEMORY_BYTES = 1 << 30
"""The memory to assume where the system does not tell it."""
PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def parameters(memory: int, disk: int) -> dict[str, str]:
    """The server's settings for so many bytes of memory, on a file system of so many bytes."""
    return {
        "shared_buffers": _megabytes(memory // 8, 64, 1024),
        # Only the planner reads it: memory in which the system caches files, together with `shared_buffers`.
        "effective_cache_size": _megabytes(memory // 2, 256, 65_536),
        # Each of three autovacuum workers may take as much.
        "maintenance_work_mem": _megabytes(memory // 32, 32, 512),
        # Fewer checkpoints write less WAL. After a crash, the server reads up to so much.
        "max_wal_size": _megabytes(min(memory // 4, disk // 20), 512, 4096),
    }


def for_this_machine(directory: Path) -> dict[str, str]:
    """The server's settings on this machine, with its data in `directory`."""
    return parameters(memory_bytes(), shutil.disk_usage(directory).total)


def memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes of memory that this process may use: those of the machine, or the lowest limit of its cgroups."""
    return min([_machine_bytes(), *_limits(proc, cgroups)])


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return FALLBACK_MEMORY_BYTES


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """The limits of this process's cgroup and of all groups above it.

    In a container, the group's path may be that outside of the container. Then only the topmost file exists.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if controllers and "memory" not in controllers.split(","):
            continue
        base, file = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(base):
                yield from _limit(directory / file)


def _limit(file: Path) -> Iterator[int]:
    try:
        value = file.read_text().strip()
    except OSError:
        return
    if value.isdecimal() and int(value) > 0:
        yield int(value)


def _megabytes(size: int, minimum: int, maximum: int) -> str:
    return f"{min(max(size // MIB, minimum), maximum)}MB"
