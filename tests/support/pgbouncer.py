"""PgBouncer in transaction mode in front of a test's database, with few connections to it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from khala.store.postgres.database import asyncpg_url
from tests.support.ports import free_port
from tests.support.required_programs import program, wait_for_port

SERVER_CONNECTIONS = 4
"""Connections to Postgres; Khala's own pools have more connections to PgBouncer."""
CONFIG = """\
[databases]
{database} = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 500
query_wait_timeout = 20
"""


class Pooler:
    """One PgBouncer: `url` is the database through it, `log` its log file."""

    def __init__(self, database_url: str, folder: Path, mode: str) -> None:
        port, url = free_port(), make_url(asyncpg_url(database_url))
        target: dict[str, object] = {"host": url.host or url.query["host"], "port": url.port or 5432}
        target |= {"dbname": url.database, "user": url.username or "postgres"}
        target |= {"password": url.password} if url.password else {}
        self._port = port
        self._file = folder / "pgbouncer.ini"
        self._file.write_text(
            CONFIG.format(
                database=url.database,
                target=" ".join(f"{name}={value}" for name, value in target.items()),
                port=port,
                mode=mode,
                size=SERVER_CONNECTIONS,
            )
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "pgbouncer.log"
        through = url.set(drivername="postgresql", host="127.0.0.1", port=port, password=None, query={})
        self.url = through.render_as_string(hide_password=False)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        # PgBouncer refuses to run as root.
        as_nobody = ["-u", "nobody"] if os.geteuid() == 0 else []
        with self.log.open("ab") as log:
            command = [program("pgbouncer"), *as_nobody, str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for_port(self._process, self._port, self.log)

    def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)


@contextlib.contextmanager
def pooler(database_url: str, folder: Path, *, mode: str = "transaction") -> Iterator[Pooler]:
    """PgBouncer for as long as this is open."""
    made = Pooler(database_url, folder, mode)
    try:
        made.start()
        yield made
    finally:
        made.kill()
