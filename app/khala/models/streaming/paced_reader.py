"""Reads the body of a streamed response, and leaves its bytes in the kernel while their text is not needed yet.

It works like the interrupt mitigation of network cards. A token costs a wake-up of the process, a read and a task
switch, but its text waits in the run's buffer until the flush. A pause replaces many such reads by one.

Promise: a pause changes neither the bytes nor their order. It ends when the text is asked for, when the server has
sent nothing for `PROBE_SECONDS` after some bytes (an answer may have ended), when `MAX_HELD_BYTES` wait, and after
`MAX_HOLD_SECONDS`. The timeout for a silent server counts from its last byte, whether that was read or not.
"""

import asyncio
import time

import aiohttp

from khala.models.port import HoldText
from khala.models.streaming.http_client import read_available
from khala.models.streaming.pause_monitor import PauseMonitor, ReadPause
from khala.models.streaming.paused_transport import PausedTransport

PROBE_SECONDS = 0.12
"""Interval at which a paused reader looks whether more bytes have arrived: twice in a pause until the next flush."""
PROBE_DELTAS = 3
"""A server may be silent for the time of this many deltas, at the rate seen, before the pause ends."""
MAX_HOLD_SECONDS = 0.5
"""Length of a pause, for example while the database is unavailable and nothing is flushed."""
MIN_DELTAS = 8
"""Deltas that are read one by one before the first pause, to know their rate."""


class PacedReader:
    """Reads one response. Without `hold` it never pauses."""

    def __init__(self, response: aiohttp.ClientResponse, hold: HoldText | None, pauses: PauseMonitor) -> None:
        self._response = response
        self._consumed = 0
        self._hold = hold if hold is not None and _can_pause(response) else None
        self._pauses = pauses
        self._transport: PausedTransport | None = None
        self._rates = _ArrivalRates()

    async def read(self) -> bytes:
        """Wait for bytes of the body and return all that have arrived; no bytes at its end.

        Raises one of `RESPONSE_ERRORS`, after the last bytes.
        """
        chunk = await read_available(self._response)
        self._consumed += len(chunk)
        return chunk

    async def pause(self, deltas: int, chars: int) -> None:
        """Leave what follows in the kernel until its text is needed, if that saves reads.

        `deltas` and `chars`: the numbers of deltas and characters of the answer so far.
        """
        if self._hold is None:
            return
        rates, transport = self._rates.measure(time.monotonic(), deltas, chars), self._pausable_transport()
        if rates is not None and transport is not None:
            await self._wait(transport, self._hold, rates)

    async def _wait(self, transport: PausedTransport, hold: HoldText, rates: tuple[float, float]) -> None:
        now = asyncio.get_running_loop().time()
        silence = min(max(PROBE_SECONDS, PROBE_DELTAS / rates[0]), MAX_HOLD_SECONDS)
        pause = ReadPause(transport, silence, now + MAX_HOLD_SECONDS)
        transport.pause()
        self._pauses.add(pause, now + silence)
        try:
            hold(pause.deliver, *rates)
            await pause.released
        finally:
            self._pauses.remove(pause)
            transport.resume()
        await transport.drain()

    def _pausable_transport(self) -> PausedTransport | None:
        """The transport, unless bytes of the body wait in the process already, or nothing will follow."""
        content, connection = self._response.content, self._response.connection
        if connection is None or content.is_eof() or content.total_bytes != self._consumed:
            return None
        if self._transport is None and connection.transport is not None:
            self._transport = PausedTransport(connection.transport)
        return None if self._transport is None or self._transport.is_closing else self._transport


class _ArrivalRates:
    """The deltas and characters per second since the last measurement; the first one takes `MIN_DELTAS`."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None
        self._min_deltas = MIN_DELTAS

    def measure(self, now: float, deltas: int, chars: int) -> tuple[float, float] | None:
        """The rates, given the numbers so far at the time `now`; None if they are not known yet."""
        if self._last is None:
            self._last = now, deltas, chars
        then, deltas_then, chars_then = self._last
        if deltas - deltas_then < self._min_deltas or now <= then:
            return None
        self._last, self._min_deltas = (now, deltas, chars), 1
        return (deltas - deltas_then) / (now - then), (chars - chars_then) / (now - then)


def _can_pause(response: aiohttp.ClientResponse) -> bool:
    """Whether the timeout for silence is so long that it cannot end within a pause."""
    connection = response.connection
    protocol = connection.protocol if connection is not None else None
    timeout = protocol.read_timeout if protocol is not None else None
    return protocol is not None and (timeout is None or timeout >= 2 * MAX_HOLD_SECONDS)
