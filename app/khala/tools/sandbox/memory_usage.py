"""How much memory a tree of processes holds, read from /proc."""

import itertools
import os
from contextlib import suppress
from pathlib import Path

import msgspec

FOLDERS = ("tmp", "dev/shm")
MOST_PROCESSES = 1000
OWN = ("RssAnon:", "VmSwap:", "VmPTE:")
ENDED = b"0 0 0 0 0 0 0\n"
"""What statm says of a thread that has ended."""
FDINFO_BYTES = 16 * 1024
LOCK_LINE = b"\nlock:"
"""The beginning of each line on a lock in fdinfo, which is never its first line."""


class SandboxUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are resident or lie in files, and how many files, mappings and record locks there are."""

    memory: int
    files: int
    maps: int
    locks: int


def children(pid: int) -> list[int]:
    """Whom the process began and has not outlived. Raises OSError where it is gone."""
    tasks = (Path("/proc") / str(pid) / "task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def measured(first: int, most_maps: int, max_locks: int) -> SandboxUsage | None:
    """What the sandbox that begins with this process uses, or None when it is gone.

    Memory that processes share after a fork is counted for each: the sum is rather too high than too low. Mappings are
    counted until there are more than `most_maps`, record locks until there are more than `max_locks`.
    """
    try:
        stored, files = _stored(first)
        tree = _tree(first)
        folders = [_living(pid) for pid in tree]
        return SandboxUsage(
            memory=stored + sum(map(_resident, folders)),
            files=files,
            maps=_maps(folders, most_maps),
            locks=_count_locks(folders, max_locks),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def _tree(first: int) -> list[int]:
    found = [first]
    for pid in found:
        if len(found) > MOST_PROCESSES:
            break
        try:
            found += children(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _resident(folder: str) -> int:
    """Bytes of the process's own memory, its page tables among it; not of files."""
    try:
        lines = Path(folder, "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(OWN))


def _maps(folders: list[str], most: int) -> int:
    """How many mappings the processes have, or a few more than `most`: so many are never listed."""
    count = 0
    for folder in folders:
        if count > most:
            break
        try:
            with Path(folder, "maps").open("rb") as file:
                count += sum(1 for _ in itertools.islice(file, most + 1 - count))
        except PermissionError:
            # It has made itself unreadable, as only a program does that hides something.
            return most + 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def _living(pid: int) -> str:
    """Return the folder in /proc of a thread that holds the process's memory and descriptors.

    The thread that a process is named after may have ended before the others; then nothing is read of it any more. All
    threads share one memory, and one table of descriptors: the filter sees to that.
    """
    folder = f"/proc/{pid}"
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(folder, "task").iterdir():
            if (task / "statm").read_bytes() != ENDED:
                return str(task)
    return folder


def _count_locks(folders: list[str], limit: int) -> int:
    """Count the record locks of the processes; stop shortly after `limit`.

    The kernel lists a lock below the descriptor that took it, and releases it when that descriptor is closed. Unlike
    /proc/locks, this reads nothing of other processes, and keeps none of them waiting for a lock.
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


def _stored(first: int) -> tuple[int, int]:
    """Bytes and number of the files in the sandbox's own folders."""
    size, files = 0, 0
    for folder in FOLDERS:
        found = os.statvfs(f"/proc/{first}/root/{folder}")
        size += (found.f_blocks - found.f_bfree) * found.f_frsize
        files += found.f_files - found.f_ffree
    return size, files
