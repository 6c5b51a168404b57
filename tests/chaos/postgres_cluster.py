"""The Postgres of a chaos run: it can be killed, stopped and slowed down, and its disk can be filled."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import asyncpg
import psutil

from khala.store.embedded.binaries import find_binaries, runnable
from khala.store.embedded.layout import NOBODY, ClusterLayout
from tests.chaos.preloaded_libraries import compile_library
from tests.support.ports import free_port

DISK_MIB = 160
"""Size of the cluster's disk, where it has one of its own."""
BALLAST_CHUNK_BYTES = 1 << 16
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "120",
    "shared_buffers": "32MB",
    "max_wal_size": "48MB",
    "min_wal_size": "4MB",
    "timezone": "UTC",
    "lc_messages": "C",
    "jit": "off",
    "log_line_prefix": "%m [%p] ",
}
PR_SET_PDEATHSIG = 1
READY_TIMEOUT_SECONDS = 60.0


class PostgresCluster:
    """A Postgres server with its data below `folder`.

    A disk that can be full (`has_disk`) needs root and mount; one that can be slow (`has_delay`) needs a C compiler.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://khala@127.0.0.1:{self.port}/khala"
        self.log = folder / "postgres.log"
        self.starts = 0
        self.wanted = True
        """Whether `revive` starts the server when it has died."""
        self.has_disk = self.has_delay = False
        self._disk = folder / "disk"
        self._delay = folder / "fsync-delay"
        self._library: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        root = os.geteuid() == 0
        self._owner = (NOBODY, NOBODY) if root else (os.geteuid(), os.getegid())
        self._as_owner = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}
        self._binaries = runnable(find_binaries(), ClusterLayout(folder, *self._owner, folder))

    @property
    def pid(self) -> int:
        """The pid of the postmaster."""
        assert self._process is not None
        return self._process.pid

    def create(self) -> None:
        """Create the disk and the data directory."""
        self._disk.mkdir()
        self.has_disk = self._mount()
        os.chown(self._disk, *self._owner)
        self._delay.write_text("0")
        self._library = compile_library("slow_disk", self.folder)
        self.has_delay = self._library is not None
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions", "--no-sync", "--wal-segsize=1")
        command = [str(self._binaries / "initdb"), "-D", str(self._disk / "data"), "-U", "khala", *options]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as_owner)  # type: ignore[call-overload]

    def start(self) -> None:
        """Start the server without waiting for it. It ends with the calling thread, so this must be the main one."""
        self.starts += 1
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._disk / "data"), "-p", str(self.port), *options]
        env = {"PATH": os.defpath, "LC_ALL": "C", "CHAOS_DISK_DELAY": str(self._delay)}
        if self._library is not None:
            env["LD_PRELOAD"] = str(self._library)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command, stdout=log, stderr=log, cwd="/", env=env, preexec_fn=_end_with_parent(), **self._as_owner
            )

    async def ready(self) -> None:
        """Wait until the server accepts connections; start it again whenever it dies meanwhile."""
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            while True:
                with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await (await asyncpg.connect(self.postgres_url, timeout=2)).close()
                    return
                self.revive()
                await asyncio.sleep(0.1)

    @property
    def postgres_url(self) -> str:
        """The URL of the `postgres` database, which always exists."""
        return self.url.removesuffix("khala") + "postgres"

    def revive(self) -> bool:
        """Start the server if it has died and is wanted; returns whether it had died."""
        dead = self.wanted and (self._process is None or self._process.poll() is not None)
        if dead:
            self.start()
        return dead

    def send_signal(self, number: signal.Signals) -> None:
        """Send the postmaster a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait_ended(self) -> None:
        """Wait until the postmaster has ended."""
        async with asyncio.timeout(READY_TIMEOUT_SECONDS):
            while self._process is not None and self._process.poll() is None:
                await asyncio.sleep(0.02)

    def backends(self) -> list[psutil.Process]:
        """The processes that serve clients, the oldest first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children()
            return sorted((one for one in children if "127.0.0.1" in _command_line(one)), key=lambda one: one.pid)
        return []

    def slow(self, seconds: float) -> None:
        """Make each fsync take so much longer from now on."""
        self._delay.write_text(str(int(seconds * 1_000_000)))

    def fill(self) -> None:
        """Fill the disk."""
        with (self._disk / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"\0" * BALLAST_CHUNK_BYTES)

    def free(self) -> None:
        """Free the space that `fill` took."""
        (self._disk / "ballast").unlink(missing_ok=True)

    def destroy(self) -> None:
        """End the server, and unmount its disk; the log remains."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self._disk)], check=True)

    def _mount(self) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "chaos", str(self._disk)]
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return False
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _end_with_parent() -> Callable[[], None] | None:
    if os.uname().sysname != "Linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
