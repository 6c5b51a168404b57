"""Processes forked from one that has imported Khala already, because each import takes two seconds of a core."""

import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support import forked_runs, lock_order

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "khala.cli",
        "khala.main",
        "khala.isolated_run",
        "uvicorn.lifespan.off",
        "uvloop",
        "genai_prices.data",
        "litestar.plugins.pydantic",
        "tiktoken",
        "tests.support.forked_runs",
        "tests.support.lock_order",
        "tests.support.mcp_server",
        "tests.support.fork_server",
    ]
)
"""Modules that are imported before the forks: Khala, modules that it imports later, and another server of tests."""
IMPORT_VARIABLE = "KHALA_TEST_IMPORT"
"""Environment variable with the name of a module that a forked process imports before it begins."""


class Forked:
    """A running `khala` command, with the methods of `subprocess.Popen` that tests need.

    The fork server has created Khala's routes, and has no threads. The process has its own environment,
    folder, streams and arguments before Khala reads them. What only a real start of a process sets does not apply: its
    resource limits, preloaded libraries, and variables that Python itself reads.
    """

    def __init__(
        self, arguments: tuple[str, ...], env: Mapping[str, str], folder: Path, out: Path, errors: Path
    ) -> None:
        # A daemon does not prevent this process from ending.
        self._process = CONTEXT.Process(
            target=_run,
            args=(arguments, {**env, lock_order.FILE_VARIABLE: str(lock_order.violations_file())}, folder, out, errors),
            daemon=True,
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status once it has ended; negative if a signal ended it."""
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


def _run(arguments: tuple[str, ...], env: dict[str, str], folder: Path, out: Path, errors: Path) -> None:
    os.environ.clear()
    os.environ.update(env)
    for stream, path in ((1, out), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, stream)
        os.close(file)
    os.chdir(folder)
    sys.argv = ["khala", *arguments]
    lock_order.install()
    if module := env.get(IMPORT_VARIABLE):
        importlib.import_module(module)
    if forked_runs.VARIABLE in env:
        forked_runs.install()
    # The fork server has imported it already; this process does not need it.
    from khala.cli import main

    main()
