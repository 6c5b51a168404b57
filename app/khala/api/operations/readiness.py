"""The readiness of a process. Cheap checks run each time, expensive probes at most every five seconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from khala.api.operations.types import HealthReport
from khala.blobs.blob_service import BlobService
from khala.domain.errors import Unavailable
from khala.live.listener import Listener
from khala.store.postgres.database import Database
from khala.store.postgres.write_check import find_write_problem

log = structlog.get_logger()

PROBE_INTERVAL_SECONDS = 5.0
PROBE_TIMEOUT_SECONDS = 5.0


class ReadinessService:
    """Checks the dependencies of one process. Concurrent callers share one probe."""

    def __init__(self, db: Database, listener: Listener, blob_service: BlobService) -> None:
        self._db = db
        self._listener = listener
        self._blob_service = blob_service
        self._writes = _Probe(self._accepts_writes)
        self._disk_space = _Probe(blob_service.has_disk_space)

    async def examine(self, *, stopping: bool) -> HealthReport:
        """Check all dependencies."""
        database, feed = await self._database_responds(), self._listener.connected
        checks = (self._writes.is_healthy(), self._disk_space.is_healthy(), self._blob_service.is_healthy())
        writable, has_space, blobs = await asyncio.gather(*checks)
        # A full folder affects only this machine. An unavailable bucket affects all processes alike.
        disk = has_space and (blobs or not self._blob_service.store.local)
        return HealthReport(
            ok=database and writable and feed and disk and not stopping,
            database=database,
            writable=database and writable,
            feed=feed,
            blobs=blobs,
            disk=disk,
            stopping=stopping,
        )

    async def aclose(self) -> None:
        """Cancel running probes."""
        await self._writes.aclose()
        await self._disk_space.aclose()

    async def _database_responds(self) -> bool:
        try:
            async with self._db.driver() as driver:
                await driver.execute("SELECT 1", timeout=3)
        except Unavailable:
            return False
        return True

    async def _accepts_writes(self) -> bool:
        try:
            reason = await find_write_problem(self._db)
        except Unavailable as error:
            reason = str(error)
        if reason is not None:
            log.warning("database_not_writable", reason=reason)
        return reason is None


class _Probe:
    """Runs a check if its last result is too old. Concurrent callers share the result."""

    def __init__(self, check: Callable[[], Awaitable[bool]]) -> None:
        self._check = check
        self._running: asyncio.Task[bool] | None = None
        self._checked_at = 0.0

    async def is_healthy(self) -> bool:
        """Return the result of the check, False if it takes too long."""
        is_old = time.monotonic() - self._checked_at > PROBE_INTERVAL_SECONDS
        if self._running is None or (self._running.done() and is_old):
            self._running = asyncio.create_task(self._run())
        # Another caller may start the next check before this result is read.
        running = self._running
        done, _ = await asyncio.wait({running}, timeout=PROBE_TIMEOUT_SECONDS)
        return bool(done) and running.result()

    async def _run(self) -> bool:
        try:
            return await self._check()
        finally:
            self._checked_at = time.monotonic()

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
