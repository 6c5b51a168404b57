"""The parent of one stdio server: ends it, and all that it has started, when it ends or when nobody needs it any more.

Started as `python -I -S supervisor.py PARENT COMMAND ARGUMENT…`, where PARENT is the process without which the server
has no use. It imports nothing of ours, so that it starts in a moment. Its exit status is the server's, or 127 if that
can't be started.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK = 1.0
"""Seconds between two looks at whether the parent lives, where the kernel doesn't tell."""
GRACE = 1.0
"""Seconds that a server has to end when it is asked to."""


def main(parent: int, command: list[str]) -> int:
    """Keep the server until its end or ours; returns the exit status."""
    woken, asked = _signals()
    prctl = _prctl()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # What the server's children leave behind becomes our child, and can be found.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    try:
        server = subprocess.Popen(  # noqa: S603  # what the operator configured
            command, start_new_session=True, preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        )
    except OSError as error:
        print(f"{command[0]} can't be started: {error.strerror}", file=sys.stderr)  # noqa: T201  # for the log
        return 127
    _let_go()
    while server.poll() is None and not asked and os.getppid() == parent:
        select.select([woken], [], [], LOOK)
        _drain(woken)
    _end(server)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _signals() -> tuple[int, list[int]]:
    """A descriptor that is readable when a signal came, and the list to which those are added that ask us to end."""
    asked: list[int] = []
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda number, _: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return woken, asked


def _prctl() -> Callable[[int, int], object]:
    if sys.platform != "linux":
        return lambda *_: None
    libc = ctypes.CDLL(None)
    return lambda what, value: libc.prctl(what, value, 0, 0, 0)


def _let_go() -> None:
    """Hold no end of the server's pipes, so that they close when it closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def _drain(descriptor: int) -> None:
    try:
        os.read(descriptor, 4096)
    except BlockingIOError:
        return


def _end(server: "subprocess.Popen[bytes]") -> None:
    """Ask the server's group to end, and then end everything that is left."""
    deadline = time.monotonic() + GRACE
    _signal_group(server.pid, signal.SIGTERM)
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    _signal_group(server.pid, signal.SIGKILL)
    server.wait()
    while (left := _children()) and time.monotonic() < deadline + GRACE:
        for pid in left:
            _kill(pid)
        time.sleep(0.01)


def _signal_group(group: int, how: signal.Signals) -> None:
    try:
        os.killpg(group, how)
    except (ProcessLookupError, PermissionError):
        return


def _children() -> list[int]:
    """What has become our child by losing its own parent, on Linux."""
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
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
