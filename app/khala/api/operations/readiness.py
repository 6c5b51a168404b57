"""Whether a process can do its work: what is asked each time, and what is probed at most every few seconds."""

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
    """Examines what one process needs; of those who ask at once, all share one probe."""

    def __init__(self, db: Database, listener: Listener, blob_service: BlobService) -> None:
        self._db = db
        self._listener = listener
        self._blob_service = blob_service
        self._writes = _Probe(self._takes_writes)
        self._room = _Probe(blob_service.has_disk_space)

    async def examine(self, *, stopping: bool) -> HealthReport:
        """What works now."""
        database, feed = await self._answers(), self._listener.connected
        checks = (self._writes.well(), self._room.well(), self._blob_service.is_healthy())
        writable, room, blobs = await asyncio.gather(*checks)
        # A full folder is this machine's fault; a bucket that is away is so for every process, which all go on without.
        disk = room and (blobs or not self._blob_service.store.local)
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
        """End probes that are under way."""
        await self._writes.aclose()
        await self._room.aclose()

    async def _answers(self) -> bool:
        try:
            async with self._db.driver() as driver:
                await driver.execute("SELECT 1", timeout=3)
        except Unavailable:
            return False
        return True

    async def _takes_writes(self) -> bool:
        try:
            why_not = await find_write_problem(self._db)
        except Unavailable as error:
            why_not = str(error)
        if why_not is not None:
            log.warning("database_takes_no_writes", why=why_not)
        return why_not is None


class _Probe:
    """Asks `check` if the last answer is too old; all who ask meanwhile share the new one."""

    def __init__(self, check: Callable[[], Awaitable[bool]]) -> None:
        self._check = check
        self._asking: asyncio.Task[bool] | None = None
        self._asked_at = 0.0

    async def well(self) -> bool:
        """What the check found; False if that can't be told in time."""
        old = time.monotonic() - self._asked_at > PROBE_INTERVAL_SECONDS
        if self._asking is None or (self._asking.done() and old):
            self._asking = asyncio.create_task(self._ask())
        # Somebody else may begin the next one before this one is read.
        asking = self._asking
        done, _ = await asyncio.wait({asking}, timeout=PROBE_TIMEOUT_SECONDS)
        return bool(done) and asking.result()

    async def _ask(self) -> bool:
        try:
            return await self._check()
        finally:
            self._asked_at = time.monotonic()

    async def aclose(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})
