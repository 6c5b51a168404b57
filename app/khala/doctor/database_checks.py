"""What the doctor asks the database: whether it is one that Khala can rely on."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping

from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql

from khala.doctor.findings import Finding, bad, ok, warn
from khala.live.listener import Listener
from khala.store.postgres import migrations
from khala.store.postgres.database import EVERYTHING, Database
from khala.store.postgres.write_check import find_write_problem
from khala.store.schema.tables import metadata

OLDEST_POSTGRES = 150_000
SLOW = 0.02
"""Seconds for a question and its answer over which each step of a conversation is felt."""
ASKED = 7
PEOPLE = 3
"""Connections to leave for people and backups."""
MOST_SKEW = 2.0
"""Seconds by which the two clocks may differ."""

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
    "fsync": "a crash of the machine can leave a database that can't be read; turn it on and restart Postgres",
    "full_page_writes": "a crash of the machine can leave pages half written; turn it on",
    "synchronous_commit": "a crash loses words that people have seen; turn it on where it was turned off: the"
    " server's configuration, ALTER DATABASE or ALTER ROLE … RESET synchronous_commit",
    "autovacuum": "tables only grow, and Postgres stops taking writes in the end; turn it on",
}
"""What must not be off, and why."""
CONNECTIONS = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS most,
           CASE WHEN rolsuper OR datconnlimit < 0 THEN NULL ELSE datconnlimit END AS of_database,
           CASE WHEN rolsuper OR rolconnlimit < 0 THEN NULL ELSE rolconnlimit END AS of_role,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS taken
    FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user
"""


async def server(db: Database) -> Finding:
    """A Postgres that is new enough, takes writes, and can store every character."""
    async with db.driver() as driver:
        found = await driver.fetchrow(SERVER)
    assert found is not None
    says = f"Postgres {found['version']}; 15 or newer is needed"
    if found["number"] < OLDEST_POSTGRES:
        return bad("database", says)
    if found["replica"]:
        return bad("database", f"{says}. This is a replica: let DATABASE_URL name the primary")
    if found["read_only"]:
        return bad("database", f"{says}. It takes no writes: RESET default_transaction_read_only for it and its role")
    if found["encoding"] != "UTF8":
        says = f"{says}. Its encoding is {found['encoding']}: make a database with ENCODING 'UTF8'"
        return bad("database", says)
    return ok("database", says)


async def writes(db: Database) -> Finding:
    """A write is committed."""
    why_not = await find_write_problem(db)
    if why_not is None:
        return ok("writes", "a transaction that writes is committed")
    return bad("writes", f"the database takes no writes: {why_not}. See docs/operations.md, disk full")


async def speed(db: Database, *, slow: float = SLOW) -> Finding:
    """How long a question and its answer take. `slow`: seconds that are too long."""
    took = []
    async with db.driver() as driver:
        for _ in range(ASKED):
            began = time.perf_counter()
            await driver.execute("SELECT 1")
            took.append(time.perf_counter() - began)
    typical = statistics.median(took)
    says = f"answers in {typical * 1000:.1f} ms"
    if typical > slow:
        near = "run Khala near its database, and see what else keeps the database's machine busy"
        return warn("speed", f"{says}; over {slow * 1000:.0f} ms it is felt: {near}")
    return ok("speed", says)


async def durability(db: Database) -> Finding:
    """What is committed stays, and there is what backups need."""
    async with db.driver() as driver:
        return durable({row["name"]: row["setting"] for row in await driver.fetch(DURABILITY)})


def durable(found: Mapping[str, str]) -> Finding:
    """What these settings of Postgres mean for what is stored."""
    for name, why in FATAL.items():
        if found[name] == "off":
            return bad("durability", f"{name} is off: {why}")
    says = ", ".join(f"{name} {setting}" for name, setting in found.items())
    if found["wal_level"] == "minimal":
        return warn("durability", f"{says}: only dumps are possible; base backups want wal_level = replica")
    return ok("durability", says)


async def connections(db: Database, processes: int, each: int) -> Finding:
    """Enough for `processes` that take `each`, and a few for people."""
    async with db.driver() as driver:
        found = await driver.fetchrow(CONNECTIONS)
    assert found is not None
    most = min(limit for limit in (found["most"], found["of_database"], found["of_role"]) if limit is not None)
    need = processes * each + PEOPLE
    says = (
        f"{most} possible, {found['taken']} taken now; wanted are {processes} × {each} for processes of Khala, and"
        f" {PEOPLE} for people"
    )
    if need > most:
        raise_it = "raise max_connections (or the database's or role's CONNECTION LIMIT), or lower KHALA_POOL_SIZE"
        return bad("connections", f"{says}: {raise_it}")
    return ok("connections", says)


async def clock(db: Database, *, now: Callable[[], float] = time.time) -> Finding:
    """How far this machine's clock is from the database's."""
    async with db.driver() as driver:
        await driver.execute("SELECT 1")
        before = now()
        there = float(await driver.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
        after = now()
    # Somewhere between the two it was read, so that much of a difference means nothing.
    skew = max(there - after, before - there, 0.0)
    if skew > MOST_SKEW:
        breaks = "windows of budgets, deadlines of approvals and ends of sessions are off by as much; leases are not"
        return bad("clock", f"{skew:.0f} s from the database's: {breaks}. Run a time service on both machines")
    return ok("clock", f"within {max(skew, after - before):.3f} s of the database's")


async def pgvector(db: Database, tables: MetaData = metadata) -> Finding:
    """The extension can be had, if a column of these tables needs it."""
    users = vector_columns(tables)
    async with db.driver() as driver:
        found = await driver.fetchval("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
    if not users:
        return ok("pgvector", f"{found or 'not there'}; no table needs it")
    if found is None:
        return bad("pgvector", f"not there, and {', '.join(users)} needs it: install pgvector for this Postgres")
    return ok("pgvector", found)


def vector_columns(tables: MetaData) -> list[str]:
    """The columns of a type of pgvector's, as `table.column`."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy tells no types here
    return [
        f"{table.name}.{column.name}"
        for table in tables.sorted_tables
        for column in table.columns
        if column.type.compile(dialect).lower().startswith(("vector", "halfvec", "sparsevec"))
    ]


async def schema(db: Database) -> Finding:
    """As this code's migrations make it."""
    at, head = await migrations.current(db), migrations.head()
    if at is not None and not migrations.is_known(at):
        newer = "newer than this program: it works on it as the version before; go on with the upgrade, or see"
        return warn("schema", f"at {at}, {newer} docs/operations.md for the way back")
    if at != head:
        return bad("schema", f"at {at}, should be at {head}: run `khala migrate`")
    differences = await migrations.differences(db)
    if differences:
        by_hand = "; somebody changed it by hand: change it back"
        return bad("schema", f"at {at}" + "".join(f"; differs: {one}" for one in differences) + by_hand)
    return ok("schema", f"at {at}")


async def notify(db: Database) -> Finding:
    """A notification comes through, by the way that servers use."""
    channel, heard = "khala_doctor", {EVERYTHING: asyncio.Event(), "now": asyncio.Event()}
    listener = Listener(db.direct_url, {channel: lambda payload: heard[payload].set()})
    listening = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(5):
            await heard[EVERYTHING].wait()
            async with db.driver() as driver:
                began = asyncio.get_running_loop().time()
                await driver.execute("SELECT pg_notify($1, 'now')", channel)
                await heard["now"].wait()
    except TimeoutError:
        return bad("notify", "no notification in 5 s: does a pooler stand between? LISTEN needs a direct URL")
    finally:
        listening.cancel()
        await asyncio.wait({listening})
    took = asyncio.get_running_loop().time() - began
    return ok("notify", f"{took * 1000:.1f} ms from NOTIFY to LISTEN")
