"""The filled database that measurements share."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import msgspec

from khala.domain import ids
from khala.store.postgres import migrations
from khala.store.postgres.database import Database, Driver, driver_url
from tests.scale.deployment import DeploymentSize
from tests.scale.filler import fill
from tests.scale.meter import COUNTED_CALLS, Meter, metered
from tests.support import postgres


class ScaleStage(msgspec.Struct, frozen=True, kw_only=True):
    """A filled database: its URL and size, and the meter that measures there."""

    url: str
    size: DeploymentSize
    meter: Meter
    lock_seconds: float = 6.0
    """Seconds for which the measurement of a locked thread holds the lock."""

    @property
    def db(self) -> Database:
        """The connections whose use is measured."""
        return self.meter.db

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Driver]:
        """A connection whose use is not measured, for preparations and counters."""
        connection = await asyncpg.connect(driver_url(self.url))
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def filled(
    server_url: str,
    size: DeploymentSize,
    *,
    template: str | None = None,
    counted_calls: int = COUNTED_CALLS,
    progress: Callable[[str], None] = print,
) -> AsyncIterator[ScaleStage]:
    """A new database of this size, which is dropped at the end. A migrated `template` saves the migrations."""
    name = f"khala_scale_{ids.new().hex}"
    await postgres.execute(server_url, f'CREATE DATABASE "{name}" TEMPLATE "{template or "template1"}"')
    url = postgres.named(server_url, name)
    try:
        if template is None:
            await migrations.upgrade(url)
        await fill(url, size, progress)
        async with metered(url, counted_calls=counted_calls) as meter:
            yield ScaleStage(url=url, size=size, meter=meter)
    finally:
        await postgres.execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')
