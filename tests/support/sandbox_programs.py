"""Runs programs in the sandbox, and finds processes that outlive them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from khala.domain.errors import PayloadTooLarge
from khala.tools.sandbox import Language, Program, ProgramExit, Sandbox, SandboxOptions, missing_requirement


class BoundedProgramSink:
    """A sink that stores output up to a limit, or only counts its bytes."""

    def __init__(self, max_bytes: int = 1_000_000, *, store: bool = True) -> None:
        self.data = bytearray()
        self.size = 0
        self.max_bytes = max_bytes
        self.store = store

    async def write(self, data: bytes) -> None:
        if self.size + len(data) > self.max_bytes:
            raise PayloadTooLarge("The output is too large.")
        self.size += len(data)
        if self.store:
            self.data += data

    @property
    def text(self) -> str:
        return self.data.decode()


class ProgramRun:
    """How a program ended, and its output."""

    def __init__(self, end: ProgramExit, sink: BoundedProgramSink) -> None:
        self.end = end
        self.out = sink.text
        self.err = end.stderr.decode(errors="replace")

    def __repr__(self) -> str:
        return f"{self.end} {self.out[-2000:]}"


async def sandbox(options: SandboxOptions | None = None) -> Sandbox:
    """The sandbox. If it is not available, the test fails and names the missing requirement."""
    available = await Sandbox.find(options)
    if available is None:
        pytest.fail(missing_requirement() or "The sandbox is not available for an unknown reason.")
    return available


async def run_program(
    sandbox: Sandbox,
    code: str,
    language: Language = "python",
    *,
    stdin: bytes = b"",
    seconds: float = 10.0,
    sink: BoundedProgramSink | None = None,
) -> ProgramRun:
    sink = sink or BoundedProgramSink()
    program = Program(language=language, code=code, stdin=stdin, seconds=seconds)
    return ProgramRun(await sandbox.run(program, sink), sink)


def running(marker: str) -> list[int]:
    """The processes of this machine whose command line has the marker."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in words:
                found.append(int(entry.name))
    return found


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "The condition did not hold in time."
        await asyncio.sleep(0.01)


@asynccontextmanager
async def event_loop_delays() -> AsyncIterator[list[float]]:
    """Measure the intervals in seconds of a task that should run every 5 milliseconds."""
    delays: list[float] = []

    async def measure() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            delays.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(measure())
        yield delays
        task.cancel()
