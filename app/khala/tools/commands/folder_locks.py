"""Locks of checkouts: files that one process locks at a time, and that are unlocked when it ends."""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from khala.tools.commands.git import GIT_TIMEOUT_SECONDS, Git, GitError

LOCK_TIMEOUT_SECONDS = 120.0
"""Time to wait for other steps in the same folder."""
LOCK_INTERVAL_SECONDS = 0.05
INDEX_TIMEOUT_SECONDS = 10.0
"""Time to wait for a git that a person or an earlier attempt has started."""


@asynccontextmanager
async def locked(path: Path, timeout_seconds: float | None = None) -> AsyncIterator[None]:
    """Hold this file's lock. Raises `GitError` if others hold it for `timeout_seconds`, by default 120."""
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds):
            while (file := _try_lock(path)) is None:  # noqa: ASYNC110  # another process unlocks it
                await asyncio.sleep(LOCK_INTERVAL_SECONDS)
    except TimeoutError as error:
        raise GitError("Another step is at work in the same folder.") from error
    with file:
        yield


async def wait_for_index(git: Git, *, removes: bool) -> None:
    """Wait until no other git changes the index of the folder. With `removes`, remove a lock that was left behind.

    Raises `GitError` if the index stays locked.
    """
    path = Path(await git.text("rev-parse", "--path-format=absolute", "--git-path", "index.lock"))
    try:
        async with asyncio.timeout(INDEX_TIMEOUT_SECONDS):
            while (age := await asyncio.to_thread(_age, path)) is not None:
                if removes and age > GIT_TIMEOUT_SECONDS:
                    await asyncio.to_thread(path.unlink, missing_ok=True)
                await asyncio.sleep(LOCK_INTERVAL_SECONDS)
    except TimeoutError as error:
        raise GitError(f"Another git is at work in {git.folder}. If there is none, delete {path}.") from error


def _age(path: Path) -> float | None:
    """The seconds since the file was written, None if there is none."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None


def _try_lock(path: Path) -> IO[str] | None:
    """The locked file, None if another process has locked it, or has removed it meanwhile."""
    file = path.open("a")
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    file.close()
    return None
