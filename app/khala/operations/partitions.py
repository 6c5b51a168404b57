"""`khala partition-parts`: partitions the table of parts in one transaction."""

from pathlib import Path
from typing import Literal

import asyncpg
import click

from khala.components import open_database
from khala.settings import Settings
from khala.store.postgres.database import driver_url

SCRIPTS = {"hash": "partition_parts.sql", "month": "partition_parts_by_month.sql"}
FOLDER = Path(__file__).parent / "sql"


def script(by: Literal["hash", "month"]) -> str:
    """The SQL that partitions the table: one transaction, and an ANALYZE."""
    return (FOLDER / SCRIPTS[by]).read_text()


async def split(settings: Settings, by: Literal["hash", "month"]) -> None:
    """Partition the table, which is locked meanwhile."""
    async with open_database(settings) as db:
        connection = await asyncpg.connect(driver_url(db.direct_url))
        try:
            await connection.execute(script(by))
        finally:
            await connection.close()
    click.echo("The table of parts is partitioned.")
