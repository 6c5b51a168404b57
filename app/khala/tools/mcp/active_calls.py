"""The calls of one server that are running, so that what the server asks for meanwhile is done for the right call."""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar

from khala.models.port import Prompt
from khala.tools.port import CallContext, SampledText, ToolError, UserAnswer, UserQuestion

T = TypeVar("T")

MAX_SAMPLES = 10
"""Model calls that a server may request during one call."""
MAX_QUESTIONS = 10
"""Questions to the person that a server may ask during one call."""

ABANDONED_SECONDS = 60.0
"""Time for which a server may still work on a call that Khala has cancelled."""


class NobodyToAskError(ToolError):
    """The call belongs to no run, so there is no person who could answer."""


class _ActiveCall:
    def __init__(self, call: CallContext, timeout: asyncio.Timeout | None) -> None:
        self.call = call
        self.samples = 0
        self.questions = 0
        self.one_question = asyncio.Lock()
        self.inputs: dict[str, Any] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.context = contextvars.copy_context()
        self._timeout = timeout

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run in a task in the call's own context: its traces belong to the run, and it ends when the call ends."""
        task = self.context.copy().run(asyncio.ensure_future, coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if task.cancelled():
            raise ToolError("The call has ended.")
        return task.result()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the time of the call."""
        timeout, loop = self._timeout, asyncio.get_running_loop()
        deadline = None if timeout is None else timeout.when()
        began = loop.time()
        if timeout is not None:
            timeout.reschedule(None)
        try:
            with nullcontext() if self.call.clock is None else self.call.clock.paused():
                yield
        finally:
            if timeout is not None and deadline is not None and not timeout.expired():
                timeout.reschedule(deadline + loop.time() - began)


class ActiveCalls:
    """The running calls by their idempotency keys."""

    def __init__(self) -> None:
        self._calls: dict[str, _ActiveCall] = {}
        self._cancelled_at: float | None = None

    @asynccontextmanager
    async def track(self, call: CallContext, timeout: asyncio.Timeout | None = None) -> AsyncIterator[None]:
        """Run a call inside. At its end, the model calls and questions that were made for it have ended, too.

        `timeout` is stopped while a person is asked.
        """
        active = self._calls[call.idempotency_key] = _ActiveCall(call, timeout)
        try:
            yield
        except asyncio.CancelledError:  # Also at the call's timeout.
            self._cancelled_at = time.monotonic()
            raise
        finally:
            if self._calls.get(call.idempotency_key) is active:
                del self._calls[call.idempotency_key]
            for task in active.tasks:
                task.cancel()
            if active.tasks:
                await asyncio.wait(active.tasks)

    async def sample(self, key: str | None, prompt: Prompt) -> SampledText:
        """Call a model for the call with this key, or without a key for the only one that runs. Raises `ToolError`."""
        active = self._find(key)
        if active.call.sample is None:
            raise ToolError("This call belongs to no run, so no model is called for it.")
        if active.samples >= MAX_SAMPLES:
            raise ToolError(f"At most {MAX_SAMPLES} model calls are made for one call.")
        active.samples += 1
        return await active.run(_awaited(active.call.sample(prompt)))

    async def ask(self, key: str | None, question: UserQuestion) -> UserAnswer:
        """Ask the person of the call with this key, or without a key of the only one that runs. Raises `ToolError`.

        The time of the call stops meanwhile. Questions of one call are asked one after the other.
        """
        active = self._find(key)
        if active.call.ask is None:
            raise NobodyToAskError("This call belongs to no run, so there is nobody to ask.")
        if active.questions >= MAX_QUESTIONS:
            raise ToolError(f"At most {MAX_QUESTIONS} questions are asked for one call.")
        active.questions += 1
        with active.paused():
            async with active.one_question:
                return await active.run(_awaited(active.call.ask(question)))

    def inputs(self, key: str) -> dict[str, Any]:
        """The inputs that were given during the call with this key: a repeated attempt uses them again."""
        return self._find(key).inputs

    def _find(self, key: str | None) -> _ActiveCall:
        if key is not None:
            active = self._calls.get(key)
            if active is None:
                raise ToolError("There is no running call with this khala/idempotencyKey.")
            return active
        if len(self._calls) != 1:
            raise ToolError(
                f"{len(self._calls)} calls are running. Send the khala/idempotencyKey of the call in _meta."
            )
        if self._cancelled_at is not None and time.monotonic() - self._cancelled_at < ABANDONED_SECONDS:
            raise ToolError("Another call was just cancelled. Send the khala/idempotencyKey of the call in _meta.")
        return next(iter(self._calls.values()))


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
