"""The calls of one server that are running, so that what the server asks for meanwhile is done for the right call."""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from khala.models.port import Prompt
from khala.tools.port import CallContext, SampledText, ToolError

MAX_SAMPLES = 10
"""Model calls that a server may request during one call."""

ABANDONED_SECONDS = 60.0
"""Time for which a server may still work on a call that Khala has cancelled."""


class _ActiveCall:
    def __init__(self, call: CallContext) -> None:
        self.call = call
        self.samples = 0
        self.tasks: set[asyncio.Task[SampledText]] = set()
        self.context = contextvars.copy_context()


class ActiveCalls:
    """The running calls by their idempotency keys."""

    def __init__(self) -> None:
        self._calls: dict[str, _ActiveCall] = {}
        self._cancelled_at: float | None = None

    @asynccontextmanager
    async def track(self, call: CallContext) -> AsyncIterator[None]:
        """Run a call inside. At its end, the model calls that were made for it have ended, too."""
        active = self._calls[call.idempotency_key] = _ActiveCall(call)
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
        # A task in the call's own context: its traces belong to the run, and it ends when the call ends.
        task = active.context.copy().run(asyncio.ensure_future, active.call.sample(prompt))
        assert isinstance(task, asyncio.Task)
        active.tasks.add(task)
        task.add_done_callback(active.tasks.discard)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        if task.cancelled():
            raise ToolError("The call has ended.")
        return task.result()

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
