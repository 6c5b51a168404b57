"""The calls of tools that a library executes itself, each shown and stored once as a call of the run."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from khala.sdk.adapters.surface import EndedCall, RunSurface, StoredCall, as_object, as_output, call_name

ToolFunction: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]


class ToolRequest(NamedTuple):
    """A call by a model. `id` is the library's, and unique in the run."""

    id: str
    name: str
    args: Any


class Decision(NamedTuple):
    """A person's decision about a call. `args` are the approved arguments; `denied` is why it was denied."""

    args: dict[str, Any]
    denied: str | None = None


class CallFailedError(Exception):
    """A call failed before the run was interrupted. The message is for the model."""


class _Execution:
    """One execution of a library's tool."""

    def __init__(
        self,
        surface: RunSurface,
        function: ToolFunction,
        explain: Callable[[Exception], str | None],
        defers: tuple[type[Exception], ...],
    ) -> None:
        self._surface = surface
        self._function = function
        self._explain = explain
        self._defers = defers
        self._error: Exception | None = None
        self._values: list[Any] = []
        self.deferred: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def carry_out(self, args: dict[str, Any]) -> Any:
        """Call the function. Returns what is stored of its result."""
        try:
            value = await self._function(args)
        except self._defers as error:
            self.deferred.set_result(error)
            await asyncio.get_running_loop().create_future()  # It is cancelled, and so has not ended.
        except Exception as error:
            self._error = error
            message = self._explain(error)
            if message is None:
                raise
            raise self._surface.error_type(message) from error
        self._values.append(value)
        return as_output(value)

    def result(self, outcome: EndedCall) -> Any:
        """The value that the function has returned, or the stored one. Raises what the function has raised."""
        if self._error is not None:
            raise self._error
        if outcome.error is not None:
            raise CallFailedError(outcome.error)
        return self._values[0] if self._values else outcome.output


class _Approved:
    """A call that a person decides about, and that goes on when the library executes it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.args: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.function: asyncio.Future[ToolFunction] = loop.create_future()

    async def carry_out(self, args: dict[str, Any]) -> Any:
        self.args.set_result(args)
        function = await self.function
        return await function(args)


class ToolCalls:
    """The calls of one run of a library.

    `explain` gives the message of an error of a tool that people and models may read; others are only logged. `defers`
    are the errors by which a tool says that it has to wait: its call has not ended then.
    """

    def __init__(
        self,
        surface: RunSurface,
        blocks: Sequence[str | StoredCall],
        explain: Callable[[Exception], str | None],
        *,
        defers: tuple[type[Exception], ...] = (),
    ) -> None:
        self._surface = surface
        self._explain = explain
        self._defers = defers
        self._stored = {block.id for block in blocks if not isinstance(block, str)}
        self._replies = 0
        self._approved: dict[str, tuple[_Approved, asyncio.Task[EndedCall]]] = {}

    def begin_reply(self) -> None:
        """A new reply of a model begins. Some models use the ids of their calls again in the next reply."""
        self._replies += 1

    def _key(self, call_id: str) -> str:
        return call_id if call_id in self._stored else f"{len(self._stored)}.{self._replies}:{call_id}"

    async def decide(self, requests: Sequence[ToolRequest]) -> list[Decision]:
        """Have a person decide about each of these calls, at once. An approved call is executed by `execute`."""
        tasks = [asyncio.create_task(self._decide(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def execute(self, request: ToolRequest, function: ToolFunction) -> Any:
        """Call the function with the arguments, unless the result of the call is stored: then that is returned.

        Raises what the function raises, and `CallFailedError` for a stored failure.
        """
        execution = _Execution(self._surface, function, self._explain, self._defers)
        approved, task = self._approved.pop(request.id, (None, None))
        if approved is None or task is None:
            args, name = as_object(request.args), call_name(request.name)
            task = asyncio.ensure_future(
                self._surface.tool_call(self._key(request.id), name, args, execution.carry_out)
            )
        elif not task.done():
            approved.function.set_result(execution.carry_out)
        try:
            await asyncio.wait((task, execution.deferred), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise execution.deferred.result()
            return execution.result(task.result())
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def aclose(self) -> None:
        """End the calls that were approved and not executed."""
        tasks = [task for _, task in self._approved.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, request: ToolRequest) -> Decision:
        approved, args = _Approved(), as_object(request.args)
        key, name = self._key(request.id), call_name(request.name)
        task = asyncio.ensure_future(self._surface.tool_call(key, name, args, approved.carry_out, approve=True))
        self._approved[request.id] = approved, task
        await asyncio.wait((task, approved.args), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return Decision(approved.args.result())
        outcome = task.result()
        if outcome.denied:
            del self._approved[request.id]
        return Decision(args, outcome.error if outcome.denied else None)
