"""The tasks of an agent in Python: the operations in them, the errors that they raise, and their end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Never, TypeVar

import structlog

from khala.runs.model_turn import RunOutcome
from khala.runs.run_operations import WaitsForPeople
from khala.sdk.errors import StepError

T = TypeVar("T")

log = structlog.get_logger()

ONE_AT_A_TIME = "An operation of `loop` may not run beside another operation. Await one after the other."
CLEANUP_TIMEOUT_SECONDS = 2.0
"""Time for an agent to clean up after its run was stopped, before it is abandoned."""


class AgentOperations:
    """The operations that an agent's function carries out side by side.

    Its run waits for people once nothing else is carried out. The function does not go on then.
    """

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks of the operations that are being carried out. The function may have created some of them."""
        self.stopped: asyncio.Future[RunOutcome] = asyncio.get_running_loop().create_future()
        """Gets the outcome of a run that ends before its function returns."""
        self._active = 0
        """Operations that are being carried out, except those that wait for a person."""
        self._awaited: set[str] = set()
        self._alone = False

    def check(self) -> None:
        """Raise `StepError` while an operation is carried out that allows no other one beside it."""
        if self._alone:
            raise StepError(ONE_AT_A_TIME)

    async def carry_out(self, operation: Callable[[], Awaitable[T]], *, alone: bool = False) -> T:
        """Return the result of the operation. If the operation waits for a person, this never returns.

        With `alone`, no other operation is allowed beside it.
        """
        self.check()
        if alone and self._active:
            raise StepError(ONE_AT_A_TIME)
        self._alone = alone
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            result = await self._counted(operation)
        except WaitsForPeople as waiting:
            self._awaited.update(waiting.call_ids)
            await self._stop_if_all_wait()
            await _never()  # The run is stopped once nothing else is carried out.
        except BaseException:
            # The function may handle this, and then wait for the operations that wait for a person.
            self._block_if_all_wait()
            raise
        await self._stop_if_all_wait()
        self.tasks.discard(task)
        return result

    async def stop(self, outcome: RunOutcome) -> Never:
        """End the run with this outcome. The function does not go on."""
        if not self.stopped.done():
            self.stopped.set_result(outcome)
        await _never()

    async def _counted(self, operation: Callable[[], Awaitable[T]]) -> T:
        self._active += 1
        try:
            return await operation()
        finally:
            self._active -= 1
            self._alone = False

    async def _stop_if_all_wait(self) -> None:
        if self._block_if_all_wait():
            await _never()

    def _block_if_all_wait(self) -> bool:
        """End the run if all its operations wait for people. Returns whether they do."""
        if not self._awaited or self._active:
            return False
        if not self.stopped.done():
            self.stopped.set_result(RunOutcome("blocked", "blocked", awaits=sorted(self._awaited)))
        return True


async def _never() -> Never:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


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
