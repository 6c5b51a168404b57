"""The doctor: checks what Khala needs and says what to do."""

from functools import partial

from khala.blobs.blob_service import BlobService
from khala.doctor import configuration_checks, database_checks, environment_checks, pooler_checks, workload_checks
from khala.doctor.findings import Check, Finding, checked
from khala.settings import Settings
from khala.store.postgres.database import Database

__all__ = ["Finding", "examine"]


async def examine(
    settings: Settings, db: Database, blob_service: BlobService, *, processes: int = 2, call: bool = False
) -> list[Finding]:
    """All findings. A check that fails is a finding, too.

    `processes`: how many shall run at once. `call`: each configured model is called once, which costs a little.
    """
    checks: dict[str, Check] = {
        "pooler": partial(pooler_checks.finding, db),
        "database": partial(database_checks.server, db),
        "writes": partial(database_checks.writes, db),
        "speed": partial(database_checks.speed, db),
        "durability": partial(database_checks.durability, db),
        "connections": partial(database_checks.connections, db, processes, settings.max_connections),
        "clock": partial(database_checks.clock, db),
        "pgvector": partial(database_checks.pgvector, db),
        "schema": partial(database_checks.schema, db),
        "notify": partial(database_checks.notify, db),
        "wake": partial(environment_checks.wake, settings),
        "transactions": partial(workload_checks.transactions, db),
        "runs": partial(workload_checks.work, db, settings.runs.lease_seconds),
        "blobs": partial(environment_checks.blobs, settings, blob_service),
        "files": partial(environment_checks.files, settings, blob_service),
        "sandbox": environment_checks.sandbox,
    }
    found = [await checked(what, check) for what, check in checks.items()]
    found += await environment_checks.models(settings, call=call)
    return [*found, *environment_checks.disks(settings), *configuration_checks.findings(settings)]
