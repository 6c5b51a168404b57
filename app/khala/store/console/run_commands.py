"""Commands of administrators for runs of others: cancel, end, queue again and retry. Each is audited.

Each command is one transaction, which holds the thread's lock, as those of the run's own people do.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec
from sqlalchemy import select

from khala.domain import ids
from khala.domain.access import Action, Caller
from khala.domain.chat import ACTIVE, RunOptions, StoredRunOptions
from khala.domain.errors import Conflict, Forbidden, RunNotFound
from khala.store.accounts import accounts, audit
from khala.store.budgets.stripes import refilled
from khala.store.console.run_list import ConsoleRun, read_run
from khala.store.postgres.database import Database, Driver, driver_of
from khala.store.postgres.notifications import notify_executors
from khala.store.postgres.retries import retried
from khala.store.postgres.rows import Record
from khala.store.runs import runs
from khala.store.threads import sends, threads
from khala.store.threads.sends import SendLimits, SendRequest

Change = Callable[[Driver, Record], Awaitable[bool]]
"""Changes a locked run. Returns whether it did."""

REQUEUE = """
    UPDATE runs SET status = 'queued', lease_owner = NULL, lease_expires_at = NULL, remote_claim = NULL
    WHERE id = $1 AND thread_id = $2
"""
IS_ANSWERED = """
    SELECT EXISTS (SELECT FROM runs WHERE user_message_id = $1 AND thread_id IS NOT DISTINCT FROM $2
                   AND status IN ('queued', 'running', 'blocked'))
"""
RETRIED = """
    SELECT runs.thread_id, runs.user_message_id, runs.status, runs.options, runs.plan_id, runs.user_id,
           runs.asker_key_id, threads.anon_key_hash
    FROM runs JOIN threads ON threads.id = runs.thread_id WHERE runs.id = $1
"""
FORGOTTEN = ("step", "checkout", "draft", "response")
"""Options that belong to the first run alone: a retry makes no plan and no response of its own."""


async def cancel(db: Database, run_id: UUID, admin: Caller, reason: str | None) -> tuple[ConsoleRun, bool]:
    """Cancel the run as its people would. Returns it, and whether it was active. Raises `RunNotFound`."""
    return await _change(db, run_id, admin, reason, "console_run_canceled", _cancel)


async def end(db: Database, run_id: UUID, admin: Caller, reason: str | None) -> tuple[ConsoleRun, bool]:
    """End the run now. An executor that holds it loses the lease, and with it what it has not stored."""
    return await _change(db, run_id, admin, reason, "console_run_ended", _end)


async def requeue(db: Database, run_id: UUID, admin: Caller, reason: str | None) -> tuple[ConsoleRun, bool]:
    """Take the lease of the running run away, so that another executor goes on after the stored text.

    A run that waits in the queue does not change. Raises `Conflict` for one that has ended or awaits an approval.
    """
    return await _change(db, run_id, admin, reason, "console_run_requeued", _requeue)


@retried
async def _change(
    db: Database, run_id: UUID, admin: Caller, reason: str | None, action: str, change: Change
) -> tuple[ConsoleRun, bool]:
    async with db.driver() as driver:
        thread_id = (await find(driver, run_id)).thread_id
    async with db.transaction() as connection:
        await threads.lock(connection, thread_id)
        driver = await driver_of(connection)
        row = await runs.lock_run(driver, thread_id, run_id)
        changed = await change(driver, row)
        if changed:
            about = {"run": str(run_id), "state": row["status"]}
            await audit.record(connection, action, admin, thread_id=thread_id, reason=reason, **about)
        return await find(driver, run_id), changed


async def find(driver: Driver, run_id: UUID) -> ConsoleRun:
    """Return the run. Raises `RunNotFound`."""
    run = await read_run(driver, run_id)
    if run is None:
        raise RunNotFound("There is no such run.")
    return run


async def _cancel(driver: Driver, row: Record) -> bool:
    if row["status"] not in ACTIVE:
        return False
    await runs.cancel_runs(driver, [row])
    return True


async def _end(driver: Driver, row: Record) -> bool:
    if row["status"] not in ACTIVE:
        return False
    await runs.cancel_runs(driver, [row], at_once=True)
    return True


async def _requeue(driver: Driver, row: Record) -> bool:
    if row["status"] == "queued":
        return False
    if row["status"] != "running":
        raise Conflict(f"Only a running run can be queued again. This one is {row['status']}.")
    await driver.execute(REQUEUE, row["id"], row["thread_id"])
    await notify_executors(driver)
    return True


@retried
@refilled
async def retry(
    db: Database, run_id: UUID, admin: Caller, reason: str | None, limits: SendLimits
) -> tuple[ConsoleRun, bool]:
    """Queue another answer to the same message, for the requester of a run that has ended. Returns the new run.

    It has the same options, and counts against the requester's budgets. Raises `RunNotFound`, `Conflict` for a run
    that has not ended or is a step of a plan, or whose requester may not write any more, and the errors of sends.
    """
    async with db.transaction() as connection:
        await connection.execute(select(1))
        driver = await driver_of(connection)
        await find(driver, run_id)
        row = await driver.fetchrow(RETRIED, run_id)
        if row is None:
            raise RunNotFound("There is no such run.")
        requester = await _requester(driver, row)
        question = SendRequest(
            thread_id=row["thread_id"],
            message_id=row["user_message_id"],
            text="",
            options=_options(row["options"]),
            answer_id=ids.new(),
        )
        try:
            thread = await sends.open_thread(driver, question, requester, Action.SEND_MESSAGE, limits)
        except Forbidden as error:
            raise Conflict("The requester of this run may not write in its thread any more.") from error
        await _check_ended(driver, run_id, row)
        sent = await sends.queue_answer(driver, thread, question, requester, limits, stored=True)
        about = {"run": str(run_id), "newRun": str(sent.run_id)}
        await audit.record(connection, "console_run_retried", admin, thread_id=row["thread_id"], reason=reason, **about)
        return await find(driver, sent.run_id), True


async def _check_ended(driver: Driver, run_id: UUID, row: Record) -> None:
    if row["plan_id"] is not None:
        raise Conflict("This run is a step of a plan. Retry the step there.")
    if (await find(driver, run_id)).state in ACTIVE:
        raise Conflict("This run has not ended.")
    if await driver.fetchval(IS_ANSWERED, row["user_message_id"], row["thread_id"]):
        raise Conflict("This message is being answered already.")


async def _requester(driver: Driver, row: Record) -> Caller:
    """The requester, by what is stored of them: the account, or the key of a guest's own thread."""
    if row["user_id"] is not None:
        return Caller(user_id=row["user_id"], name=await accounts.name_of(driver, row["user_id"]))
    guest = Caller(anon_key_hash=row["anon_key_hash"])
    if row["anon_key_hash"] is None or guest.author_id != row["asker_key_id"]:
        raise Conflict("This run was requested with a link, whose key is not stored. Only its holder can ask again.")
    return guest


def _options(stored: str) -> RunOptions:
    options = msgspec.json.decode(stored, type=StoredRunOptions)
    return msgspec.structs.replace(options, if_busy="queue", **dict.fromkeys(FORGOTTEN))
