"""The loops of background work that calls models: of jobs in tables, and of what a process asks for."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar
from uuid import UUID

import structlog

from khala.domain.errors import Unavailable
from khala.models.port import ModelFailed

MAX_AT_ONCE = 4
"""Jobs of one kind that one process executes at the same time."""

log = structlog.get_logger()


class ThreadJob(Protocol):
    """A job about a thread."""

    @property
    def thread_id(self) -> UUID:
        """The thread's id."""


J = TypeVar("J", bound=ThreadJob)


async def run_jobs(
    kind: str,
    claim: Callable[[], Awaitable[J | None]],
    execute: Callable[[J], Awaitable[None]],
    *,
    idle_seconds: float,
) -> None:
    """Execute jobs for ever. `idle_seconds`: the mean time between two looks for work.

    Logs every error, under names that begin with `kind`: one job must not end the others. A job that fails, or whose
    process is lost, is claimed again when its lease has lapsed, as often as its table allows.
    """
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def in_place(job: J) -> None:
        try:
            await execute(job)
        except Unavailable as error:
            log.warning(f"{kind}_dropped", thread_id=str(job.thread_id), error=str(error.__cause__))
        except Exception:
            log.exception(f"{kind}_crashed", thread_id=str(job.thread_id))
        finally:
            places.release()

    async with asyncio.TaskGroup() as group:
        while True:
            await places.acquire()
            job = await _claimed(kind, claim)
            if job is None:
                places.release()
                await asyncio.sleep(idle_seconds * random.uniform(0.5, 1.5))
            else:
                group.create_task(in_place(job))


async def _claimed(kind: str, claim: Callable[[], Awaitable[J | None]]) -> J | None:
    try:
        return await claim()
    except Unavailable as error:
        log.warning(f"{kind}_claim_failed", error=str(error.__cause__))
        return None


async def run_when_requested(
    kind: str,
    requested: asyncio.Event,
    execute: Callable[[], Awaitable[None]],
    give_up: Callable[[], None],
    *,
    failure_seconds: float,
) -> None:
    """Execute what is requested, for ever.

    After a failure, what is left is given up, because it is requested again by its next use, and the loop waits for
    `failure_seconds`.
    """
    while True:
        await requested.wait()
        requested.clear()
        try:
            await execute()
        except (ModelFailed, Unavailable) as error:
            log.warning(f"{kind}_failed", reason=str(error), retry_seconds=failure_seconds)
            give_up()
            await asyncio.sleep(failure_seconds)
