"""A folder for one process's temporary files, which the next one clears away if this one dies."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder under `parent`, for as long as this is open. Those that dead processes left there are removed."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    folder, descriptor = _create_locked(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _create_locked(parent: Path) -> tuple[Path, int]:
    for _ in range(10):
        folder = parent / uuid4().hex
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            return folder, descriptor
        # Another process took it for a dead one's before it was locked.
        os.close(descriptor)
    raise OSError(f"No temporary folder could be made in {parent}.")


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
