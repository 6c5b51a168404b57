"""Reads runs with all that a response of OpenAI's Responses API says of them."""

from uuid import UUID

import msgspec

from khala.domain.access import Action, Caller, as_requester
from khala.domain.chat import Run, StoredRunOptions
from khala.domain.errors import RunNotFound
from khala.store.postgres.database import Driver
from khala.store.runs import runs
from khala.store.sharing import access
from khala.store.threads.reset_marks import IS_RUN

RUN = f"""
    SELECT user_message_id, options, user_id, asker_key_id,
           (SELECT count(*) FROM runs AS other WHERE other.thread_id = runs.thread_id
             AND other.position >= coalesce(
                 (SELECT first_position FROM thread_resets WHERE thread_resets.thread_id = runs.thread_id), 0
             )) AS runs_of_thread
    FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN}
"""


class ResponseRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that a caller may read, and the message that it answers. `is_requester`: the caller has asked for it.

    `runs_of_thread` counts the runs of its thread.
    """

    run: Run
    options: StoredRunOptions
    user_message_id: UUID
    is_requester: bool
    runs_of_thread: int


async def read(driver: Driver, run_id: UUID, caller: Caller) -> ResponseRun:
    """The run, if the caller may read its thread. Raises the errors of `runs.read_authorized`."""
    run = await runs.read_authorized(driver, run_id, caller)
    row = await driver.fetchrow(RUN, run_id, run.thread_id)
    if row is None:
        raise RunNotFound("There is no such run.")
    return ResponseRun(
        run=run,
        options=msgspec.json.decode(row["options"], type=StoredRunOptions),
        user_message_id=row["user_message_id"],
        is_requester=as_requester(caller, row["user_id"], row["asker_key_id"]) is not None,
        runs_of_thread=row["runs_of_thread"],
    )


async def read_leaf(driver: Driver, thread_id: UUID, caller: Caller) -> UUID | None:
    """The last message of the thread's active branch. Raises `ThreadNotFound` and `Forbidden`."""
    await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
    leaf: UUID | None = await driver.fetchval("SELECT active_leaf FROM threads WHERE id = $1", thread_id)
    return leaf
