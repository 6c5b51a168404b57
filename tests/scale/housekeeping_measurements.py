"""Measurements of what a process does each minute: the purge of deleted threads, and the garbage collector of blobs."""

import tempfile
from datetime import timedelta
from pathlib import Path

from khala.blobs.filesystem import FilesystemBlobStore
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.store.operations import retention
from tests.scale.deployment import MAX_SHARE
from tests.scale.figures import Figure, usage_figures
from tests.scale.stage import ScaleStage
from tests.scale.write_measurements import WAL

PURGE_TARGET_MS = 10_000.0
MINUTE_TARGET_MS = 20.0
POLICY = retention.RetentionPolicy(idle=timedelta(days=365))
"""No thread of the deployment is idle for so long."""


async def measure_purge(stage: ScaleStage) -> list[Figure]:
    """The purge of all deleted threads, and then the same job when nothing is due.

    Most threads were deleted within the last day, so their rows stay when their contents are purged.
    """
    async with stage.connection() as driver:
        written = await driver.fetchval(WAL)
        purge = await stage.meter.once(lambda: retention.purge(stage.db, POLICY))
        written = await driver.fetchval(WAL) - written
    idle = await stage.meter.repeated(lambda: retention.purge(stage.db, POLICY))
    size = f"{stage.size.deleted:,} deleted threads"
    limit = PURGE_TARGET_MS if stage.size.deleted == MAX_SHARE else None
    return [
        *usage_figures("purge", size, purge, milliseconds=limit),
        Figure(name="WAL of the purge", size=size, value=written / 2**20, unit="MiB"),
        *usage_figures("purge when nothing is due", size, idle, milliseconds=MINUTE_TARGET_MS),
    ]


async def measure_blob_collection(stage: ScaleStage) -> list[Figure]:
    """The garbage collector of blobs when nothing is due."""
    with tempfile.TemporaryDirectory(prefix="khala-scale-") as folder:
        collector = BlobGarbageCollector(stage.db, FilesystemBlobStore(Path(folder)))
        await collector.collect()
        usage = await stage.meter.repeated(collector.collect)
    async with stage.connection() as driver:
        objects = await driver.fetchval("SELECT count(*) FROM objects")
    return usage_figures("blob collection when nothing is due", f"{objects:,} objects", usage)
