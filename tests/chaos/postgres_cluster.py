"""A Postgres of the chaos run's own, which may be killed, stopped, slowed down and filled up."""

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
from tests.chaos.preloads import compiled
from tests.support.ports import free_port

DISK = 160
"""MiB that there are, where there is a disk of its own."""
BALLAST = 1 << 16
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
READY = 60.0


class Cluster:
    """The server, below `folder`. What it needs beyond Postgres itself: root and mount for a disk that can be full
    (`has_disk`), a C compiler for one that can be slow (`has_delay`)."""  # noqa: D205, D209

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"postgresql://khala@127.0.0.1:{self.port}/khala"
        self.log = folder / "postgres.log"
        self.starts = 0
        self.wanted = True
        """Whether it is to be brought back when it has died."""
        self.has_disk = self.has_delay = False
        self._place = folder / "disk"
        self._delay = folder / "fsync-delay"
        self._library: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        root = os.geteuid() == 0
        self._owner = (NOBODY, NOBODY) if root else (os.geteuid(), os.getegid())
        self._as_owner = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}
        self._binaries = runnable(find_binaries(), ClusterLayout(folder, *self._owner, folder))

    @property
    def pid(self) -> int:
        """The postmaster's."""
        assert self._process is not None
        return self._process.pid

    def create(self) -> None:
        """Make the disk and the data directory."""
        self._place.mkdir()
        self.has_disk = self._mount()
        os.chown(self._place, *self._owner)
        self._delay.write_text("0")
        self._library = compiled("slow_disk", self.folder)
        self.has_delay = self._library is not None
        words = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions", "--no-sync", "--wal-segsize=1")
        command = [str(self._binaries / "initdb"), "-D", str(self._place / "data"), "-U", "khala", *words]
        subprocess.run(command, check=True, capture_output=True, cwd="/", **self._as_owner)  # type: ignore[call-overload]

    def start(self) -> None:
        """Start it; says nothing about whether it is ready. From the main thread, with whose end it ends."""
        self.starts += 1
        options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._place / "data"), "-p", str(self.port), *options]
        env = {"PATH": os.defpath, "LC_ALL": "C", "CHAOS_DISK_DELAY": str(self._delay)}
        if self._library is not None:
            env["LD_PRELOAD"] = str(self._library)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command, stdout=log, stderr=log, cwd="/", env=env, preexec_fn=_die_with_us(), **self._as_owner
            )

    async def ready(self) -> None:
        """Once it takes connections; starts it again for as long as it dies on the way."""
        async with asyncio.timeout(READY):
            while True:
                with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await (await asyncpg.connect(self.postgres_url, timeout=2)).close()
                    return
                self.revive()
                await asyncio.sleep(0.1)

    @property
    def postgres_url(self) -> str:
        """The database that is always there."""
        return self.url.removesuffix("khala") + "postgres"

    def revive(self) -> bool:
        """Start it if it has died and is wanted; whether that was so."""
        dead = self.wanted and (self._process is None or self._process.poll() is not None)
        if dead:
            self.start()
        return dead

    def tell(self, number: signal.Signals) -> None:
        """Send the postmaster a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def gone(self) -> None:
        """Once the postmaster has ended."""
        async with asyncio.timeout(READY):
            while self._process is not None and self._process.poll() is None:
                await asyncio.sleep(0.02)

    def backends(self) -> list[psutil.Process]:
        """The processes that serve clients, the oldest first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children()
            return sorted((one for one in children if "127.0.0.1" in _title(one)), key=lambda one: one.pid)
        return []

    def slow(self, seconds: float) -> None:
        """From now on each fsync takes so much longer."""
        self._delay.write_text(str(int(seconds * 1_000_000)))

    def fill(self) -> None:
        """Take all that is free on the disk."""
        with (self._place / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"\0" * BALLAST)

    def free(self) -> None:
        """Give it back."""
        (self._place / "ballast").unlink(missing_ok=True)

    def destroy(self) -> None:
        """End it, and unmount its disk; the log stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self.has_disk:
            subprocess.run(["umount", "--lazy", str(self._place)], check=True)

    def _mount(self) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "chaos", str(self._place)]
        if os.geteuid() != 0 or shutil.which("mount") is None:
            return False
        return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _die_with_us() -> Callable[[], None] | None:
    if os.uname().sysname != "Linux":
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
