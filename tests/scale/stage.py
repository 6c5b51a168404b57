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
from tests.scale.meter import Meter, metered
from tests.support import postgres


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How long measurements of writes go on: sends at each concurrency, flushes, and seconds of a held lock.

    `counted_calls`: calls of which a repeated one gets the mean; one is enough for buffers and rows.
    `plan_steps`: steps of the large plan, each with ten events. `counted_days`: days whose receipts are counted.
    """

    sends: int = 200
    flushes: int = 200
    lock_seconds: float = 6.0
    counted_calls: int = 5
    plan_steps: int = 1_000
    counted_days: int = 90


FULL_EFFORT = Effort()


class ScaleStage(msgspec.Struct, frozen=True, kw_only=True):
    """A filled database: its URL and size, and the meter that measures there."""

    url: str
    size: DeploymentSize
    meter: Meter
    effort: Effort

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
    effort: Effort = FULL_EFFORT,
    with_parts: bool = True,
    progress: Callable[[str], None] = print,
) -> AsyncIterator[ScaleStage]:
    """A new database of this size, which is dropped at the end. A migrated `template` saves the migrations.

    Without parts, which are most of its bytes, it is filled sooner, and fails verification.
    """
    name = f"khala_scale_{ids.new().hex}"
    await postgres.execute(server_url, f'CREATE DATABASE "{name}" TEMPLATE "{template or "template1"}"')
    url = postgres.named(server_url, name)
    try:
        if template is None:
            await migrations.upgrade(url)
        await fill(url, size, progress, with_parts=with_parts)
        async with metered(url, counted_calls=effort.counted_calls) as meter:
            yield ScaleStage(url=url, size=size, meter=meter, effort=effort)
    finally:
        await postgres.execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)')
