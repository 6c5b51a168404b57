"""Supervises one program: ends it and all its descendants when the program, Khala or the supervisor ends.

It is started as `python -I -S process_supervisor.py PARENT GRACE COMMAND ARGUMENT…`. PARENT is the id of Khala's
process, and GRACE the time in seconds between SIGTERM and SIGKILL. A second SIGTERM to the supervisor ends that time.
It imports nothing of Khala, so that it starts at once. Its exit status is the program's, 128 plus the number of the
signal that ended the program, or 127 if the program can't be started.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_INTERVAL_SECONDS = 1.0
"""Time between two checks of whether the parent lives, for kernels that send no signal when it ends."""
KILL_TIMEOUT_SECONDS = 1.0
"""Time to kill all descendants."""


def main(parent: int, grace_seconds: float, command: list[str]) -> int:
    """Run the program until it ends or this process is asked to end. Returns the exit status."""
    wake_fd, received = _install_signal_handlers()
    prctl = _prctl()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # Orphaned descendants of the program become children of this process, so that it can end them.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    try:
        program = subprocess.Popen(  # noqa: S603  # the operator configured the command
            command, start_new_session=True, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        )
    except OSError as error:
        print(f"{command[0]} can't be started: {error.strerror}", file=sys.stderr)  # noqa: T201  # for the log
        return 127
    _release_pipes()
    while program.poll() is None and not received and os.getppid() == parent:
        select.select([wake_fd], [], [], POLL_INTERVAL_SECONDS)
        _drain(wake_fd)
        _reap_orphans(program.pid)
    _end(program, grace_seconds, received)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _install_signal_handlers() -> tuple[int, list[int]]:
    """A descriptor that is readable after a signal, and the list of received signals that ask this process to end."""
    received: list[int] = []
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda number, _: received.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return readable, received


def _prctl() -> Callable[[int, int], object]:
    if sys.platform != "linux":
        return lambda *_: None
    libc = ctypes.CDLL(None)
    return lambda option, value: libc.prctl(option, value, 0, 0, 0)


def _release_pipes() -> None:
    """Close this process's ends of the program's pipes, so that they close when the program closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)


def _drain(descriptor: int) -> None:
    try:
        os.read(descriptor, 4096)
    except BlockingIOError:
        return


def _reap_orphans(program: int) -> None:
    """Collect the exit statuses of adopted processes that have ended."""
    for pid in _children():
        if pid != program:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _end(program: "subprocess.Popen[bytes]", grace_seconds: float, received: list[int]) -> None:
    """Terminate the program's process group, then kill all processes that are left."""
    deadline = time.monotonic() + grace_seconds
    _signal_group(program.pid, signal.SIGTERM)
    while program.poll() is None and time.monotonic() < deadline and len(received) < 2:
        time.sleep(0.01)
    _signal_group(program.pid, signal.SIGKILL)
    program.wait()
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    while (remaining := _children()) and time.monotonic() < deadline:
        for pid in remaining:
            _kill(pid)
        time.sleep(0.01)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int]:
    """Ids of all child processes, including adopted orphans. Empty if there is no /proc."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    try:
        return [int(pid) for pid in path.read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
    except (ProcessLookupError, PermissionError, ChildProcessError):
        return


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
