"""A process's share in the embedded Postgres of one home directory."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from khala.store.embedded import locks, probe
from khala.store.embedded.binaries import find_binaries
from khala.store.embedded.layout import ClusterLayout, EmbeddedPostgresError, has_cluster, lay_out
from khala.store.embedded.probe import ProbeSession

START_SECONDS = 60.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.02
PROBE_SECONDS = 10.0
"""Seconds between two statements by which `check` finds out whether the server answers."""
MAX_TAIL_BYTES = 2_000
SUPERVISOR = "khala.store.embedded.supervisor"
ROOT = Path(__file__).parents[3]
"""The directory from which the supervisor imports the package."""


class EmbeddedPostgres:
    """A share in the server, until `stop` or the end of this process.

    All methods block: call them in a thread. Do not fork while holding a share: the child would hold it, too.
    """

    def __init__(self, layout: ClusterLayout, binaries: Path, parameters: Mapping[str, str] | None = None) -> None:
        self.layout = layout
        self.binaries = binaries
        self.parameters = dict(parameters or {})
        self.url = layout.url
        self.version = ""
        self._share: int | None = None
        self._session: ProbeSession | None = None
        self._probed_at = float("-inf")

    @classmethod
    def start(cls, home: Path, parameters: Mapping[str, str] | None = None) -> "EmbeddedPostgres":
        """Join the server of `home`, or create and start it. Raises EmbeddedPostgresError with the end of the log.

        `parameters` are Postgres' settings of memory and WAL that replace those for this machine. They count only if
        this process starts the server.
        """
        binaries = find_binaries()
        try:
            server = cls(lay_out(home), binaries, parameters)
            server._join()
        except OSError as error:
            raise EmbeddedPostgresError(f"can't use {home} for Postgres: {error}") from error
        ready = False
        try:
            server.ensure()
            ready = True
        finally:
            if not ready:
                server.stop()
        return server

    @staticmethod
    def is_used(home: Path) -> bool:
        """Whether a process uses the server of `home` now. Raises OSError if that may not be known."""
        return has_cluster(home) and locks.held(lay_out(home).users_lock)

    def ensure(self) -> None:
        """Restart the server if it or its supervisor died. Otherwise returns in milliseconds.

        Raises EmbeddedPostgresError.
        """
        if self._share is None:
            raise EmbeddedPostgresError("the embedded Postgres was stopped")
        deadline = time.monotonic() + START_SECONDS
        log_start: int | None = None
        while (lock := locks.acquire(self.layout.supervisor_lock)) is not None or not self._answers():
            if lock is not None and log_start is not None:
                os.close(lock)
                raise self._failure("could not be started", log_start)
            if lock is not None:
                log_start = self._spawn_supervisor(lock)
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready within {START_SECONDS:.0f} s", log_start or 0)
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """As `ensure`, for calls at short intervals: restarts a server that has ended, or has not answered for 10 s.

        Takes microseconds between two statements, because an idle session shows that the server runs.
        """
        was_probed = time.monotonic() - self._probed_at < PROBE_SECONDS
        if not (was_probed and self._session is not None and self._session.is_alive()):
            self.ensure()

    def stop(self) -> None:
        """Release the server. The last user's call returns when the server has ended, or after 10 s."""
        if self._share is None:
            return
        os.close(self._share)
        self._share = None
        self._close_session()
        deadline = time.monotonic() + STOP_SECONDS
        while locks.held(self.layout.supervisor_lock) and not self._others() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _join(self) -> None:
        """Take a share in the server, after waiting for a supervisor that is ending it."""
        self._share = locks.wait(self.layout.users_lock, seconds=START_SECONDS, shared=True)
        if self._share is None:
            raise EmbeddedPostgresError(f"the Postgres in {self.layout.base} is still stopping: try again")

    def _others(self) -> bool:
        """Whether another process has a share. While the supervisor ends the server, no process can have one."""
        if (descriptor := locks.acquire(self.layout.users_lock)) is None:
            descriptor = locks.acquire(self.layout.users_lock, shared=True)
            alone = descriptor is None
        else:
            alone = True
        if descriptor is not None:
            os.close(descriptor)
        return not alone

    def _answers(self) -> bool:
        """Whether the running supervisor's own server accepts connections to Khala's database."""
        self._close_session()
        token = locks.read(self.layout.supervisor_lock)
        command = "SELECT current_setting('khala.keeper', true)"
        try:
            answer, self._session = probe.query_and_stay(self.layout.socket, "khala", command)
        except probe.ProbeRefusedError as refused:
            if refused.code == probe.UNKNOWN_DATABASE:
                self._create_database()
            # A server without free connections is alive.
            return refused.code == probe.TOO_MANY_CONNECTIONS
        except OSError:
            return False
        self.version = answer.version
        self._probed_at = time.monotonic()
        if answer.value == token:
            return True
        self._close_session()
        return False

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _create_database(self) -> None:
        try:
            probe.query(self.layout.socket, "postgres", "CREATE DATABASE khala", seconds=START_SECONDS)
        except probe.ProbeRefusedError as refused:
            # Another process may be doing the same.
            if refused.code not in (probe.DUPLICATE_DATABASE, probe.UNIQUE_VIOLATION):
                raise EmbeddedPostgresError(f"can't create the database: {refused}") from refused
        except OSError:
            # The server has ended: the caller checks again.
            return

    def _spawn_supervisor(self, lock: int) -> int:
        """Pass the supervisor's lock to a new supervisor. Returns the length of the log before its start."""
        locks.write(lock, secrets.token_hex(8))
        home, binaries = str(self.layout.base.parent), str(self.binaries)
        parameters = [f"{name}={value}" for name, value in self.parameters.items()]
        log = self._open_log()
        try:
            log_start = os.fstat(log).st_size
            # The supervisor forks, so that it is not a child of this process. This call waits only for the fork.
            subprocess.run(  # noqa: S603  # our own program
                [sys.executable, "-S", "-s", "-P", "-m", SUPERVISOR, home, binaries, str(lock), *parameters],
                cwd="/",
                env={"PATH": os.defpath, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
                check=False,
            )
            return log_start
        finally:
            os.close(log)
            os.close(lock)

    def _open_log(self) -> int:
        self.layout.log.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.layout.log / "postgres.log", flags, 0o600)

    def _failure(self, what: str, log_start: int) -> EmbeddedPostgresError:
        path = self.layout.log / "postgres.log"
        tail = path.read_bytes()[log_start:][-MAX_TAIL_BYTES:].decode(errors="replace") if path.exists() else ""
        return EmbeddedPostgresError(f"the embedded Postgres {what}; its log, {path}, ends with:\n{tail}")
