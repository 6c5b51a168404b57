"""Measures the memory of a tree of processes, from /proc."""

import itertools
import os
from contextlib import suppress
from pathlib import Path

import msgspec

FOLDERS = ("tmp", "dev/shm")
MAX_PROCESSES = 1000
OWN_MEMORY_FIELDS = ("RssAnon:", "VmSwap:", "VmPTE:")
ENDED_STATM = b"0 0 0 0 0 0 0\n"
"""The content of `statm` of a thread that has ended."""
FDINFO_BYTES = 16 * 1024
LOCK_LINE = b"\nlock:"
"""The beginning of each line about a lock in fdinfo. Such a line is never the first one."""


class SandboxUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of memory and of files in memory, and the numbers of files, mappings and record locks."""

    memory: int
    files: int
    maps: int
    locks: int


def children(pid: int) -> list[int]:
    """Ids of the living child processes. Raises `OSError` if the process is gone."""
    tasks = (Path("/proc") / str(pid) / "task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def measure(first: int, max_maps: int, max_locks: int) -> SandboxUsage | None:
    """The usage of the sandbox with this first process; None if it is gone.

    Memory that processes share after a fork is counted for each of them, so the sum may be too high, but not too low.
    Mappings are counted up to `max_maps` and record locks up to `max_locks`, plus a few more.
    """
    try:
        file_bytes, files = _files(first)
        tree = _process_tree(first)
        folders = [_living_thread(pid) for pid in tree]
        return SandboxUsage(
            memory=file_bytes + sum(map(_own_memory, folders)),
            files=files,
            maps=_count_maps(folders, max_maps),
            locks=_count_locks(folders, max_locks),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def _process_tree(first: int) -> list[int]:
    tree = [first]
    for pid in tree:
        if len(tree) > MAX_PROCESSES:
            break
        try:
            tree += children(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return tree


def _own_memory(folder: str) -> int:
    """Bytes of the process's own memory and page tables, without mapped files."""
    try:
        lines = Path(folder, "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(OWN_MEMORY_FIELDS))


def _count_maps(folders: list[str], limit: int) -> int:
    """Count the mappings of the processes; stop shortly after `limit`."""
    count = 0
    for folder in folders:
        if count > limit:
            break
        try:
            with Path(folder, "maps").open("rb") as file:
                count += sum(1 for _ in itertools.islice(file, limit + 1 - count))
        except PermissionError:
            # The process has made itself unreadable. Only a program that hides something does so.
            return limit + 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def _living_thread(pid: int) -> str:
    """Return the folder in /proc of a living thread of the process.

    The main thread may end before the others, and then /proc shows nothing about it. All threads share one memory and
    one table of descriptors, which the system call filter ensures.
    """
    folder = f"/proc/{pid}"
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(folder, "task").iterdir():
            if (task / "statm").read_bytes() != ENDED_STATM:
                return str(task)
    return folder


def _count_locks(folders: list[str], limit: int) -> int:
    """Count the record locks of the processes; stop shortly after `limit`.

    The kernel lists a lock below the descriptor that took it, and releases it when that descriptor is closed. Unlike
    /proc/locks, this reads nothing of other processes, and does not make them wait for a lock.
    """
    count = 0
    for folder in folders:
        try:
            with os.scandir(f"{folder}/fdinfo") as files:
                for file in files:
                    if count > limit:
                        return count
                    count += _count_descriptor_locks(file.path, limit - count)
        except PermissionError:
            # As with mappings: only a program that hides something makes itself unreadable.
            return limit + 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def _count_descriptor_locks(path: str, limit: int) -> int:
    """Count the locks that were taken through one descriptor; stop shortly after `limit`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    count, tail = 0, b""
    try:
        while count <= limit and (data := os.read(descriptor, FDINFO_BYTES)):
            data = tail + data
            count += data.count(LOCK_LINE)
            tail = data[1 - len(LOCK_LINE) :]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    finally:
        os.close(descriptor)
    return count


def _files(first: int) -> tuple[int, int]:
    """Bytes and number of the files in the sandbox's own folders, which are in memory."""
    size, files = 0, 0
    for folder in FOLDERS:
        status = os.statvfs(f"/proc/{first}/root/{folder}")
        size += (status.f_blocks - status.f_bfree) * status.f_frsize
        files += status.f_files - status.f_ffree
    return size, files
