"""How much memory a tree of processes holds, read from /proc."""

import itertools
import os
from pathlib import Path

import msgspec

FOLDERS = ("tmp", "dev/shm")
MOST_PROCESSES = 1000
OWN = ("RssAnon:", "VmSwap:", "VmPTE:")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are resident or lie in files, how many files there are, and how many mappings."""

    memory: int
    files: int
    maps: int


def children(pid: int) -> list[int]:
    """Whom the process began and has not outlived. Raises OSError where it is gone."""
    tasks = (Path("/proc") / str(pid) / "task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def measured(first: int, most_maps: int) -> Usage | None:
    """What the sandbox that begins with this process uses, or None when it is gone.

    Memory that processes share after a fork is counted for each: the sum is rather too high than too low. Mappings are
    counted until there are more than `most_maps`.
    """
    try:
        stored, files = _stored(first)
        tree = _tree(first)
        return Usage(memory=stored + sum(map(_resident, tree)), files=files, maps=_maps(tree, most_maps))
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


def _resident(pid: int) -> int:
    """Bytes of the process's own memory, its page tables among it; not of files."""
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(OWN))


def _maps(tree: list[int], most: int) -> int:
    """How many mappings the processes have, or a few more than `most`: so many are never listed."""
    count = 0
    for pid in tree:
        if count > most:
            break
        try:
            with (Path("/proc") / str(pid) / "maps").open("rb") as file:
                count += sum(1 for _ in itertools.islice(file, most + 1 - count))
        except PermissionError:
            # It has made itself unreadable, as only a program does that hides something.
            return most + 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def _stored(first: int) -> tuple[int, int]:
    """Bytes and number of the files in the sandbox's own folders."""
    size, files = 0, 0
    for folder in FOLDERS:
        found = os.statvfs(f"/proc/{first}/root/{folder}")
        size += (found.f_blocks - found.f_bfree) * found.f_frsize
        files += found.f_files - found.f_ffree
    return size, files
