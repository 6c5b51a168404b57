"""Reads and cancels runs on behalf of callers.

Canceling ends a run at once if no executor holds it. Otherwise it requests that the executor ends the run.
"""

from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

from sqlalchemy import ColumnElement, Row, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from khala.domain.access import Action, Caller
from khala.domain.chat import ACTIVE, Run
from khala.domain.decimals import format_optional
from khala.domain.errors import RunNotFound
from khala.domain.fold import cancelled_statuses, fold
from khala.domain.parts import Finish, PartData, encode
from khala.store.budgets import ledger
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import (
    RUNS_CHANNEL,
    notify,
)
from khala.store.postgres.retries import retried
from khala.store.runs import endings, parts
from khala.store.runs.endings import RunEnding
from khala.store.runs.leases import Lease
from khala.store.schema.tables import runs
from khala.store.sharing import access
from khala.store.threads import threads
from khala.store.threads.reset_marks import IS_RUN


async def get(db: Database, run_id: UUID, caller: Caller) -> Run:
    """The run, if the caller may read its thread. Raises the errors of `read_authorized`."""
    async with db.driver() as driver:
        return await read_authorized(driver, run_id, caller)


async def read_authorized(driver: Driver, run_id: UUID, caller: Caller) -> Run:
    """As `get`, on a connection on which the caller reads more of the run.

    Raises `RunNotFound`, and the errors of `access.authorize`.
    """
    row = await driver.fetchrow(f"SELECT * FROM runs WHERE id = $1 AND {IS_RUN}", run_id)
    if row is None:
        raise RunNotFound("There is no such run.")
    await access.authorize(driver, row["thread_id"], caller, Action.READ_THREAD)
    return rows.run(row, await _message_finish(driver, row))


async def _message_finish(driver: Driver, row: rows.Record) -> str | None:
    """The finish of the run's message, if the run has ended and has none, because its parts are packed."""
    if row["finish"] is not None or row["status"] in ACTIVE:
        return None
    query = "SELECT finish FROM messages WHERE id = $1 AND thread_id = $2"
    finish: str | None = await driver.fetchval(query, row["message_id"], row["thread_id"])
    return finish


@retried
async def cancel(db: Database, run_id: UUID, caller: Caller) -> tuple[Run, bool]:
    """Cancel the run. Returns the run, and whether it was active before.

    Raises the errors of `read_authorized`, and `Forbidden` for a caller who may not write in the thread.
    """
    async with db.driver() as driver:
        thread_id = (await read_authorized(driver, run_id, caller)).thread_id
    async with db.transaction() as connection:
        await threads.lock_authorized(connection, thread_id, caller, Action.CANCEL_RUN)
        row = await _lock_run(connection, thread_id, run_id)
        active = row.status in ACTIVE
        if active:
            await cancel_runs(connection, [row])
        now = (await _lock_run(connection, thread_id, run_id))._mapping
        return rows.run(now, await _message_finish(await driver_of(connection), now)), active


async def _lock_run(connection: AsyncConnection, thread_id: UUID, run_id: UUID) -> Row[tuple[object, ...]]:
    held = runs.c.lease_expires_at > func.clock_timestamp()
    query = select(runs, held.label("held")).where(_is_run(thread_id, run_id), text(IS_RUN)).with_for_update()
    row = (await connection.execute(query)).first()
    if row is None:
        raise RunNotFound("There is no such run.")
    return row


def _is_run(thread_id: UUID, run_id: UUID) -> ColumnElement[bool]:
    return (runs.c.id == run_id) & (runs.c.thread_id == thread_id)


async def lock_active(connection: AsyncConnection, thread_id: UUID) -> list[Row[tuple[object, ...]]]:
    """Lock the thread's runs that have not ended, and return them, oldest first. The caller holds the thread's lock."""
    held = runs.c.lease_expires_at > func.clock_timestamp()
    query = select(runs, held.label("held")).where(runs.c.thread_id == thread_id, runs.c.status.in_(ACTIVE))
    # Locked in the order of ids, as heartbeats do.
    locked = await connection.execute(query.order_by(runs.c.id).with_for_update(key_share=True))
    return sorted(locked, key=attrgetter("position"))


def is_held(row: Row[tuple[object, ...]]) -> bool:
    """Whether an executor holds the run, so that only this executor may end it."""
    return bool(row.status == "running" and row.held)


async def cancel_runs(
    connection: AsyncConnection, active: Sequence[Row[tuple[object, ...]]], *, revision: int | None = None
) -> None:
    """Cancel active runs of one thread. The caller holds the locks of the runs and of the thread.

    An executor that holds a run is requested to end it; the other runs end here. `revision` is the thread's new
    revision in this transaction; without it, the thread gets one here.
    """
    for row in filter(is_held, active):
        at = func.coalesce(runs.c.cancel_requested_at, func.clock_timestamp())
        await connection.execute(update(runs).where(_is_run(row.thread_id, row.id)).values(cancel_requested_at=at))
        await notify(connection, RUNS_CHANNEL, "")
    unheld = [row for row in active if not is_held(row)]
    if unheld:
        revision = revision or await threads.bump(connection, unheld[0].thread_id)
        driver = await driver_of(connection)
        await endings.end_runs(driver, [await _write_cancellation(driver, row, revision) for row in unheld])


async def _write_cancellation(driver: Driver, row: Row[tuple[object, ...]], revision: int) -> tuple[Lease, RunEnding]:
    """Store the last parts of a canceled run that no executor holds. Returns its ending."""
    lease = Lease(run_id=row.id, thread_id=row.thread_id, message_id=row.message_id, epoch=row.epoch)
    stored = [part.read() for part in await parts.of_active_run(driver, lease.thread_id, lease.run_id)]
    content = fold((), stored)
    finish = await _canceled_finish(driver, lease)
    last_parts: list[PartData] = [*cancelled_statuses(content), finish]
    numbered = [(seq, *encode(part)) for seq, part in enumerate(last_parts, start=len(stored))]
    await parts.insert(driver, lease, numbered, revision)
    return lease, RunEnding(
        status="canceled",
        finish=finish,
        content=fold(content, last_parts),
        seq=len(stored) + len(last_parts),
        unheld_status=row.status,
    )


async def _canceled_finish(driver: Driver, lease: Lease) -> Finish:
    """The finish of a run that no executor holds, with the usage and cost until then."""
    account = await ledger.read_account(driver, lease.thread_id, lease.run_id)
    return Finish(
        reason="canceled",
        usage=account.usage,
        cost_usd=format_optional(account.usd),
        witness=account.last_receipt_hash.hex() if account.last_receipt_hash else None,
    )
