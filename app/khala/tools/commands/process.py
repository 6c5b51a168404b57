"""The process of a command: started under a supervisor, fed with its prompt, read, and ended with all descendants."""

import asyncio
import shutil
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL, SIGTERM

import structlog

from khala.tools.supervised import ProgramNotFoundError, supervised

log = structlog.get_logger()

CHUNK_BYTES = 1 << 16
DRAIN_TIMEOUT_SECONDS = 10.0
"""Time for the rest of the output when the command has ended."""
SUPERVISOR_TIMEOUT_SECONDS = 3.0
"""Time for the supervisor to end after it has killed the command."""

Receiver = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def started(
    argv: Sequence[str],
    *,
    stdin: bool,
    environment: Mapping[str, str],
    folder: Path,
    kill_after: Callable[[], float],
    max_kill_after: float,
) -> AsyncIterator[Process]:
    """The running process. Raises `ProgramNotFoundError`, and `OSError` if it can't be started.

    On exit, also by cancellation, its process group gets SIGTERM, and SIGKILL after `max_kill_after` seconds, or after
    `kill_after()` if that is less. Then no descendant is left.
    """
    program = await asyncio.to_thread(shutil.which, _located(argv[0], folder), path=environment.get("PATH"))
    if program is None:
        raise ProgramNotFoundError(argv[0])
    process = await asyncio.create_subprocess_exec(
        *supervised([program, *argv[1:]], max_kill_after), stdin=PIPE if stdin else DEVNULL, stdout=PIPE, stderr=PIPE,
        env=environment, cwd=folder, start_new_session=True, limit=CHUNK_BYTES,
    )  # fmt: skip
    try:
        yield process
    finally:
        await uninterrupted(_end(process, min(max_kill_after, kill_after())))


async def _end(process: Process, kill_after: float) -> None:
    """End the process. Meanwhile its output is read and dropped, so that it can't block the process."""
    async with asyncio.TaskGroup() as group:
        drops = [group.create_task(_pump(stream, _drop)) for stream in (process.stdout, process.stderr)]
        await _terminate(process, kill_after)
        await asyncio.wait(drops, timeout=SUPERVISOR_TIMEOUT_SECONDS)
        for drop in drops:
            drop.cancel()


def _located(program: str, folder: Path) -> str:
    """A path with a slash is relative to the folder. A name is looked up on the PATH."""
    return str(folder / program) if "/" in program else program


async def exchange(process: Process, prompt: bytes | None, stdout: Receiver, stderr: Receiver) -> int:
    """Write the prompt, pass the output on, and return the exit code. Raises the errors of the receivers."""
    try:
        async with asyncio.TaskGroup() as group:
            if prompt is not None:
                group.create_task(_feed(process, prompt))
            pumps = [group.create_task(_pump(process.stdout, stdout)), group.create_task(_pump(process.stderr, stderr))]
            code = await process.wait()
            _, unfinished = await asyncio.wait(pumps, timeout=DRAIN_TIMEOUT_SECONDS)
            for pump in unfinished:
                log.warning("command_output_incomplete", pid=process.pid)
                pump.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # Later errors follow from the first one.
    return code


async def _feed(process: Process, prompt: bytes) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):  # A command may end without reading its prompt.
        process.stdin.write(prompt)
        await process.stdin.drain()
    process.stdin.close()


async def _pump(stream: asyncio.StreamReader | None, receive: Receiver) -> None:
    assert stream is not None
    while chunk := await stream.read(CHUNK_BYTES):
        await receive(chunk)
        # A flood of output must not block the event loop.
        await asyncio.sleep(0)


async def _drop(data: bytes) -> None:
    """Ignore the output."""


async def _terminate(process: Process, kill_after: float) -> None:
    """Terminate the supervisor's program; after `kill_after` seconds have the supervisor kill it."""
    for number, seconds in ((SIGTERM, kill_after), (SIGTERM, SUPERVISOR_TIMEOUT_SECONDS), (SIGKILL, None)):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(number)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()


async def uninterrupted(work: Awaitable[None]) -> None:
    """Await the work to its end, also if this task is cancelled meanwhile, and then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
