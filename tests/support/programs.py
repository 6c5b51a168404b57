"""Runs programs in the sandbox, and finds processes that are left of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from khala.domain.errors import PayloadTooLarge
from khala.tools.sandbox import Language, Program, ProgramExit, Sandbox, SandboxOptions, missing_requirement


class BoundedProgramSink:
    """A sink that keeps output up to a limit, or only counts it."""

    def __init__(self, most: int = 1_000_000, *, keep: bool = True) -> None:
        self.data = bytearray()
        self.size = 0
        self.most = most
        self.keep = keep

    async def write(self, data: bytes) -> None:
        if self.size + len(data) > self.most:
            raise PayloadTooLarge("Too much.")
        self.size += len(data)
        if self.keep:
            self.data += data

    @property
    def text(self) -> str:
        return self.data.decode()


class ProgramRun:
    """How a program ended, and its output."""

    def __init__(self, end: ProgramExit, heard: BoundedProgramSink) -> None:
        self.end = end
        self.out = heard.text
        self.err = end.stderr.decode(errors="replace")

    def __repr__(self) -> str:
        return f"{self.end} {self.out[-2000:]}"


async def sandbox(options: SandboxOptions | None = None) -> Sandbox:
    """The sandbox. Without one the test fails with the missing requirement."""
    found = await Sandbox.find(options)
    if found is None:
        pytest.fail(missing_requirement() or "There is no sandbox, for an unknown reason.")
    return found


async def run_program(
    inside: Sandbox,
    code: str,
    language: Language = "python",
    *,
    stdin: bytes = b"",
    seconds: float = 10.0,
    heard: BoundedProgramSink | None = None,
) -> ProgramRun:
    heard = heard or BoundedProgramSink()
    program = Program(language=language, code=code, stdin=stdin, seconds=seconds)
    return ProgramRun(await inside.run(program, heard), heard)


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


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "The condition did not hold in time."
        await asyncio.sleep(0.01)


@asynccontextmanager
async def pulse() -> AsyncIterator[list[float]]:
    """Measures in seconds how often a task runs that should run every 5 milliseconds."""
    beats: list[float] = []

    async def beat() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            beats.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(beat())
        yield beats
        task.cancel()
