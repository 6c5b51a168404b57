"""What a transport tells its connection about: that something is doubtful, or that it is over."""

import asyncio

MOST_MESSAGE = 16 << 20
"""Bytes of one message of a server's."""
UNREACHABLE = -32090
"""Our own code for a request that was never sent, because nobody listens."""
LOST = -32091
"""Our own code for a request that was sent, and whose answer never came."""
FORGOTTEN = -32092
"""Our own code for a request that was refused, because the server does not know our session."""
TOO_LARGE = -32093
"""Our own code for an answer that is over `MOST_MESSAGE`."""
REFUSED = -32094
"""Our own code for a request that was refused with 401 or 403."""


class ConnectionSignal:
    """Wakes the connection. All methods are called on the event loop."""

    def __init__(self) -> None:
        self.ended = False
        """Whether nothing can be sent any more."""
        self._woken = asyncio.Event()

    def doubt(self) -> None:
        """Somebody should look whether the server is still there, and what it offers now."""
        self._woken.set()

    def end(self) -> None:
        """The transport is over."""
        self.ended = True
        self._woken.set()

    async def woken(self, seconds: float) -> None:
        """Return when there is something to look at, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._woken.clear()
