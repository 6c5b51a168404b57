"""The keeper process: parent of one postmaster, restarts it when it dies, and stops it when its last user is gone.

Started as `python -m khala.store.embedded.supervisor HOME BINARIES LOCK`. LOCK is the descriptor of the keeper's lock,
which the starter has taken, so that two keepers never begin at once. The keeper's output is the server's log.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from khala.store.embedded import cluster, locks
from khala.store.embedded.binaries import runnable
from khala.store.embedded.layout import ClusterLayout, lay_out, make_private

POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = 10.0
"""How long each signal is given. Postgres 18 can hang in a fast shutdown asked for while it recovers from a crash."""

QUICK_DEATH_SECONDS = 5.0
MAX_QUICK_DEATHS = 3
MAX_LOG_BYTES = 5_000_000


class PostgresSupervisor:
    """Keeps one server. `users` holds the users' lock once nobody else does, and then until the end."""

    def __init__(self, layout: ClusterLayout, binaries: Path, lock: int) -> None:
        self.layout = layout
        self.binaries = binaries
        self.lock = lock
        self.token = os.pread(lock, 100, 0).decode()
        self.users: int | None = None

    def run(self) -> None:
        """Run servers one after the other until the users are gone, or three die as soon as they began."""
        quick_deaths = 0
        while quick_deaths < MAX_QUICK_DEATHS and not self.deserted():
            lock = self.outlive_previous()
            if lock is None:
                continue
            began = time.monotonic()
            self.serve(lock)
            quick_deaths = quick_deaths + 1 if time.monotonic() - began < QUICK_DEATH_SECONDS else 0
            time.sleep(POLL_SECONDS * quick_deaths)

    def outlive_previous(self) -> int | None:
        """The server's lock, once no process of an earlier server is left; None where that takes too long."""
        if (lock := locks.wait(self.layout.server_lock, seconds=POLL_SECONDS)) is not None:
            return lock
        for how in (signal.SIGINT, signal.SIGQUIT):
            self.signal_previous(how)
            if (lock := locks.wait(self.layout.server_lock, seconds=SHUTDOWN_SECONDS)) is not None:
                return lock
        return None

    def signal_previous(self, how: signal.Signals) -> None:
        """Ask a server that outlived its keeper to end; on Linux the kernel has asked it already."""
        pid = locks.read(self.layout.server_lock)
        if pid.isdecimal() and cluster.serves(int(pid), self.layout):
            log_line(f"stopping an earlier server, process {pid}, with {how.name}")
            os.kill(int(pid), how)

    def serve(self, lock: int) -> None:
        """Run one server until it dies or nobody needs it."""
        try:
            make_private(self.layout.socket_directory, self.layout.uid, self.layout.gid)
            cluster.forget_dead_postmaster(self.layout)
            server = cluster.launch(self.layout, self.binaries, lock, self.token)
        finally:
            # From here on the server's processes alone hold it, the last of them as long as it lives.
            os.close(lock)
        log_line(f"started Postgres, process {server.pid}")
        self.watch(server)
        stop(server)
        log_line(f"Postgres ended with status {server.returncode}")

    def watch(self, server: "subprocess.Popen[bytes]") -> None:
        """Return when the server is dead, unreachable, or no longer needed."""
        was_reachable = False
        while server.poll() is None and not self.deserted():
            reachable = self.layout.socket.exists()
            if was_reachable and not reachable:
                log_line("the socket was deleted")
                return
            was_reachable = reachable
            trim_log(self.layout)
            time.sleep(POLL_SECONDS)

    def deserted(self) -> bool:
        """Whether nobody needs the server: then newcomers wait until we are gone."""
        if self.users is None and not self.homeless():
            self.users = locks.acquire(self.layout.users_lock)
        return self.users is not None or self.homeless()

    def homeless(self) -> bool:
        """Whether our directory was deleted, or deleted and made anew, which is another server's then."""
        return locks.replaced(self.lock, self.layout.keeper_lock)


def stop(server: "subprocess.Popen[bytes]") -> None:
    """End the server in order, or as it must be."""
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        server.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            server.wait(SHUTDOWN_SECONDS)
            return
        log_line(f"Postgres still runs {SHUTDOWN_SECONDS:.0f} s after {how.name}")


def trim_log(layout: ClusterLayout) -> None:
    """Keep the log's last full length in a second file and begin anew; the server goes on writing to the same file."""
    log = sys.stderr.fileno()
    if os.fstat(log).st_size > MAX_LOG_BYTES:
        current = layout.log / "postgres.log"
        (layout.log / "postgres.log.1").write_bytes(current.read_bytes())
        os.ftruncate(log, 0)


def log_line(text: str) -> None:
    """Add a line to the log."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    print(f"{now} [{os.getpid()}] keeper: {text}", file=sys.stderr, flush=True)  # noqa: T201  # the log is our output


def main(home: str, binaries: str, lock: str) -> None:
    """Become a process of our own and keep the server. The lock in `lock` is released by our end."""
    if os.fork():
        os._exit(0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # We end with our users, who get these signals too. A handler, as an ignored signal would stay so in Postgres.
        signal.signal(name, lambda *_: None)
    layout = lay_out(Path(home))
    usable = runnable(Path(binaries), layout)
    cluster.create(layout, usable)
    PostgresSupervisor(layout, usable, int(lock)).run()
    if layout.socket_directory.is_dir() and not any(layout.socket_directory.iterdir()):
        layout.socket_directory.rmdir()


if __name__ == "__main__":
    main(*sys.argv[1:])
