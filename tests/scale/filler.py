"""Fills an empty, migrated database with a deployment, by set-based SQL, so that `khala verify` finds no difference.

Foreign keys are not checked while the filler inserts, and secondary indexes of large tables are created afterwards.
Both need a superuser.
"""

import time
from collections.abc import Callable, Sequence

import asyncpg

from khala.store.postgres.database import Driver, driver_url
from tests.scale import fill_statements
from tests.scale.answers import AnswerTemplate, answer_templates
from tests.scale.deployment import COLLECTOR_ID, DEEP_THREAD_ID, HISTORIAN_ID, DeploymentSize

LARGE_TABLES = ("messages", "message_parts", "receipts")
"""Tables whose secondary indexes are created after their rows."""
ACTIVE_PARTS = 5
"""Parts that each active run has written."""
FIRST_ACTIVE, FIRST_QUEUED = 10**15, 10**16
"""Numbers of the first active and the first queued run: ids are made of numbers."""
WAITING_TWICE = 10
"""One of so many threads in the queue waits with two runs."""

SECONDARY_INDEXES = """
    SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = current_schema() AND tablename = ANY($1) AND indexname NOT LIKE '%\\_pkey'
"""
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


async def fill(
    url: str,
    size: DeploymentSize,
    progress: Callable[[str], None] = lambda _: None,
    *,
    with_parts: bool = True,
) -> None:
    """Fill the database at `url`. Autovacuum stays off in its tables, because a measurement needs an idle database."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        await _disable_autovacuum(connection)
        await _insert(connection, size, progress, with_parts=with_parts)
        progress("vacuum")
        await connection.execute("VACUUM (ANALYZE)")
        # Later than the statistics: the active runs of a large table are too few for another ANALYZE.
        chosen = f"SELECT * FROM threads WHERE id IN ({_active_threads(size)})"
        await connection.execute(_begin_runs(chosen, "running", FIRST_ACTIVE))
        await connection.execute(fill_statements.DROP_PLAN)
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def queue_runs(driver: Driver, size: DeploymentSize, first: int, count: int) -> None:
    """Queue so many more runs, where `first` were queued before: of users and guests, most in a thread of its own."""
    number = FIRST_QUEUED + 2 * first
    twice = count // WAITING_TWICE
    made = await driver.fetch(
        fill_statements.WAITING_THREADS.format(users=size.users, first=number, count=count - twice)
    )
    ids = [row["id"] for row in made]
    for chosen, begins in ((ids, number), (ids[:twice], number + count)):
        if chosen:
            await driver.execute(_begin_runs("SELECT * FROM threads WHERE id = ANY($1)", "queued", begins), chosen)


async def remove_queue(driver: Driver) -> None:
    """Delete all queued runs with their threads."""
    await driver.execute("SET session_replication_role = replica")
    await driver.execute("""
        CREATE TEMPORARY TABLE waiting AS SELECT thread_id FROM runs WHERE status = 'queued' GROUP BY thread_id;
        DELETE FROM usage_ledger WHERE run_id IN (SELECT id FROM runs WHERE status = 'queued');
        DELETE FROM messages WHERE thread_id IN (SELECT thread_id FROM waiting);
        DELETE FROM runs WHERE thread_id IN (SELECT thread_id FROM waiting);
        DELETE FROM threads WHERE id IN (SELECT thread_id FROM waiting);
        DROP TABLE waiting;
        RESET session_replication_role;
    """)
    await driver.execute("VACUUM (ANALYZE) runs, messages, threads, usage_ledger")


def _begin_runs(threads: str, status: str, first: int) -> str:
    running = status == "running"
    return fill_statements.BEGIN_RUNS.format(
        threads=threads,
        status=status,
        first=first,
        parts=ACTIVE_PARTS if running else 0,
        epoch=1 if running else 0,
        lease="'scale', now() + interval '1 day'" if running else "NULL, NULL",
    )


async def _disable_autovacuum(connection: Driver) -> None:
    for row in await connection.fetch(TABLES):
        await connection.execute(f'ALTER TABLE "{row["tablename"]}" SET (autovacuum_enabled = false)')


async def _insert(
    connection: Driver, size: DeploymentSize, progress: Callable[[str], None], *, with_parts: bool
) -> None:
    await connection.execute(
        fill_statements.PREPARE.format(collector=COLLECTOR_ID, historian=HISTORIAN_ID)
        + "SET session_replication_role = replica; SET synchronous_commit = off; SET maintenance_work_mem = '256MB';"
        "SET synchronize_seqscans = off;"
    )
    templates = answer_templates()
    await _store_answers(connection, templates)
    # With statistics, the small tables are the ones that are hashed, and the order of the plan stays.
    await connection.execute("ANALYZE scale.answers, scale.answer_parts, scale.answer_receipts")
    values = {
        "users": size.users,
        "threads": size.threads,
        "listed": size.listed,
        "deleted": size.deleted,
        "runs": size.runs,
        "deep_runs": size.deep_runs,
        "deep_thread": DEEP_THREAD_ID,
        "answers": len(templates),
        "revisions": max(len(one.parts) for one in templates) + 2,
    }
    definitions = await _drop_indexes(connection)
    statements = {name: text for name, text in fill_statements.STATEMENTS.items() if with_parts or name != "parts"}
    for name, statement in statements.items():
        began = time.monotonic()
        status = await connection.execute(statement.format(**values))
        progress(f"{name}: {status.rpartition(' ')[2]} rows in {time.monotonic() - began:.1f} s")
    for name, definition in definitions.items():
        began = time.monotonic()
        await connection.execute(definition)
        progress(f"{name}: {time.monotonic() - began:.1f} s")


def _active_threads(size: DeploymentSize) -> str:
    kinds = "('owned', 'anonymous')"
    return f"SELECT id FROM scale.threads WHERE kind IN {kinds} ORDER BY number LIMIT {size.active}"


async def _store_answers(connection: Driver, templates: Sequence[AnswerTemplate]) -> None:
    for number, one in enumerate(templates):
        await connection.execute(
            "INSERT INTO scale.answers VALUES ($1, $2, $3::text::jsonb, $4::text::jsonb, $5::text::jsonb, $6, $7)",
            *(number, one.status, one.question, one.content, one.finish),
            *(len(one.parts), [receipt.suffix for receipt in one.receipts]),
        )
        await connection.executemany(
            "INSERT INTO scale.answer_parts VALUES ($1, $2, $3, $4::text::jsonb)",
            [(number, seq, kind, data) for seq, (kind, data) in enumerate(one.parts)],
        )
        await connection.executemany(
            "INSERT INTO scale.answer_receipts VALUES ($1, $2, $3, $4, $5::text::jsonb, $6)",
            [
                (number, seq, receipt.type, receipt.tool_call_id, receipt.data, receipt.cost_usd)
                for seq, receipt in enumerate(one.receipts)
            ],
        )


async def _drop_indexes(connection: Driver) -> dict[str, str]:
    """Drop the secondary indexes of large tables. Returns the definition of each."""
    found = await connection.fetch(SECONDARY_INDEXES, list(LARGE_TABLES))
    for row in found:
        await connection.execute(f'DROP INDEX "{row["indexname"]}"')
    return {row["indexname"]: row["indexdef"] for row in found}
