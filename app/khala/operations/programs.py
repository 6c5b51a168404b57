"""Postgres' own programs, of the server's major version, and the database that Khala uses in their environment.

A dump by a newer `pg_dump` may hold commands that an older server does not know, and an older one refuses a newer
server: so no other major version than the server's is used.
"""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import msgspec

from khala.settings import Settings
from khala.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, find_binaries
from khala.store.postgres.database import asyncpg_url, driver_url

PROGRAMS = ("pg_dump", "pg_restore", "pg_basebackup", "psql")
INSTALLED = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")
"""Where Debian, Red Hat and Homebrew have the programs of a major version."""
VERSION = re.compile(r"(\d+)[.\d]*(?:devel|beta\d+|rc\d+)?(?:\s|$)")
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


class OperationFailed(RuntimeError):
    """The command failed; the message says why, and what to do."""


class Postgres(msgspec.Struct, frozen=True, kw_only=True):
    """The database that Khala uses: its URL, its major version, and the folder of the programs of that version."""

    url: str
    major: int
    programs: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program. No password gets into a list of processes: it goes by the environment."""
        path = f"{self.programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return os.environ | libpq_environment(self.url) | {"PATH": path}

    async def run(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' programs. Raises `OperationFailed` where it fails; it has said why."""
        code = await self.call([str(self.programs / program), *arguments])
        if code != 0:
            raise OperationFailed(f"{program} failed with exit code {code}.")

    async def call(self, command: Sequence[str]) -> int:
        """Run any command in this environment; its exit code. It is ended where this is cancelled."""
        process = await asyncio.create_subprocess_exec(*command, env=self.env)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A connection without a limit on statements."""
        connection = await asyncpg.connect(driver_url(self.url))
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def postgres(settings: Settings) -> AsyncIterator[Postgres]:
    """The database, reached past a pooler; the embedded Postgres runs for as long as this is open.

    Raises `OperationFailed` where there are no programs of the server's major version.
    """
    url = settings.database.direct_url or settings.database.url
    embedded = None
    if url is None:
        embedded = await asyncio.to_thread(EmbeddedPostgres.start, settings.process.home)
        url = embedded.url
    try:
        major = await _major_version(url)
        yield Postgres(url=url, major=major, programs=await asyncio.to_thread(find_programs, major))
    finally:
        if embedded is not None:
            await asyncio.to_thread(embedded.stop)


async def _major_version(url: str) -> int:
    connection = await asyncpg.connect(driver_url(url))
    try:
        return int(await connection.fetchval("SHOW server_version_num")) // 10_000
    finally:
        await connection.close()


def find_programs(major: int, env: Mapping[str, str] = os.environ) -> Path:
    """The folder of Postgres' client programs of this major version: KHALA_PG_BIN, the wheel's, the system's, PATH's.

    Raises `OperationFailed`, with what was found instead.
    """
    others = []
    for folder in _folders(major, env):
        found = programs_version(folder)
        if found == major:
            return folder
        if found is not None:
            others.append(f"{found} in {folder}")
    found_instead = f"; found: {', '.join(dict.fromkeys(others))}" if others else ""
    raise OperationFailed(
        f"The server is Postgres {major}, and there is no {', '.join(PROGRAMS)} of that version{found_instead}."
        f" Install them (on Debian: postgresql-client-{major}), or let KHALA_PG_BIN name their folder."
    )


def _folders(major: int, env: Mapping[str, str]) -> Iterator[Path]:
    if chosen := env.get("KHALA_PG_BIN", "").strip():
        yield Path(chosen)
        return
    with suppress(EmbeddedPostgresError):
        yield find_binaries()
    yield from (Path(place.format(major)) for place in INSTALLED)
    in_path = shutil.which("pg_dump", path=env.get("PATH"))
    if in_path is not None:
        yield Path(in_path).parent


def programs_version(folder: Path) -> int | None:
    """The major version of the programs in this folder, if they are all there."""
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return None
    command = [str(folder / "pg_dump"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  # Postgres' own
    match = VERSION.search(said)
    return int(match[1]) if match else None


def libpq_environment(url: str) -> dict[str, str]:
    """The variables by which libpq reaches what the URL leads to. Raises `OperationFailed`."""
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
        raise OperationFailed(f"DATABASE_URL has parameters that are not known here: {', '.join(strange)}.")
    return {NAMES[name]: str(value) for name, value in parts.items() if value is not None}
