"""Processes forked from one that has imported Khala already: that takes two seconds of a core, the same each time."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support import lock_order

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "khala.cli",
        "khala.main",
        "khala.isolated_run",
        "uvloop",
        "genai_prices.data",
        "litestar.plugins.pydantic",
        "tiktoken",
        "tests.support.lock_order",
    ]
)
"""Khala, and what it imports once it runs."""


class Forked:
    """A `khala` command under way, with what is used here of a `subprocess.Popen`.

    The server it is forked from runs nothing of Khala, and has no threads; the environment, the folder, the streams and
    the arguments are the command's own before any of Khala looks at them. What a process takes from its start (the
    limits of this one, a preloaded library, variables that Python itself reads) it doesn't get this way.
    """

    def __init__(self, words: tuple[str, ...], env: Mapping[str, str], folder: Path, out: Path, errors: Path) -> None:
        # A daemon doesn't keep this process from ending.
        self._process = CONTEXT.Process(
            target=_run,
            args=(words, {**env, lock_order.FILE: str(lock_order.told())}, folder, out, errors),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code once it has ended; less than 0 if by a signal."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("khala", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(words: tuple[str, ...], env: dict[str, str], folder: Path, out: Path, errors: Path) -> None:
    os.environ.clear()
    os.environ.update(env)
    for stream, path in ((1, out), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(folder)
    sys.argv = ["khala", *words]
    lock_order.install()
    # In the server already, and of no use to whoever only wants to fork.
    from khala.cli import main

    main()
