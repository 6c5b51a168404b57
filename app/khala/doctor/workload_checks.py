"""Checks of the active work: runs that wait for an executor, and transactions that hold locks."""

from datetime import UTC, datetime, timedelta

from khala.doctor.findings import Finding, bad, ok, warn
from khala.store.memories import vectors
from khala.store.postgres import migrations
from khala.store.postgres.database import Database
from khala.store.runs import run_queue
from khala.store.search import passage_vectors
from khala.store.webhooks import deliveries

MAX_WAIT_SECONDS = 60.0
"""Maximum time that a run should wait for an executor."""
MAX_TRANSACTION_SECONDS = 300.0
MAX_LOCK_WAIT_SECONDS = 5.0
"""Maximum time that a statement should wait for a lock."""
MAX_EVENT_AGE_SECONDS = 3600.0
"""Maximum time that an event should wait for its webhook."""

TRANSACTIONS = """
    SELECT pid, coalesce(application_name, '') AS name,
           extract(epoch FROM clock_timestamp() - xact_start)::float AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND xact_start < clock_timestamp() - $1 * interval '1 s'
    ORDER BY xact_start LIMIT 1
"""
BLOCKER = """
    SELECT blocker.pid, coalesce(blocker.application_name, '') AS name,
           max(extract(epoch FROM clock_timestamp() - waiting.query_start))::float AS seconds
    FROM pg_stat_activity AS waiting CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
    JOIN pg_stat_activity AS blocker ON blocker.pid = blocking.pid
    WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock'
      AND blocker.wait_event_type IS DISTINCT FROM 'Lock'
      AND waiting.query_start < clock_timestamp() - $1 * interval '1 s'
    GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 1
"""
"""The session that holds the lock for which a statement has waited longest, and that waits for no lock itself."""
RECENT_CHANGE = timedelta(days=30)
MAX_SEARCH_WAITING = 1_000
"""Answers that may wait to be prepared for searches."""
SEARCH = f"""
    SELECT (SELECT count(*) FROM (SELECT FROM search_queue LIMIT {MAX_SEARCH_WAITING}) AS queued) AS waiting,
           EXISTS (SELECT FROM search_walk WHERE ended_at IS NOT NULL) AS walked
"""
PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 1"


async def runs(db: Database, lease: float, *, late: float = MAX_WAIT_SECONDS) -> Finding:
    """Check that runs are claimed in time. `lease`: duration of a lease in seconds. `late`: maximum wait in seconds."""
    if await migrations.current(db) is None:
        return ok("runs", "none: there is no schema yet")
    async with db.driver() as driver:
        status = await run_queue.read_queue_status(driver, lease_seconds=lease)
    says = f"{status.queued} queued, {status.running} running, {status.blocked} waiting for a person"
    if status.oldest > late:
        advice = "check that `khala serve` or `khala work` runs and has capacity, and search its log for claim_failed"
        return warn("runs", f"{says}; the oldest has waited for {status.oldest:.0f} s: {advice}")
    if status.lease_age > lease + late:
        advice = "no executor takes over the runs of a lost one: start `khala work`"
        return warn("runs", f"{says}; one lease was not renewed for {status.lease_age:.0f} s: {advice}")
    return ok("runs", says)


async def search(db: Database, *, enabled: bool) -> Finding:
    """Check that past messages are prepared for searches."""
    if await migrations.current(db) is None:
        return ok("search", "nothing to prepare: there is no schema yet")
    async with db.driver() as driver:
        state = await driver.fetchrow(SEARCH)
        without_vectors = await passage_vectors.count_waiting(driver)
    assert state is not None
    if not enabled:
        return ok("search", "switched off by KHALA_SEARCH=0")
    if state["waiting"] >= MAX_SEARCH_WAITING:
        advice = "check that `khala serve` or `khala work` runs, and search its log for messages_not_indexed"
        return warn("search", f"{state['waiting']:,} answers or more are not found yet: {advice}")
    walked = "all threads were read" if state["walked"] else "older threads are still to be read"
    by_meaning = "" if without_vectors is None else f"; {without_vectors:,} entries wait for their vectors"
    return ok("search", f"{state['waiting']} answers waiting; {walked}{by_meaning}")


async def webhooks(db: Database, *, late: float = MAX_EVENT_AGE_SECONDS) -> Finding:
    """Check that events are delivered to webhooks. `late`: maximum age of an event in seconds."""
    if await migrations.current(db) is None:
        return ok("webhooks", "none: there is no schema yet")
    async with db.driver() as driver:
        status = await deliveries.read_status(driver)
    says = f"{status.waiting} events waiting"
    if status.disabled:
        advice = "see disabledReason, mend the endpoint and enable it: `khala webhooks list` shows the operator's"
        return warn("webhooks", f"{says}; {status.disabled} webhooks were disabled because they failed: {advice}")
    if status.oldest_seconds > late:
        advice = "an endpoint fails, or no `khala serve` runs: search its log for webhooks_failed"
        return warn("webhooks", f"{says}; the oldest for {status.oldest_seconds:.0f} s: {advice}")
    return ok("webhooks", says)


async def transactions(
    db: Database, *, longest: float = MAX_TRANSACTION_SECONDS, longest_wait: float = MAX_LOCK_WAIT_SECONDS
) -> Finding:
    """Check for long or prepared transactions, and for waits for the lock of one: they also delay vacuum.

    `longest`: maximum seconds of a transaction. `longest_wait`: maximum seconds for which a statement waits for a lock.
    """
    async with db.driver() as driver:
        prepared = await driver.fetchval(PREPARED)
        blocker = await driver.fetchrow(BLOCKER, longest_wait)
        found = await driver.fetchrow(TRANSACTIONS, longest)
    if prepared is not None:
        return bad("transactions", f"a prepared transaction was left behind: ROLLBACK PREPARED '{prepared}'")
    if blocker is not None:
        owner = f"process {blocker['pid']} ({blocker['name'] or 'unnamed'})"
        says = f"a statement has waited for {blocker['seconds']:.0f} s for a lock of {owner}"
        advice = f"unless that is a migration, SELECT pg_terminate_backend({blocker['pid']})"
        return warn("transactions", f"{says}: {advice}")
    if found is not None:
        advice = f"unless it is a backup, SELECT pg_terminate_backend({found['pid']})"
        harm = "it holds locks, and vacuum cannot clean up"
        owner = f"process {found['pid']} ({found['name'] or 'unnamed'})"
        says = f"{owner} has a transaction that is {found['seconds']:.0f} s old"
        return warn("transactions", f"{says}: {harm}; {advice}")
    return ok("transactions", f"none for more than {longest:.0f} s")


async def embedding_changes(db: Database, model: str | None) -> Finding:
    """Check that the embedding model has not changed under the same name within the last month."""
    what = "embedding changes"
    if model is None or await migrations.current(db) is None:
        return ok(what, "none: there is no embedding model, or no schema yet")
    async with db.driver() as driver:
        changed_at = await vectors.changed_at(driver, model)
    if changed_at is None or datetime.now(UTC) - changed_at > RECENT_CHANGE:
        return ok(what, "none in the last month")
    says = f"{model} answers differently under the same name since {changed_at:%Y-%m-%d %H:%M} UTC"
    return warn(what, f"{says}: all texts are embedded again; pin the version of the model at its server")
