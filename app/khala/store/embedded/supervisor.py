"""The supervisor process: restarts its postmaster when that dies, and stops it when no process needs it any more.

Started as `python -m khala.store.embedded.supervisor HOME BINARIES LOCK [NAME=VALUE…]`. LOCK is the descriptor of the
supervisor's lock, which the starter has acquired, so that two supervisors never start at once. The rest are settings of
the server. The output goes to the server's log.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from khala.store.embedded import cluster, locks
from khala.store.embedded.binaries import runnable
from khala.store.embedded.layout import ClusterLayout, lay_out, make_private

POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = 10.0
"""The wait after each signal. Postgres 18 can hang in a fast shutdown that begins during crash recovery."""

QUICK_DEATH_SECONDS = 5.0
MAX_QUICK_DEATHS = 3
MAX_LOG_BYTES = 5_000_000


class PostgresSupervisor:
    """Supervises one server. `users` is the users' lock, which the supervisor takes when no other process holds it."""

    def __init__(self, layout: ClusterLayout, binaries: Path, lock: int, parameters: Mapping[str, str]) -> None:
        self.layout = layout
        self.binaries = binaries
        self.lock = lock
        self.parameters = parameters
        self.token = os.pread(lock, 100, 0).decode()
        self.users: int | None = None

    def run(self) -> None:
        """Run servers in turn until no process needs one, or three servers in a row have died within seconds."""
        quick_deaths = 0
        while quick_deaths < MAX_QUICK_DEATHS and not self.unused():
            lock = self.await_previous_end()
            if lock is None:
                continue
            began = time.monotonic()
            self.run_server(lock)
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < QUICK_DEATH_SECONDS else 0
            time.sleep(POLL_SECONDS * quick_deaths)

    def await_previous_end(self) -> int | None:
        """Wait for all processes of an earlier server to end. Returns the server's lock, or None after a timeout."""
        if (lock := locks.wait(self.layout.server_lock, seconds=POLL_SECONDS)) is not None:
            return lock
        for how in (signal.SIGINT, signal.SIGQUIT):
            self.signal_previous(how)
            if (lock := locks.wait(self.layout.server_lock, seconds=SHUTDOWN_SECONDS)) is not None:
                return lock
        return None

    def signal_previous(self, how: signal.Signals) -> None:
        """Signal a server that outlived its supervisor. On Linux, the kernel has already done so."""
        pid = locks.read(self.layout.server_lock)
        if pid.isdecimal() and cluster.serves(int(pid), self.layout):
            log_line(f"stopping an earlier server, process {pid}, with {how.name}")
            os.kill(int(pid), how)

    def run_server(self, lock: int) -> None:
        """Run one server until it dies or no process needs it."""
        try:
            make_private(self.layout.socket_directory, self.layout.uid, self.layout.gid)
            cluster.remove_stale_pid_files(self.layout)
            server = cluster.launch(self.layout, self.binaries, lock, self.token, self.parameters)
        finally:
            # From here on, only the server's processes hold the lock, until the last of them ends.
            os.close(lock)
        log_line(f"started Postgres, process {server.pid}")
        self.watch(server)
        stop(server)
        log_line(f"Postgres ended with status {server.returncode}")

    def watch(self, server: "subprocess.Popen[bytes]") -> None:
        """Wait until the server is dead, unreachable, or no longer needed."""
        was_reachable = False
        while server.poll() is None and not self.unused():
            reachable = self.layout.socket.exists()
            if was_reachable and not reachable:
                log_line("the socket was deleted")
                return
            was_reachable = reachable
            trim_log(self.layout)
            time.sleep(POLL_SECONDS)

    def unused(self) -> bool:
        """Whether no process needs the server. From then on, new users wait until this supervisor has ended."""
        if self.users is None and not self.directory_replaced():
            self.users = locks.acquire(self.layout.users_lock)
        return self.users is not None or self.directory_replaced()

    def directory_replaced(self) -> bool:
        """Whether the directory was deleted, or deleted and created again, so that it belongs to another server."""
        return locks.replaced(self.lock, self.layout.supervisor_lock)


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Stop the server. Each time that it does not end, it gets a harder signal."""
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            server.wait(SHUTDOWN_SECONDS)
            return
        log_line(f"Postgres still runs {SHUTDOWN_SECONDS:.0f} s after {how.name}")


def trim_log(layout: ClusterLayout) -> None:
    """Rotate the log: copy it to a second file and truncate it. The server continues to write to the same file."""
    log = sys.stderr.fileno()
    if os.fstat(log).st_size > MAX_LOG_BYTES:
        current = layout.log / "postgres.log"
        (layout.log / "postgres.log.1").write_bytes(current.read_bytes())
        os.ftruncate(log, 0)


def log_line(text: str) -> None:
    """Write a line to the log."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    print(f"{now} [{os.getpid()}] supervisor: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the log is our output


def main(home: str, binaries: str, lock: str, *parameters: str) -> None:
    """Detach from the starter and supervise the server. The end of the process releases the lock `lock`."""
    settings = dict(parameter.split("=", 1) for parameter in parameters)
    if os.fork():
        os._exit(0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The supervisor ends after its users, who get these signals too. Postgres would inherit ignored signals.
        signal.signal(name, lambda *_: None)
    layout = lay_out(Path(home))
    usable = runnable(Path(binaries), layout)
    cluster.create(layout, usable)
    PostgresSupervisor(layout, usable, int(lock), settings).run()
    if layout.socket_directory.is_dir() and not any(layout.socket_directory.iterdir()):
        layout.socket_directory.rmdir()


if __name__ == "__main__":
    main(*sys.argv[1:])
