"""Limits concurrent imports: each has a file on disk, and a conversation in memory while it is read."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from khala.domain.errors import RateLimited, ReachedLimit

MAX_OPEN = 16
"""Imports that one process has begun. Each has up to 512 MiB in a temporary file."""
MAX_RUNNING = 2
"""Imports that one process reads at once. The others wait."""


class ImportLimiter:
    """Allows one import per account in this process, and few in total."""

    def __init__(self) -> None:
        self._open: set[UUID] = set()
        self.running = asyncio.Semaphore(MAX_RUNNING)

    @contextmanager
    def opened(self, user_id: UUID) -> Iterator[None]:
        """Count the import while this is open. Raises `RateLimited` if the account, or the process, has too many."""
        if user_id in self._open:
            limit = ReachedLimit("open_imports", "account", 1)
            raise RateLimited(
                "An import into this account is running. Wait until it ends.", limit=limit, retry_after=30
            )
        if len(self._open) >= MAX_OPEN:
            limit = ReachedLimit("open_imports", "deployment", MAX_OPEN)
            raise RateLimited("Too many imports are running. Try again later.", limit=limit, retry_after=60)
        self._open.add(user_id)
        try:
            yield
        finally:
            self._open.discard(user_id)
