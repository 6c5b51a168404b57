"""The time that a tool call has taken, without the time in which it waits for a person."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MIN_WAIT_SECONDS = 0.05


class CallClock:
    """Runs from its creation, except while it is paused."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._began = time.monotonic()
        self._paused_seconds = 0.0
        self._pauses = 0
        self._paused_at = 0.0

    @property
    def seconds_left(self) -> float:
        """The seconds until the limit; they stay the same during a pause."""
        now = self._paused_at if self._pauses else time.monotonic()
        return self._limit_seconds - (now - self._began - self._paused_seconds)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock. Several pauses may overlap."""
        if not self._pauses:
            self._paused_at = time.monotonic()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._paused_seconds += time.monotonic() - self._paused_at

    async def wait(self, task: "asyncio.Task[Any]") -> bool:
        """Return whether the task has ended before the limit."""
        while not task.done() and (self._pauses or self.seconds_left > 0):
            await asyncio.wait({task}, timeout=max(self.seconds_left, MIN_WAIT_SECONDS))
        return task.done()
