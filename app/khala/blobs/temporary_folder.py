"""A folder for the temporary files of one process. The next process removes it if this one dies."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new folder under `parent`, for the duration of this context. Also removes the folders of dead processes."""
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
        # Before it was locked, another process removed it as abandoned.
        os.close(descriptor)
    raise OSError(f"could not create a temporary folder in {parent}")


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError, BlockingIOError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)
