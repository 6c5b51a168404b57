"""What the doctor asks of the work under way: whether anything waits that nobody will take."""

from khala.doctor.findings import Finding, bad, ok, warn
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from khala.store.runs import run_queue

LATE = 60.0
"""Seconds that a run may wait for an executor."""
LONG = 300.0
"""Seconds that a transaction may last."""

TRANSACTIONS = """
    SELECT pid, coalesce(application_name, '') AS name,
           extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND xact_start < clock_timestamp() - $1 * interval '1 s'
    ORDER BY xact_start LIMIT 1
"""
PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1"


async def work(db: Database, lease: float, *, late: float = LATE) -> Finding:
    """Whoever waits is being served. `lease`: seconds that an executor holds a run; `late`: that are too long."""
    if await migrations.current(db) is None:
        return ok("runs", "none: there is no schema yet")
    async with db.driver() as driver:
        found = await run_queue.read_queue_status(driver, lease_seconds=lease)
    says = f"{found.queued} queued, {found.running} running, {found.blocked} waiting for somebody"
    if found.oldest > late:
        start = "see that a `khala serve` or `khala work` is up and has room, and its log for claim_failed"
        return warn("runs", f"{says}; one could have begun {found.oldest:.0f} s ago: {start}")
    if found.lease_age > lease + late:
        start = "no executor is left to take over what a lost one had: start `khala work`"
        return warn("runs", f"{says}; one has not been heard of for {found.lease_age:.0f} s: {start}")
    return ok("runs", says)


async def transactions(db: Database, *, longest: float = LONG) -> Finding:
    """Nobody holds back vacuum and locks. `longest`: seconds that a transaction may last."""
    async with db.driver() as driver:
        prepared = await driver.fetchval(PREPARED)
        found = await driver.fetchrow(TRANSACTIONS, longest)
    if prepared is not None:
        return bad("transactions", f"a prepared one was left behind: ROLLBACK PREPARED '{prepared}'")
    if found is not None:
        stop = f"if it is no backup, SELECT pg_terminate_backend({found['pid']})"
        held = "it keeps locks, and vacuum from cleaning up"
        says = f"process {found['pid']} ({found['name'] or 'unnamed'}) is in one for {found['seconds']:.0f} s"
        return warn("transactions", f"{says}: {held}; {stop}")
    return ok("transactions", f"none for more than {longest:.0f} s")
