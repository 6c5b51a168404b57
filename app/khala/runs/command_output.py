"""The output of a command: its beginning and end as the run's text, and the whole in a spool."""

from collections.abc import Callable
from io import StringIO

import structlog

from khala.blobs.spool import Spool
from khala.domain.errors import PayloadTooLarge, Unavailable
from khala.store.runs.run_buffer import RunBuffer
from khala.tools.commands.terminal_text import TerminalText

log = structlog.get_logger()

MAX_LIVE_BYTES = 200_000
"""Bytes of output that become text as they arrive."""
MAX_TAIL_BYTES = 50_000
"""Bytes at the end of a longer output that become text when the command has ended."""
MAX_STDERR_BYTES = 64_000
"""Bytes at the end of standard error that are kept."""
LEFT_OUT = "\n\n[{size:,} bytes are left out here. The whole output is in the file of this call.]\n\n"


class CommandTranscript:
    """Receives both outputs of a command. Its memory is bounded, however long they are.

    `report` receives a line about the progress.
    """

    def __init__(self, buffer: RunBuffer, spool: Spool, report: Callable[[str], None]) -> None:
        self._buffer = buffer
        self._spool = spool
        self._report = report
        self._stdout_text, self._stderr_text = TerminalText(), TerminalText()
        self._size = 0
        self._live_size = 0
        self._is_live = True
        self._stdout_tail, self._stderr_tail = b"", b""
        self._is_spool_full = False
        self._shown = StringIO()

    @property
    def text(self) -> str:
        """The text of the run."""
        return self._shown.getvalue()

    @property
    def stdout_tail(self) -> str:
        """The end of standard output."""
        return self._stdout_tail.decode(errors="ignore")

    @property
    def stderr_tail(self) -> str:
        """The end of standard error."""
        return self._stderr_tail.decode(errors="ignore")

    async def receive_stdout(self, data: bytes) -> None:
        """Receive standard output. Raises `LeaseLost`."""
        await self._add(self._stdout_text.feed(data))

    async def receive_stderr(self, data: bytes) -> None:
        """Receive standard error."""
        self._add_error(self._stderr_text.feed(data))

    async def end(self) -> None:
        """Add what was held back: the end of a long output to the text, and standard error to the whole.

        Raises `LeaseLost`.
        """
        await self._add(self._stdout_text.end())
        self._add_error(self._stderr_text.end())
        held_back = self._size - self._live_size
        if held_back > len(self._stdout_tail):
            self._show(LEFT_OUT.format(size=held_back - len(self._stdout_tail)))
            self._show(self.stdout_tail)
        elif held_back:
            self._show(self._stdout_tail[-held_back:].decode(errors="ignore"))
        if self._stderr_tail:
            await self._store(b"\n[stderr]\n" + self._stderr_tail)

    async def _add(self, text: str) -> None:
        encoded = text.encode()
        self._size += len(encoded)
        self._stdout_tail = (self._stdout_tail + encoded)[-MAX_TAIL_BYTES:]
        await self._store(encoded)
        if self._is_live and encoded:
            self._append_live(encoded)
            if self._buffer.full:
                await self._buffer.wait_written()
        elif encoded:
            self._report(f"{self._size:,} bytes of output")

    def _append_live(self, encoded: bytes) -> None:
        room = MAX_LIVE_BYTES - self._live_size
        self._is_live = len(encoded) <= room
        # The last character may have been cut. Then it is held back.
        text = encoded[:room].decode(errors="ignore")
        self._live_size += len(text.encode())
        self._show(text)

    def _show(self, text: str) -> None:
        self._shown.write(text)
        self._buffer.append_text(text)

    def _add_error(self, text: str) -> None:
        self._stderr_tail = (self._stderr_tail + text.encode())[-MAX_STDERR_BYTES:]
        if line := text.rstrip().rpartition("\n")[2]:
            self._report(line)

    async def _store(self, data: bytes) -> None:
        if self._is_spool_full:
            return
        try:
            await self._spool.write(data)
        except (PayloadTooLarge, Unavailable) as error:
            self._is_spool_full = True
            log.warning("command_output_cut", stored_bytes=self._spool.size, error=error.message)
