"""Loops that look for work when they are notified, and at a time of their own.

A notification only says that there may be something to do: a lost one delays the work until the next look.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from khala.domain.errors import Unavailable

log = structlog.get_logger()


async def poll(
    wake: asyncio.Event,
    look: Callable[[], Awaitable[float]],
    *,
    failure_event: str,
    retry_seconds: float,
    min_interval_seconds: float = 0.0,
) -> NoReturn:
    """Call `look` for ever: at once, whenever `wake` is set, and after the seconds that it returned last.

    If the database is unavailable, this is logged as `failure_event`, and the next look follows after `retry_seconds`.
    """
    while True:
        wake.clear()
        try:
            seconds = await look()
        except Unavailable as error:
            log.warning(failure_event, error=str(error.__cause__))
            seconds = retry_seconds
        await asyncio.sleep(min_interval_seconds)
        await wait_until_set(wake, seconds)


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most so many seconds; None: for ever. Returns whether it was set in time."""
    try:
        async with asyncio.timeout(seconds if seconds is None else max(0.0, seconds)):
            return await event.wait()
    except TimeoutError:
        return False
