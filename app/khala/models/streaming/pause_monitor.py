"""Ends pauses in reading early: looks at all paused responses of a client with one timer.

A response is looked at about three times per pause. A timer for each look would cost more than the look.
"""

import asyncio
import math

from khala.models.streaming.paused_transport import PausedTransport

MAX_HELD_BYTES = 16 << 10
"""Bytes in the kernel that end a pause. The receive buffer of a socket is several times as large."""
MAX_EARLY_SECONDS = 0.01
"""Time by which a look may be early, so that one timer serves many responses."""


class ReadPause:
    """One pause. It ends at the monotonic time `until`, and when no byte has followed for `silence` seconds."""

    def __init__(self, transport: PausedTransport, silence: float, until: float) -> None:
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport = transport
        self._silence = silence
        self._until = until
        self._waiting_bytes = 0

    def deliver(self) -> bool:
        """End the pause. Returns whether bytes have arrived in it; False if it had ended."""
        return self._release() and self._transport.unread() > 0

    def look(self, now: float) -> float | None:
        """End the pause if no bytes have followed those that wait, or too many, or if it took too long.

        Returns the time of the next look.
        """
        unread = self._transport.unread()
        is_silent = 0 < unread == self._waiting_bytes
        if is_silent or unread >= MAX_HELD_BYTES or now >= self._until or self._transport.is_closing:
            self._release()
            return None
        self._waiting_bytes = unread
        return now + self._silence

    def _release(self) -> bool:
        if self.released.done():
            return False
        self.released.set_result(None)
        return True


class PauseMonitor:
    """All pauses of one client, which belong to one event loop."""

    def __init__(self) -> None:
        self._due: dict[ReadPause, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def add(self, pause: ReadPause, due: float) -> None:
        """Look at this pause at the time `due`, and again at the times that each look returns."""
        self._due[pause] = due
        self._schedule(due)

    def remove(self, pause: ReadPause) -> None:
        """The pause has ended."""
        self._due.pop(pause, None)

    def _schedule(self, due: float) -> None:
        if due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time()
        for pause in [pause for pause, due in self._due.items() if due <= now + MAX_EARLY_SECONDS]:
            due = pause.look(now)
            if due is None:
                del self._due[pause]
            else:
                self._due[pause] = due
        if self._due:
            self._schedule(min(self._due.values()))
