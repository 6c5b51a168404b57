"""File locks, which the kernel releases when their holder dies."""

import fcntl
import os
import time
from pathlib import Path

POLL_SECONDS = 0.02


def acquire(path: Path, *, shared: bool = False) -> int | None:
    """Lock the file without waiting. Returns its descriptor, whose closing unlocks it; None if it is already locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    if replaced(descriptor, path):
        os.close(descriptor)
        return None
    return descriptor


def wait(path: Path, *, seconds: float, shared: bool = False) -> int | None:
    """Like `acquire`, but retry for up to `seconds`."""
    deadline = time.monotonic() + seconds
    while (descriptor := acquire(path, shared=shared)) is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return descriptor


def held(path: Path) -> bool:
    """Whether a process holds the lock now."""
    descriptor = acquire(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def write(descriptor: int, text: str) -> None:
    """Replace the content of the lock's file."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def read(path: Path) -> str:
    """The text that the current holder wrote, or an empty one."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def replaced(descriptor: int, path: Path) -> bool:
    """Whether the locked file was deleted or replaced, so that the lock no longer excludes other processes."""
    try:
        return not os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return True
