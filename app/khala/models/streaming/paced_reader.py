"""Reads the body of a streamed response, and leaves its bytes in the kernel while their text is not needed yet.

It works like the interrupt mitigation of network cards. A token costs a wake-up of the process, a read and a task
switch, but its text waits in the run's buffer until the flush. A pause replaces many such reads by one.

Promise: a pause changes neither the bytes nor their order. It ends when the text is asked for, when the server has
sent nothing for `PROBE_SECONDS` after some bytes (an answer may have ended), when `MAX_HELD_BYTES` wait, and after
`MAX_HOLD_SECONDS`. The timeout for a silent server counts from its last byte, whether that was read or not.
"""

import array
import asyncio
import fcntl
import termios
import time

import aiohttp

from khala.models.port import HoldText
from khala.models.streaming.http_client import read_available

PROBE_SECONDS = 0.1
"""Interval at which a paused reader looks whether more bytes have arrived."""
PROBE_DELTAS = 3
"""A server may be silent for the time of this many deltas, at the rate seen, before the pause ends."""
MAX_HELD_BYTES = 16 << 10
"""Bytes in the kernel that end a pause. The receive buffer of a socket is several times as large."""
MAX_HOLD_SECONDS = 0.5
"""Length of a pause, for example while the database is unavailable and nothing is flushed."""
MIN_DELTAS = 8
"""Deltas that are read one by one before the first pause, to know their rate."""
MAX_DRAIN_STEPS = 4
"""Iterations of the event loop in which it reads what has arrived. TLS takes up to three."""


class PacedReader:
    """Reads one response. Without `hold` it never pauses."""

    def __init__(self, response: aiohttp.ClientResponse, hold: HoldText | None) -> None:
        self._response = response
        self._consumed = 0
        self._hold = hold if hold is not None and _can_pause(response) else None
        self._released: asyncio.Future[None] | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._waiting_bytes = 0
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

    async def _wait(self, transport: asyncio.Transport, hold: HoldText, rates: tuple[float, float]) -> None:
        loop = asyncio.get_running_loop()
        self._released = released = loop.create_future()
        silence = min(max(PROBE_SECONDS, PROBE_DELTAS / rates[0]), MAX_HOLD_SECONDS)
        until = loop.time() + MAX_HOLD_SECONDS
        self._waiting_bytes = 0
        _pause(transport)
        self._probe = loop.call_later(silence, self._check, transport, silence, until)
        try:
            hold(lambda: _release(released) and _unread(transport) > 0, *rates)
            await released
        finally:
            self._probe.cancel()
            _resume(transport)
        await _drain(transport)

    def _check(self, transport: asyncio.Transport, silence: float, until: float) -> None:
        """End the pause if no bytes have followed those that wait, or too many, or if it took too long."""
        loop, unread = asyncio.get_running_loop(), _unread(transport)
        is_silent = 0 < unread == self._waiting_bytes
        if is_silent or unread >= MAX_HELD_BYTES or loop.time() >= until or transport.is_closing():
            if self._released is not None:
                _release(self._released)
            return
        self._waiting_bytes = unread
        self._probe = loop.call_later(silence, self._check, transport, silence, until)

    def _pausable_transport(self) -> asyncio.Transport | None:
        """The transport, unless bytes of the body wait in the process already, or nothing will follow."""
        content, connection = self._response.content, self._response.connection
        if connection is None or content.is_eof() or content.total_bytes != self._consumed:
            return None
        transport = connection.transport
        return None if transport is None or transport.is_closing() else transport


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


def _release(released: "asyncio.Future[None]") -> bool:
    """End the pause; returns False if it had ended."""
    if released.done():
        return False
    released.set_result(None)
    return True


def _pause(transport: asyncio.Transport) -> None:
    transport.pause_reading()
    if _is_tls(transport):
        # A paused TLS transport goes on reading from its socket up to a limit, by default of 256 KiB.
        transport.set_read_buffer_limits(high=1)  # type: ignore[attr-defined]  # of asyncio's and uvloop's TLS


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        if _is_tls(transport):
            transport.set_read_buffer_limits()  # type: ignore[attr-defined]  # as above
        transport.resume_reading()


def _unread(transport: asyncio.Transport) -> int:
    """The number of bytes that have arrived at a paused transport; 0 if its socket is closed."""
    if transport.is_closing():
        return 0
    count = array.array("i", (0,))
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    except (OSError, ValueError):
        return 0
    in_tls: int = transport.get_read_buffer_size() if _is_tls(transport) else 0  # type: ignore[attr-defined]  # as above
    return count[0] + in_tls


async def _drain(transport: asyncio.Transport) -> None:
    """Let the event loop read all bytes that have arrived, so that their text is passed on in one piece."""
    for _ in range(MAX_DRAIN_STEPS):
        await asyncio.sleep(0)
        if not _unread(transport):
            return


def _is_tls(transport: asyncio.Transport) -> bool:
    return transport.get_extra_info("sslcontext") is not None
