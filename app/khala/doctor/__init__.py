"""The doctor: checks what Khala needs and says what to do."""

from functools import partial

from khala.blobs.vault import Vault
from khala.doctor import configuration, database, pooler, surroundings, traffic
from khala.doctor.findings import Check, Finding, checked
from khala.settings import Settings
from khala.store.db import Database

__all__ = ["Finding", "examine"]


async def examine(
    settings: Settings, db: Database, vault: Vault, *, processes: int = 2, call: bool = False
) -> list[Finding]:
    """All findings. A check that fails is a finding, too.

    `processes`: how many shall run at once. `call`: each configured model is called once, which costs a little.
    """
    checks: dict[str, Check] = {
        "pooler": partial(pooler.finding, db),
        "database": partial(database.server, db),
        "writes": partial(database.writes, db),
        "speed": partial(database.speed, db),
        "durability": partial(database.durability, db),
        "connections": partial(database.connections, db, processes, settings.connections),
        "clock": partial(database.clock, db),
        "pgvector": partial(database.pgvector, db),
        "schema": partial(database.schema, db),
        "notify": partial(database.notify, db),
        "wake": partial(surroundings.wake, settings),
        "transactions": partial(traffic.transactions, db),
        "runs": partial(traffic.work, db, settings.lease),
        "blobs": partial(surroundings.blobs, settings, vault),
        "files": partial(surroundings.files, settings, vault),
        "sandbox": surroundings.sandbox,
    }
    found = [await checked(what, check) for what, check in checks.items()]
    found += await surroundings.models(settings, call=call)
    return [*found, *surroundings.disks(settings), *configuration.findings(settings)]
