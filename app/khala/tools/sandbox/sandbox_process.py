"""The process tree of one sandbox, in namespaces of its own. It is started and ended as a whole."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import structlog

from khala.tools.sandbox import memory_usage
from khala.tools.sandbox.cgroup import MemoryGroup
from khala.tools.sandbox.command import ENVIRONMENT, READY, SandboxCommand
from khala.tools.sandbox.memory_usage import SandboxUsage

UNPRIVILEGED = 65533
"""User and group id of a sandbox on this machine when the server is root. The embedded Postgres has 65534."""
CHUNK_BYTES = 64 * 1024
START_TIMEOUT_SECONDS = 10.0
END_TIMEOUT_SECONDS = 5.0
MAX_ERROR_BYTES = 1000

log = structlog.get_logger()


class SandboxSetupError(Exception):
    """No sandbox could be set up. The message is that of the component that failed."""


class SandboxProcess:
    """A running sandbox. `stdout` and `stderr` are non-blocking descriptors."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", monitor: int, first_process: int, pid: int, group: MemoryGroup | None
    ) -> None:
        """`monitor` and `first_process` are descriptors of processes. `pid` is the id of the first process."""
        self._process = process
        self._monitor = monitor
        self._first_process = first_process
        self._pid = pid
        self._group = group
        self.stdout = _descriptor(process.stdout)
        self.stderr = _descriptor(process.stderr)

    def usage(self, max_maps: int, max_locks: int) -> SandboxUsage | None:
        """The current usage of the tree; None if it has ended. Mappings and locks are counted up to these limits."""
        return memory_usage.measure(self._pid, max_maps, max_locks)

    def exceeded(self) -> bool:
        """Whether the kernel has killed a process because the tree exceeded its memory."""
        return self._group is not None and self._group.exceeded()

    async def ended(self) -> int:
        """Wait until no process of the tree is left, and return the exit code."""
        await _readable(self._monitor)
        return self._process.wait()

    def kill(self) -> None:
        """Kill the tree. The kernel ends all processes with the first one."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first_process, signal.SIGKILL)


@asynccontextmanager
async def start(command: SandboxCommand, group: MemoryGroup | None = None) -> AsyncIterator[SandboxProcess]:
    """A running sandbox, in the control group if one is given. The end of the context ends both.

    Raises `SandboxSetupError`.
    """
    async with AsyncExitStack() as stack:
        if group is not None:
            stack.push_async_callback(asyncio.to_thread, group.remove)
        process = spawn(command)
        monitor = os.pidfd_open(process.pid)
        stack.callback(os.close, monitor)
        stack.push_async_callback(_wait_gone, process, monitor)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stack.callback(stream.close)
                os.set_blocking(stream.fileno(), False)
        # On exit, `_begin`'s callbacks run first: the first process is killed before anything is closed.
        yield await _begin(process, monitor, group, stack)


async def _begin(
    process: "subprocess.Popen[bytes]", monitor: int, group: MemoryGroup | None, stack: AsyncExitStack
) -> SandboxProcess:
    await _wait_ready(process)
    pid, first_process = _open_first_process(process)
    stack.callback(os.close, first_process)
    if group is not None:
        _join(group, pid)
    sandbox = SandboxProcess(process, monitor, first_process, pid, group)
    stack.callback(sandbox.kill)
    # The sandbox starts the program when it reads this line. A server that is killed earlier leaves no program behind.
    with suppress(BrokenPipeError):
        os.write(_descriptor(process.stdin), b"\n")
    return sandbox


def _join(group: MemoryGroup, pid: int) -> None:
    try:
        group.add(pid)
    except OSError as error:
        raise SandboxSetupError(f"The sandbox could not be added to its control group: {error}") from error


def _open_first_process(process: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """The first process of the sandbox: its id on this machine, and a descriptor of it."""
    try:
        [pid] = memory_usage.children(process.pid)
        return pid, os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise SandboxSetupError("The sandbox ended before it began.") from error


def spawn(command: SandboxCommand) -> "subprocess.Popen[bytes]":
    """Start the command in the current thread. The kernel ends it with that thread. Raises `SandboxSetupError`."""
    root = os.geteuid() == 0
    try:
        return subprocess.Popen(  # noqa: S603  # Khala's own command, which reads the program from a file
            command.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env=ENVIRONMENT,
            pass_fds=command.descriptors,
            start_new_session=True,
            user=UNPRIVILEGED if root else None,
            group=UNPRIVILEGED if root else None,
            extra_groups=[] if root else None,
        )
    except OSError as error:
        raise SandboxSetupError(str(error)) from error
    finally:
        command.close()


async def _wait_ready(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the sandbox reports that it is set up."""
    output = b""
    try:
        async with asyncio.timeout(START_TIMEOUT_SECONDS):
            while len(output) < len(READY):
                data = await _read(_descriptor(process.stdout), len(READY) - len(output))
                if not data:
                    raise SandboxSetupError(await _error_output(process))
                output += data
    except TimeoutError as error:
        raise SandboxSetupError(f"The sandbox was not set up within {START_TIMEOUT_SECONDS:.0f} seconds.") from error


async def _error_output(process: "subprocess.Popen[bytes]") -> str:
    error = await _read(_descriptor(process.stderr), MAX_ERROR_BYTES)
    return error.decode(errors="replace").strip() or "The sandbox ended before it was set up."


async def _wait_gone(process: "subprocess.Popen[bytes]", monitor: int) -> None:
    """Wait until the tree has ended. Kill it after a timeout."""
    try:
        if process.poll() is None:
            async with asyncio.timeout(END_TIMEOUT_SECONDS):
                await _readable(monitor)
    except TimeoutError:
        log.warning("sandbox_killed_after_timeout", pid=process.pid)
    finally:
        # Also on cancellation, when the tree may not have ended yet.
        if process.poll() is None:
            process.kill()


async def pump(descriptor: int, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Pass output on, chunk by chunk, until all writers have closed it."""
    while data := await _read(descriptor, CHUNK_BYTES):
        await write(data)
        # A flood of output must not block the event loop.
        await asyncio.sleep(0)


async def _read(descriptor: int, size: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            await _readable(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _descriptor(stream: object) -> int:
    fileno = getattr(stream, "fileno", None)
    if fileno is None:
        raise SandboxSetupError("The sandbox has no pipe.")
    return int(fileno())
