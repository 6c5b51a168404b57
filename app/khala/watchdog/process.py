"""The watchdog process: ends its parent after a given time without a heartbeat.

Started as `python -I -S process.py PARENT SECONDS LOG FOLDER`. It imports nothing of Khala, so that it is small and
starts in a moment. Standard input is a pipe from the parent: a dot per heartbeat, an exclamation mark when it has
started, and the stack dump that SIGUSR1 makes the parent write there. The pipe's end is the parent's end, and ends this
process.

Time counts only in ticks of this process in which the parent could have run. A suspended machine or container stops
both processes, and a parent that is stopped (SIGSTOP, Ctrl-Z, a debugger) is left alone.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

STARTED = b"!"
STARTING_SECONDS = 60.0
"""The time limit until the parent has started, if it is longer: a start may import much at once."""
TICK_SECONDS = 0.25
DUMP_SECONDS = 3.0
"""The longest wait for the stack dump."""
QUIET_SECONDS = 0.5
"""The dump is complete after this time without more of it."""
REPORT_SECONDS = 5.0
"""The longest time that the log and the disk may take. A log that nobody reads does not keep the parent alive."""
EXIT_SECONDS = 5.0
"""Time that the parent has to exit before it is killed."""
MAX_DUMP_BYTES = 200_000
EVENT = "watchdog_ended_process"


class ReportTooSlowError(Exception):
    """The log or the disk did not take the report in time."""


def main(parent: int, seconds: float, log: str, folder: str) -> None:
    """Return when the parent has ended, or after ending it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent handles these signals. This process ignores them, because it must run until the pipe closes.
        signal.signal(number, lambda *_: None)
    limit = _wait_for_silence(parent, seconds)
    if limit is None:
        return
    os.kill(parent, signal.SIGUSR1)
    stack = _dump()
    _report(parent, limit, stack, log, folder)
    _end(parent)


def _wait_for_silence(parent: int, seconds: float) -> "float | None":
    """Wait until the parent was silent for too long, and return how long; None if it ended before."""
    silent, limit = 0.0, max(seconds, STARTING_SECONDS)
    while silent < limit:
        if _readable(TICK_SECONDS):
            if not (beats := os.read(0, 65_536)):
                return None
            limit = seconds if STARTED in beats else limit
            silent = 0.0
        elif (state := _state(parent)) in "Tt":
            silent = 0.0
        elif state in "ZX":
            return None
        else:
            silent += TICK_SECONDS
    return limit if os.getppid() == parent else None


def _readable(seconds: float) -> bool:
    return bool(select.select([0], [], [], seconds)[0])


def _state(pid: int) -> str:
    """The parent's state as one letter: T or t if it is stopped, Z or X if it has ended."""
    if os.getppid() != pid:
        return "X"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # pathlib takes as long to import as all the rest
            return chr(file.read().rpartition(b") ")[2][0])
    except OSError:
        pass
    try:
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return "R"
    return done.stdout.strip()[:1] or "R"


def _dump() -> str:
    """The stacks that the parent writes, without the heartbeats before them."""
    data = b""
    deadline = time.monotonic() + DUMP_SECONDS
    while len(data) < MAX_DUMP_BYTES and (remaining := deadline - time.monotonic()) > 0:
        if not _readable(min(remaining, QUIET_SECONDS) if _stack(data) else remaining):
            break
        if not (chunk := os.read(0, 65_536)):
            break
        data += chunk
    return _stack(data).decode(errors="replace")


def _stack(data: bytes) -> bytes:
    """The bytes without the heartbeats before them."""
    return data.lstrip(b"." + STARTED)


def _report(parent: int, seconds: float, stack: str, log: str, folder: str) -> None:
    signal.signal(signal.SIGALRM, _raise_too_slow)
    signal.setitimer(signal.ITIMER_REAL, REPORT_SECONDS)
    try:
        fields = {"pid": parent, "silent_seconds": seconds, "stack": stack or "(no stack was written)"}
        try:
            _write_mark(folder, stack)
        except OSError as error:
            fields["not_counted"] = str(error)
        _write(_line(fields, log))
    except (ReportTooSlowError, OSError):
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _raise_too_slow(*_: object) -> None:
    raise ReportTooSlowError


def _write_mark(folder: str, stack: str) -> None:
    """Write a file, which the next process counts."""
    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103  # as above
    name = os.path.join(folder, f"{time.time_ns()}.txt")  # noqa: PTH118
    with open(name, "x", encoding="utf-8") as file:  # noqa: PTH123
        file.write(stack)


def _line(fields: "dict[str, object]", log: str) -> bytes:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if log == "json":
        return json.dumps({**fields, "event": EVENT, "level": "critical", "timestamp": now}).encode() + b"\n"
    stack = fields.pop("stack")
    pairs = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{now} [critical ] {EVENT} {pairs}\n{stack}\n".encode()


def _write(line: bytes) -> None:
    while line:
        line = line[os.write(2, line) :]


def _end(parent: int) -> None:
    """Make the parent exit with the watchdog's exit code, and kill it if it does not."""
    for number in (signal.SIGALRM, signal.SIGKILL):
        if os.getppid() != parent:
            return
        os.kill(parent, number)
        deadline = time.monotonic() + EXIT_SECONDS
        while os.getppid() == parent and time.monotonic() < deadline:
            time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])
