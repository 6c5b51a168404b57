"""Reads and cancels runs on behalf of callers.

Canceling ends a run at once if no executor holds it. Otherwise it requests that the executor ends the run.
"""

from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

import msgspec
from msgspec.structs import replace

from khala.domain.access import Action, Caller
from khala.domain.chat import ACTIVE, Run
from khala.domain.decimals import format_optional
from khala.domain.errors import RunNotFound
from khala.domain.fold import cancelled_statuses, fold
from khala.domain.parts import Finish, MemoryRecall, PartData, RunFailure, encode
from khala.store.budgets import ledger
from khala.store.postgres import rows
from khala.store.postgres.database import (
    Database,
    Driver,
    driver_of,
)
from khala.store.postgres.notifications import notify_executors, notify_threads
from khala.store.postgres.retries import retried
from khala.store.runs import endings, packed_parts, parts
from khala.store.runs.endings import RunEnding
from khala.store.runs.leases import Lease
from khala.store.sharing import access
from khala.store.threads import threads
from khala.store.threads.reset_marks import IS_RUN

HAS_EXECUTOR = "(status = 'running' AND coalesce(lease_expires_at > clock_timestamp(), false))"
"""Whether an executor holds the run."""

ERROR = """
    SELECT data FROM message_parts WHERE run_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND kind = 'error'
    ORDER BY run_id DESC, seq DESC LIMIT 1
"""


async def get(db: Database, run_id: UUID, caller: Caller) -> Run:
    """The run with its error, if the caller may read its thread. Raises the errors of `read_authorized`."""
    async with db.driver() as driver:
        run = await read_authorized(driver, run_id, caller)
        return replace(run, error=await _error(driver, run)) if run.status == "error" else run


async def _error(driver: Driver, run: Run) -> RunFailure | None:
    """Why the run has failed: its last part of the kind `error`."""
    data = await driver.fetchval(ERROR, run.id, run.thread_id)
    if data is not None:
        return msgspec.json.decode(data, type=RunFailure)
    packed = await packed_parts.of_run(driver, run.thread_id, run.id)
    return next((data for part in reversed(packed) if isinstance(data := part.read(), RunFailure)), None)


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
        driver = await driver_of(connection)
        row = await lock_run(driver, thread_id, run_id)
        active = row["status"] in ACTIVE
        if active:
            await cancel_runs(driver, [row])
        now = await lock_run(driver, thread_id, run_id)
        return rows.run(now, await _message_finish(driver, now)), active


LOCK_RUN = f"SELECT *, {HAS_EXECUTOR} AS held FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN} FOR UPDATE"

LOCK_ACTIVE = f"""
    SELECT *, {HAS_EXECUTOR} AS held FROM runs
    WHERE thread_id = $1 AND status IN ('queued', 'running', 'blocked') ORDER BY id FOR NO KEY UPDATE
"""
"""Locks runs in the order of ids, as heartbeats do."""

REQUEST_CANCEL = """
    UPDATE runs SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
    WHERE id = $1 AND thread_id = $2
"""

BUMP = """
    UPDATE threads SET revision = revision + 1, updated_at = clock_timestamp() WHERE id = $1 RETURNING revision
"""


async def lock_run(driver: Driver, thread_id: UUID, run_id: UUID) -> rows.Record:
    """Lock the run, and return it. The caller holds the thread's lock. Raises `RunNotFound`."""
    row: rows.Record | None = await driver.fetchrow(LOCK_RUN, run_id, thread_id)
    if row is None:
        raise RunNotFound("There is no such run.")
    return row


async def lock_active(driver: Driver, thread_id: UUID) -> list[rows.Record]:
    """Lock the thread's runs that have not ended, and return them, oldest first. The caller holds the thread's lock."""
    return sorted(await driver.fetch(LOCK_ACTIVE, thread_id), key=itemgetter("position"))


def is_held(row: rows.Record) -> bool:
    """Whether an executor holds the run, so that only this executor may end it."""
    return bool(row["held"])


async def cancel_runs(
    driver: Driver, active: Sequence[rows.Record], *, revision: int | None = None, at_once: bool = False
) -> None:
    """Cancel active runs of one thread. The caller holds the locks of the runs and of the thread.

    An executor that holds a run is requested to end it; the other runs end here. With `at_once`, all runs end here, and
    executors lose their leases. `revision` is the thread's new revision in this transaction; without it, the thread
    gets one here.
    """
    held = [] if at_once else list(filter(is_held, active))
    for row in held:
        await driver.execute(REQUEST_CANCEL, row["id"], row["thread_id"])
        await notify_executors(driver)
    unheld = [row for row in active if at_once or not is_held(row)]
    if unheld:
        revision = revision or await _bump(driver, unheld[0]["thread_id"])
        await endings.end_runs(driver, [await _write_cancellation(driver, row, revision) for row in unheld])


async def _bump(driver: Driver, thread_id: UUID) -> int:
    revision: int = await driver.fetchval(BUMP, thread_id)
    await notify_threads(driver, [thread_id])
    return revision


async def _write_cancellation(driver: Driver, row: rows.Record, revision: int) -> tuple[Lease, RunEnding]:
    """Store the last parts of a canceled run that no executor holds. Returns its ending."""
    lease = Lease(run_id=row["id"], thread_id=row["thread_id"], message_id=row["message_id"], epoch=row["epoch"])
    stored = [part.read() for part in await parts.of_active_run(driver, lease.thread_id, lease.run_id)]
    content = fold((), stored)
    recalled = next((len(part.memories) for part in stored if isinstance(part, MemoryRecall)), None)
    finish = replace(await _canceled_finish(driver, lease), memories=recalled)
    last_parts: list[PartData] = [*cancelled_statuses(content), finish]
    numbered = [(seq, *encode(part)) for seq, part in enumerate(last_parts, start=len(stored))]
    await parts.insert(driver, lease, numbered, revision)
    return lease, RunEnding(
        status="canceled",
        finish=finish,
        content=fold(content, last_parts),
        seq=len(stored) + len(last_parts),
        unheld_status=row["status"],
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
