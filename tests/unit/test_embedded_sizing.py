"""Memory and WAL of the embedded Postgres: chosen by the memory of the machine or container, within bounds."""

import os
from pathlib import Path

import pytest

from khala.store.embedded import sizing

GIB = 1 << 30
LARGE_DISK = 1000 * GIB
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMIT = 64 << 20
"""A limit below the memory of any machine that runs tests."""


@pytest.mark.parametrize(
    ("memory", "disk", "sizes"),
    [
        (GIB // 4, LARGE_DISK, ("64MB", "256MB", "32MB", "512MB")),
        (2 * GIB, LARGE_DISK, ("256MB", "1024MB", "64MB", "512MB")),
        (4 * GIB, LARGE_DISK, ("512MB", "2048MB", "128MB", "1024MB")),
        (8 * GIB, 20 * GIB, ("1024MB", "4096MB", "256MB", "1024MB")),
        (8 * GIB, GIB, ("1024MB", "4096MB", "256MB", "512MB")),
        (1000 * GIB, LARGE_DISK, ("1024MB", "65536MB", "512MB", "4096MB")),
    ],
)
def test_sizes_grow_with_memory_within_bounds(memory: int, disk: int, sizes: tuple[str, ...]) -> None:
    names = ("shared_buffers", "effective_cache_size", "maintenance_work_mem", "max_wal_size")
    assert sizing.parameters(memory, disk) == dict(zip(names, sizes, strict=True))


def limited(folder: Path, cgroup: str, files: dict[str, str]) -> int:
    """The memory of a process with this `/proc/self/cgroup` and these files of cgroups."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = folder / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sizing.memory_bytes(folder / "proc", folder / "cgroups")


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {"memory.max": f"{LIMIT}\n"}),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{LIMIT}\n"}),
        ("0::/a/b\n", {"a/b/memory.max": f"{LIMIT}\n", "a/memory.max": f"{2 * LIMIT}\n"}),
        ("0::/of/the/host\n", {"memory.max": f"{LIMIT}\n"}),
        ("3:cpu:/\n2:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{LIMIT}\n"}),
        ("2:cpu,memory:/of/the/host\n", {"memory/memory.limit_in_bytes": f"{LIMIT}\n"}),
    ],
)
def test_the_lowest_limit_of_the_cgroups_counts(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    assert limited(tmp_path, cgroup, files) == LIMIT


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("0::/\n", {}),
        ("0::/\n", {"memory.max": "max\n"}),
        ("2:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}),
        ("2:cpu:/\n", {"memory/memory.limit_in_bytes": f"{LIMIT}\n"}),
    ],
)
def test_without_a_limit_the_memory_of_the_machine_counts(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    assert limited(tmp_path, cgroup, files) == MACHINE


def test_without_proc_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    assert sizing.memory_bytes(tmp_path, tmp_path) == MACHINE
