"""Control groups: bound the memory of a sandbox in total, including what the kernel allocates for it.

Rlimits count addresses and processes. The kernel's own tables (of mappings, of pipes) are counted by the memory
controller only: cgroup v2, or v1 on machines that still have it. This process must have a group in which it may create
groups.
"""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

PREFIX = "khala-sandbox-"
TRIAL_BYTES = 64 << 20
REMOVE_TIMEOUT_SECONDS = 0.5
_numbers = itertools.count()


class CgroupLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one cgroup version. `fixed` are written if they exist; `{limit}` is the limit in bytes."""

    limit: str
    fixed: tuple[tuple[str, str], ...]
    events: str


V2 = CgroupLayout(
    limit="memory.max",
    fixed=(("memory.swap.max", "0"), ("memory.oom.group", "1"), ("pids.max", "{processes}")),
    events="memory.events",
)
V1 = CgroupLayout(
    limit="memory.limit_in_bytes", fixed=(("memory.memsw.limit_in_bytes", "{limit}"),), events="memory.oom_control"
)


class MemoryGroup:
    """The control group of one sandbox."""

    def __init__(self, path: Path, layout: CgroupLayout) -> None:
        self._path = path
        self._layout = layout

    def add(self, pid: int) -> None:
        """Count this process, and all processes that it starts from now on. Raises `OSError`."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def exceeded(self) -> bool:
        """Whether the kernel has killed a process because the group exceeded its memory."""
        with suppress(OSError):
            for line in (self._path / self._layout.events).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count) > 0
        return False

    def remove(self) -> None:
        """Remove the group, whose processes have ended or are about to. `find` removes groups that remain."""
        deadline = time.monotonic() + REMOVE_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                self._path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.005)
            else:
                return


class MemoryGroupFactory:
    """Creates groups below a group that this process may write to."""

    def __init__(self, base: Path, layout: CgroupLayout) -> None:
        self.base = base
        self.layout = layout

    def create(self, limit: int, processes: int) -> MemoryGroup:
        """Create a group with at most so many bytes, without swap. Raises `OSError`."""
        path = self.base / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        path.mkdir()
        try:
            (path / self.layout.limit).write_text(str(limit))
            for name, value in self.layout.fixed:
                if (path / name).exists():
                    (path / name).write_text(value.format(limit=limit, processes=processes))
        except OSError:
            path.rmdir()
            raise
        return MemoryGroup(path, self.layout)


def find(proc: Path = Path("/proc")) -> MemoryGroupFactory | None:
    """A factory that could create a trial group; None if this process may create no groups."""
    for base, layout in candidates(proc):
        groups = MemoryGroupFactory(base, layout)
        try:
            if layout is V2:
                _enable(base)
            groups.create(TRIAL_BYTES, 1).remove()
        except OSError:
            continue
        _remove_abandoned(base, proc)
        return groups
    return None


def candidates(proc: Path) -> Iterator[tuple[Path, CgroupLayout]]:
    """This process's own group and its ancestors, the nearest first; with version 1 only its own."""
    try:
        mounts = [line.split() for line in (proc / "self/mountinfo").read_text().splitlines()]
        own = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        root, mounted = fields[3], Path(fields[4])
        for _, controllers, path in own:
            relative = Path(path.removeprefix(root.rstrip("/")).lstrip("/"))
            if kind == "cgroup2" and not controllers:
                yield from ((mounted / part, V2) for part in (relative, *relative.parents))
            elif kind == "cgroup" and "memory" in options and "memory" in controllers.split(","):
                yield mounted / relative, V1


def _enable(base: Path) -> None:
    """Enable the controllers for groups below. The kernel refuses this for a group that has processes of its own."""
    enabled = (base / "cgroup.subtree_control").read_text().split()
    if "memory" not in enabled:
        (base / "cgroup.subtree_control").write_text("+memory")
    if "pids" not in enabled:
        with suppress(OSError):
            (base / "cgroup.subtree_control").write_text("+pids")


def _remove_abandoned(base: Path, proc: Path) -> None:
    """Remove groups of processes that have ended."""
    for path in base.glob(f"{PREFIX}*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not (proc / pid).exists():
            with suppress(OSError):
                path.rmdir()
