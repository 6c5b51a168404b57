"""The checks of `khala doctor`: each finding names a problem and what to do about it."""

from functools import partial

from khala.blobs.blob_service import BlobService
from khala.doctor import configuration_checks, database_checks, environment_checks, pooler_checks, workload_checks
from khala.doctor.findings import Check, Finding, run_check
from khala.settings import Settings
from khala.store.postgres.database import Database

__all__ = ["Finding", "examine"]


async def examine(
    settings: Settings, db: Database, blob_service: BlobService, *, processes: int = 2, call: bool = False
) -> list[Finding]:
    """Run all checks. A check that raises is a finding, too.

    `processes`: the number that run at once. `call`: call each configured model once, which costs a little.
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
        "runs": partial(workload_checks.runs, db, settings.runs.lease_seconds),
        "webhooks": partial(workload_checks.webhooks, db),
        "search": partial(workload_checks.search, db, enabled=settings.database.search),
        "blobs": partial(environment_checks.blobs, settings, blob_service),
        "files": partial(environment_checks.files, settings, blob_service),
        "sandbox": environment_checks.sandbox,
        "embeddings": partial(environment_checks.embeddings, settings, call=call),
        "embedding changes": partial(workload_checks.embedding_changes, db, _embedding_name(settings)),
    }
    findings = [await run_check(what, check) for what, check in checks.items()]
    findings += await environment_checks.models(settings, call=call)
    return [*findings, *environment_checks.disks(settings), *configuration_checks.findings(settings)]


def _embedding_name(settings: Settings) -> str | None:
    return None if settings.embeddings.model is None else str(settings.embeddings.model)
