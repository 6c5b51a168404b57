"""Finds the run that an adapter follows: by its id, by the message that it answers, or as the newest of its thread."""

from uuid import UUID

import msgspec

from khala.domain.chat import RunStatus
from khala.domain.generation import ToolChoice, offers
from khala.store.postgres import rows
from khala.store.postgres.database import Driver
from khala.store.threads.reset_marks import IS_MESSAGE, IS_RUN

COLUMNS = "runs.id, runs.thread_id, message_id, user_message_id, revision, status, options"

BY_ID = f"SELECT {COLUMNS} FROM runs WHERE id = $1 AND thread_id = $2 AND {IS_RUN}"

BY_ANSWER = f"""
    SELECT {COLUMNS} FROM runs
    WHERE (id, runs.thread_id) = (SELECT run_id, thread_id FROM messages WHERE id = $1 AND {IS_MESSAGE}) AND {IS_RUN}
"""

NEWEST_ACTIVE = f"""
    SELECT {COLUMNS} FROM runs
    WHERE thread_id = $1 AND plan_id IS NULL AND status IN ('queued', 'running', 'blocked') AND {IS_RUN}
    ORDER BY position DESC, id DESC LIMIT 1
"""

ANSWERS = f"""
    SELECT {COLUMNS} FROM runs
    WHERE user_message_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND {IS_RUN} ORDER BY position, id
"""


NEWEST_ANSWER = f"""
    SELECT {COLUMNS} FROM runs
    WHERE user_message_id = $1 AND thread_id IS NOT DISTINCT FROM $2 AND {IS_RUN}
    ORDER BY position DESC, id DESC LIMIT 1
"""


class _Options(msgspec.Struct, frozen=True, rename="camel"):
    """The options that decide on the tools of `FoundRun`."""

    functions: tuple["_Function", ...] = ()
    tool_choice: ToolChoice | None = None


class _Function(msgspec.Struct, frozen=True):
    name: str


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run: `message_id` is its answer, and `functions` are the client's own tools that it may call."""

    id: UUID
    thread_id: UUID
    message_id: UUID
    user_message_id: UUID
    revision: int
    status: RunStatus
    functions: frozenset[str]


async def by_id(driver: Driver, thread_id: UUID, run_id: UUID) -> FoundRun | None:
    """The run, if it is one of this thread."""
    return _found(await driver.fetchrow(BY_ID, run_id, thread_id))


async def by_answer(driver: Driver, message_id: UUID) -> FoundRun | None:
    """The run that writes the answer with this id, of any thread: authorize the caller before it is shown."""
    return _found(await driver.fetchrow(BY_ANSWER, message_id))


async def newest_active(driver: Driver, thread_id: UUID) -> FoundRun | None:
    """The newest run of the thread that has not ended. Runs of plans do not count."""
    return _found(await driver.fetchrow(NEWEST_ACTIVE, thread_id))


async def first_answer(driver: Driver, thread_id: UUID, message_id: UUID) -> FoundRun | None:
    """The run that first answered this message of the thread."""
    return _found(await driver.fetchrow(f"{ANSWERS} LIMIT 1", message_id, thread_id))


async def newest_answer(driver: Driver, thread_id: UUID, message_id: UUID) -> FoundRun | None:
    """The run that last answered this message of the thread."""
    return _found(await driver.fetchrow(NEWEST_ANSWER, message_id, thread_id))


def _found(row: rows.Record | None) -> FoundRun | None:
    if row is None:
        return None
    options = msgspec.json.decode(row["options"], type=_Options)
    return FoundRun(
        id=row["id"],
        thread_id=row["thread_id"],
        message_id=row["message_id"],
        user_message_id=row["user_message_id"],
        revision=row["revision"],
        status=row["status"],
        functions=frozenset(one.name for one in options.functions if offers(options.tool_choice, one.name)),
    )
