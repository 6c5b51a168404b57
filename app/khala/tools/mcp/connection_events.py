"""Signals from a transport to its connection, and our own JSON-RPC error codes for failed requests."""

import asyncio
import time

from khala.domain.token_bucket import TokenBucket

MAX_ANNOUNCEMENTS = 5
"""Announcements of a server that each have its tools listed at once."""
ANNOUNCEMENT_SECONDS = 10.0
"""Time between lists that are made for further announcements."""
TIMER_SLACK_SECONDS = 0.01
"""A timer may be early by its resolution."""
MAX_MESSAGE_BYTES = 16 << 20
"""Bytes of one message of a server."""
UNREACHABLE = -32090
"""The request was not sent, because the server is unreachable."""
LOST = -32091
"""The request was sent, and its response did not arrive."""
FORGOTTEN = -32092
"""The request was refused, because the server does not know the session."""
TOO_LARGE = -32093
"""The response is longer than `MAX_MESSAGE_BYTES`."""
REFUSED = -32094
"""The request was refused with 401 or 403."""

DENIED = -32095
"""The request is not possible with the account of the session. It was not executed."""


class ConnectionSignal:
    """Wakes the task of a connection. All methods are called on the event loop."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the transport has ended, so that nothing can be sent."""
        self._woken = asyncio.Event()
        self._announcements = TokenBucket(MAX_ANNOUNCEMENTS, 1 / ANNOUNCEMENT_SECONDS)
        self._is_delayed = False

    def request_check(self) -> None:
        """Request a check of whether the server still responds, and of its tools, because of what Khala has seen."""
        self._woken.set()

    def request_limited_check(self) -> None:
        """Request a check because of what the server has sent.

        `MAX_ANNOUNCEMENTS` have one at once, and then one check is made every `ANNOUNCEMENT_SECONDS`: a server cannot
        make Khala list its tools all the time.
        """
        if self._is_delayed or self._woken.is_set():
            return
        if self._announcements.take(time.monotonic()):
            self._woken.set()
        else:
            self._is_delayed = True
            seconds = self._announcements.wait + TIMER_SLACK_SECONDS
            asyncio.get_running_loop().call_later(seconds, self._check_delayed)

    def _check_delayed(self) -> None:
        self._is_delayed = False
        self._announcements.take(time.monotonic())
        self._woken.set()

    def end(self) -> None:
        """Record that the transport has ended."""
        self.ended = True
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Return when a check was requested or the transport has ended, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._woken.clear()
