"""One tree of processes in namespaces of its own: begun together, ended together."""

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
"""Who a sandbox is on this machine when the server is root. Nobody else's: the embedded Postgres is 65534."""
CHUNK = 64 * 1024
LAUNCH_SECONDS = 10.0
END_SECONDS = 5.0
MOST_COMPLAINT = 1000

log = structlog.get_logger()


class SandboxSetupError(Exception):
    """No sandbox came about; the message says why, in the words of whoever failed."""


class SandboxProcess:
    """A running sandbox. `stdout` and `stderr` are descriptors to read from without blocking."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", monitor: int, first: int, pid: int, group: MemoryGroup | None
    ) -> None:
        self._process = process
        self._monitor = monitor
        self._first = first
        self._pid = pid
        self._group = group
        self.stdout = _descriptor(process.stdout)
        self.stderr = _descriptor(process.stderr)

    def usage(self, most_maps: int, max_locks: int) -> SandboxUsage | None:
        """What the tree uses now, or None when it is gone. Mappings and locks are counted up to these limits."""
        return memory_usage.measured(self._pid, most_maps, max_locks)

    def exceeded(self) -> bool:
        """Whether the kernel has ended one of its processes because all of them held too much."""
        return self._group is not None and self._group.exceeded()

    async def ended(self) -> int:
        """The exit code, once no process of the tree is left."""
        await _readable(self._monitor)
        return self._process.wait()

    def kill(self) -> None:
        """End the tree. The kernel ends all processes with the first one."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._first, signal.SIGKILL)


@asynccontextmanager
async def opened(command: SandboxCommand, group: MemoryGroup | None = None) -> AsyncIterator[SandboxProcess]:
    """A running sandbox, in the group if one is given. Leaving the block ends both. Raises `SandboxSetupError`."""
    async with AsyncExitStack() as stack:
        if group is not None:
            stack.push_async_callback(asyncio.to_thread, group.remove)
        process = spawned(command)
        monitor = os.pidfd_open(process.pid)
        stack.callback(os.close, monitor)
        stack.push_async_callback(_gone, process, monitor)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stack.callback(stream.close)
                os.set_blocking(stream.fileno(), False)
        # On the way out the first process dies before anything is closed: see below.
        yield await _begun(process, monitor, group, stack)


async def _begun(
    process: "subprocess.Popen[bytes]", monitor: int, group: MemoryGroup | None, stack: AsyncExitStack
) -> SandboxProcess:
    await _ready(process)
    pid, first = _first(process)
    stack.callback(os.close, first)
    if group is not None:
        _join(group, pid)
    sandbox = SandboxProcess(process, monitor, first, pid, group)
    stack.callback(sandbox.kill)
    # Until now it waited, so that it can't outlive a server that is killed before it could watch.
    with suppress(BrokenPipeError):
        os.write(_descriptor(process.stdin), b"\n")
    return sandbox


def _join(group: MemoryGroup, pid: int) -> None:
    try:
        group.add(pid)
    except OSError as error:
        raise SandboxSetupError(f"It could not be put into its control group: {error}") from error


def _first(process: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """The sandbox's first process: its number on this machine, and a descriptor that stands for it."""
    try:
        [pid] = memory_usage.children(process.pid)
        return pid, os.pidfd_open(pid)
    except (OSError, ValueError) as error:
        raise SandboxSetupError("It ended before it began.") from error


def spawned(command: SandboxCommand) -> "subprocess.Popen[bytes]":
    """Starts it in this very thread: the kernel ends it with the thread that began it. Raises `SandboxSetupError`."""
    root = os.geteuid() == 0
    try:
        return subprocess.Popen(  # noqa: S603  # our own command; the program is a file for it
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


async def _ready(process: "subprocess.Popen[bytes]") -> None:
    """Waits for the sandbox's word that it is set up."""
    said = b""
    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            while len(said) < len(READY):
                more = await _read(_descriptor(process.stdout), len(READY) - len(said))
                if not more:
                    raise SandboxSetupError(await _complaint(process))
                said += more
    except TimeoutError as error:
        raise SandboxSetupError(f"It was not set up within {LAUNCH_SECONDS:.0f} seconds.") from error


async def _complaint(process: "subprocess.Popen[bytes]") -> str:
    said = await _read(_descriptor(process.stderr), MOST_COMPLAINT)
    return said.decode(errors="replace").strip() or "It ended before it was set up."


async def _gone(process: "subprocess.Popen[bytes]", monitor: int) -> None:
    """Waits until the tree is gone, and sees to it where it isn't on the way already."""
    try:
        if process.poll() is None:
            async with asyncio.timeout(END_SECONDS):
                await _readable(monitor)
    except TimeoutError:
        log.warning("sandbox_lingers", pid=process.pid)
    finally:
        # Also on cancellation: then nobody waits for what the kernel is about to do.
        if process.poll() is None:
            process.kill()


async def pump(descriptor: int, write: Callable[[bytes], Awaitable[None]]) -> None:
    """Passes on what comes, chunk by chunk, until nobody can write any more."""
    while data := await _read(descriptor, CHUNK):
        await write(data)
        # A flood must not keep everybody else waiting.
        await asyncio.sleep(0)


async def _read(descriptor: int, most: int) -> bytes:
    while True:
        try:
            return os.read(descriptor, most)
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
        raise SandboxSetupError("There is no pipe to it.")
    return int(fileno())
