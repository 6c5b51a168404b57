"""Checks of the database: version, writes, speed, durability, connections, clock, extensions and schema."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping

from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql

from khala.doctor.findings import Finding, bad, ok, warn
from khala.live.listener import Listener
from khala.store.postgres import index_builder, migrations
from khala.store.postgres.database import (
    Database,
)
from khala.store.postgres.notifications import (
    EVERYTHING,
)
from khala.store.postgres.write_check import find_write_problem
from khala.store.schema.tables import metadata

MIN_POSTGRES_VERSION = 150_000
SLOW_QUERY_SECONDS = 0.02
"""Round trip of a query over which users notice each step of a conversation."""
QUERIES = 7
SPARE_CONNECTIONS = 3
"""Connections for people and backups."""
MAX_SKEW_SECONDS = 2.0
"""Difference of the two clocks, at most."""

SERVER = """
    SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
           current_setting('server_encoding') AS encoding,
           current_setting('default_transaction_read_only')::bool AS read_only, pg_is_in_recovery() AS replica
"""
DURABILITY = """
    SELECT name, setting FROM pg_settings WHERE name = ANY (ARRAY[
        'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'wal_level', 'archive_mode'])
"""
FATAL = {
    "fsync": "a crash of the machine can corrupt the database; turn it on and restart Postgres",
    "full_page_writes": "a crash of the machine can leave half-written pages; turn it on",
    "synchronous_commit": "a crash loses text that people have seen; turn it on where it was turned off: the"
    " server's configuration, ALTER DATABASE or ALTER ROLE … RESET synchronous_commit",
    "autovacuum": "tables only grow, and in the end Postgres refuses writes; turn it on",
}
"""Settings of Postgres that must not be off, and why."""
CONNECTIONS = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS most,
           CASE WHEN rolsuper OR datconnlimit < 0 THEN NULL ELSE datconnlimit END AS of_database,
           CASE WHEN rolsuper OR rolconnlimit < 0 THEN NULL ELSE rolconnlimit END AS of_role,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS taken
    FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user
"""


async def server(db: Database) -> Finding:
    """The Postgres is new enough, accepts writes, and can store every character."""
    async with db.driver() as driver:
        found = await driver.fetchrow(SERVER)
    assert found is not None
    says = f"Postgres {found['version']}; 15 or newer is needed"
    if found["number"] < MIN_POSTGRES_VERSION:
        return bad("database", says)
    if found["replica"]:
        return bad("database", f"{says}. This is a replica: set DATABASE_URL to the primary")
    if found["read_only"]:
        return bad("database", f"{says}. It takes no writes: RESET default_transaction_read_only for it and its role")
    if found["encoding"] != "UTF8":
        says = f"{says}. Its encoding is {found['encoding']}: create a database with ENCODING 'UTF8'"
        return bad("database", says)
    return ok("database", says)


async def writes(db: Database) -> Finding:
    """A write can be committed."""
    reason = await find_write_problem(db)
    if reason is None:
        return ok("writes", "a transaction that writes is committed")
    return bad("writes", f"the database takes no writes: {reason}. See docs/operations.md, disk full")


async def speed(db: Database, *, slow: float = SLOW_QUERY_SECONDS) -> Finding:
    """The round trip of a query is short. `slow`: seconds that are too long."""
    durations = []
    async with db.driver() as driver:
        for _ in range(QUERIES):
            began = time.perf_counter()
            await driver.execute("SELECT 1")
            durations.append(time.perf_counter() - began)
    typical = statistics.median(durations)
    says = f"answers in {typical * 1000:.1f} ms"
    if typical > slow:
        advice = "run Khala near its database, and look for other load on the database's machine"
        return warn("speed", f"{says}; over {slow * 1000:.0f} ms users notice: {advice}")
    return ok("speed", says)


async def durability(db: Database) -> Finding:
    """Commits survive crashes, and backups are possible."""
    async with db.driver() as driver:
        return judge_durability({row["name"]: row["setting"] for row in await driver.fetch(DURABILITY)})


def judge_durability(values: Mapping[str, str]) -> Finding:
    """The finding for these settings of Postgres."""
    for name, why in FATAL.items():
        if values[name] == "off":
            return bad("durability", f"{name} is off: {why}")
    says = ", ".join(f"{name} {setting}" for name, setting in values.items())
    if values["wal_level"] == "minimal":
        return warn("durability", f"{says}: only dumps are possible; base backups need wal_level = replica")
    return ok("durability", says)


async def connections(db: Database, processes: int, each: int) -> Finding:
    """There are connections for `processes` that take `each`, and a few for people."""
    async with db.driver() as driver:
        found = await driver.fetchrow(CONNECTIONS)
    assert found is not None
    most = min(limit for limit in (found["most"], found["of_database"], found["of_role"]) if limit is not None)
    need = processes * each + SPARE_CONNECTIONS
    says = (
        f"{most} possible, {found['taken']} in use; needed are {processes} × {each} for processes of Khala, and"
        f" {SPARE_CONNECTIONS} for people"
    )
    if need > most:
        advice = "raise max_connections (or the database's or role's CONNECTION LIMIT), or lower KHALA_POOL_SIZE"
        return bad("connections", f"{says}: {advice}")
    return ok("connections", says)


async def clock(db: Database, *, now: Callable[[], float] = time.time) -> Finding:
    """This machine's clock agrees with the database's."""
    async with db.driver() as driver:
        await driver.execute("SELECT 1")
        before = now()
        theirs = float(await driver.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
        after = now()
    # It was read at some moment between the two, so that a difference up to theirs means nothing.
    skew = max(theirs - after, before - theirs, 0.0)
    if skew > MAX_SKEW_SECONDS:
        harm = "windows of budgets, deadlines of approvals and ends of sessions are off by as much; leases are not"
        return bad("clock", f"{skew:.0f} s from the database's: {harm}. Run a time service on both machines")
    return ok("clock", f"within {max(skew, after - before):.3f} s of the database's")


async def pgvector(db: Database, tables: MetaData = metadata) -> Finding:
    """The extension is available, if a column of these tables needs it."""
    users = vector_columns(tables)
    async with db.driver() as driver:
        found = await driver.fetchval("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
    if not users:
        return ok("pgvector", f"{found or 'not available'}; no table needs it")
    if found is None:
        return bad("pgvector", f"not available, and {', '.join(users)} needs it: install pgvector for this Postgres")
    return ok("pgvector", found)


def vector_columns(tables: MetaData) -> list[str]:
    """The columns of pgvector's types, as `table.column`."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types here
    return [
        f"{table.name}.{column.name}"
        for table in tables.sorted_tables
        for column in table.columns
        if column.type.compile(dialect).lower().startswith(("vector", "halfvec", "sparsevec"))
    ]


async def schema(db: Database) -> Finding:
    """The schema is the one of this program's migrations."""
    at, head = await migrations.current(db), migrations.head()
    if at is not None and not migrations.is_known(at):
        advice = "newer than this program, which works on it, too: continue the upgrade, or see docs/operations.md"
        return warn("schema", f"at {at}, {advice} for the way back")
    if at != head:
        return bad("schema", f"at {at}, should be at {head}: run `khala migrate`")
    differences = await migrations.differences(db)
    if differences:
        listed = "".join(f"; differs: {difference}" for difference in differences)
        return bad("schema", f"at {at}{listed}; it was changed by hand: change it back")
    async with db.driver() as driver:
        retired = await index_builder.find_retired(driver)
    advice = "; only the previous version reads {}: drop it by `khala migrate --drop-retired` if you will not go back"
    return ok("schema", f"at {at}" + "".join(map(advice.format, retired)))


async def notify(db: Database) -> Finding:
    """A notification arrives, by the connection that servers use."""
    channel, received = "khala_doctor", {EVERYTHING: asyncio.Event(), "now": asyncio.Event()}
    listener = Listener(db.direct_url, {channel: lambda payload: received[payload].set()})
    listening = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(5):
            await received[EVERYTHING].wait()
            async with db.driver() as driver:
                began = asyncio.get_running_loop().time()
                await driver.execute("SELECT pg_notify($1, 'now')", channel)
                await received["now"].wait()
    except TimeoutError:
        return bad(
            "notify", "no notification in 5 s: LISTEN needs a direct URL, if there is a pooler (DATABASE_DIRECT_URL)"
        )
    finally:
        listening.cancel()
        await asyncio.wait({listening})
    took = asyncio.get_running_loop().time() - began
    return ok("notify", f"{took * 1000:.1f} ms from NOTIFY to LISTEN")
