"""The tasks of an agent in Python: the errors that they raise, and their end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import structlog

log = structlog.get_logger()

CLEANUP_TIMEOUT_SECONDS = 2.0
"""Time for an agent to clean up after its run was stopped, before it is abandoned."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group, as a `TaskGroup` raises it, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from leaves(one)
    else:
        yield error


async def end_tasks(tasks: set[asyncio.Task[Any]], name: str) -> None:
    """Cancel the tasks, and wait until they have cleaned up or the timeout has passed. `name` is the agent's."""
    running = {task for task in tasks if not task.done()}
    for task in running:
        task.cancel()
        task.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
    if running:
        _, left = await asyncio.wait(running, timeout=CLEANUP_TIMEOUT_SECONDS)
        if left:
            log.error("agent_not_stopped", agent=name, seconds=CLEANUP_TIMEOUT_SECONDS)
