"""Runs `khala` on a pseudo-terminal, as a person does, or without a terminal."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import tempfile
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from tests.support.forked import Forked

SECONDS = 30
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[()][0-9A-B])")
HOME = "\x1b[H"
"""Begins a frame on the alternate screen."""
LEAVE_SCREEN = "\x1b[?1049l"
COMMAND = (sys.executable, "-c", "from khala.cli import main; main()")


class Terminal:
    """A `khala` process on a pseudo-terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self._output = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # The process has closed its terminal.
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self._output += data
        self._changed.set()

    def close(self) -> None:
        """Close the terminal."""
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)

    @property
    def raw(self) -> str:
        """All output, with escape sequences."""
        return self._output.decode(errors="replace")

    @property
    def text(self) -> str:
        """All output as text."""
        return ESCAPE.sub("", self.raw)

    @property
    def screen(self) -> list[str]:
        """The lines of the last frame on the alternate screen."""
        return [line.rstrip() for line in ESCAPE.sub("", self.raw.rpartition(HOME)[2]).split("\n")]

    def text_after(self, escape: str) -> list[str]:
        """The lines of text after this escape sequence."""
        return ESCAPE.sub("", self.raw.rpartition(escape)[2]).replace("\r\n", "\n").strip("\n").split("\n")

    async def wait_for(self, text: str) -> None:
        """Wait until the last frame, or the output after it, has this text."""
        async with asyncio.timeout(SECONDS):
            while text not in "\n".join(self.screen):
                self._changed.clear()
                await self._changed.wait()

    def type(self, text: str) -> None:
        """Type on the keyboard. Ctrl-C is the character 3."""
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    async def exit_status(self) -> int:
        """Wait for the end of the process and of its output."""
        async with asyncio.timeout(SECONDS):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def on_terminal(
    words: Sequence[str], env: Mapping[str, str], folder: Path, *, columns: int = 100, lines: int = 30
) -> AsyncIterator[Terminal]:
    """Run a `khala` command on a terminal of this size. It is killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = {**_environment(), "TERM": "xterm-256color", **env}
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment, preexec_fn=take_terminal
    )
    os.close(slave)
    terminal = Terminal(process, master)
    try:
        yield terminal
    finally:
        await _kill(process)
        terminal.close()


@contextlib.asynccontextmanager
async def without_terminal(
    words: Sequence[str], env: Mapping[str, str], folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a `khala` command with pipes. It is killed at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        cwd=folder,
        env={**_environment(), **env},
    )
    try:
        yield process
    finally:
        await _kill(process)


async def result(words: Sequence[str], env: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
    """The exit status, output and errors of a `khala` command without a terminal."""
    with tempfile.TemporaryDirectory(prefix="khala-test-command-") as streams:
        out, errors = Path(streams) / "out", Path(streams) / "errors"
        process = Forked(tuple(words), {**_environment(), **env}, folder, out, errors)
        try:
            status = await asyncio.to_thread(process.wait, SECONDS)
        finally:
            process.send_signal(signal.SIGKILL)
        return status, out.read_text(), errors.read_text()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KHALA_", "COLUMNS", "LINES"))}
    return {**kept, "PYTHONIOENCODING": "utf-8"}


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    await process.wait()
