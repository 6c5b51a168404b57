"""Postgres' own programs, of the server's major version, and the database that Khala uses in their environment.

Only programs of the server's major version are used: a dump by a newer `pg_dump` may have commands that the server does
not know, and an older `pg_dump` refuses a newer server.
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
SYSTEM_FOLDERS = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")
"""Folders of the programs of a major version on Debian, Red Hat and Homebrew."""
VERSION = re.compile(r"(\d+)[.\d]*(?:devel|beta\d+|rc\d+)?(?:\s|$)")
LIBPQ_VARIABLES = {
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
"""The variable of libpq for each part of a URL."""


class OperationFailed(RuntimeError):
    """The command failed. The message says why, and what to do."""


class Postgres(msgspec.Struct, frozen=True, kw_only=True):
    """The database that Khala uses: its URL, its major version, and the folder of the programs of that version."""

    url: str
    major: int
    programs: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of a program. It holds the password, which would be visible in an argument."""
        path = f"{self.programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return os.environ | libpq_environment(self.url) | {"PATH": path}

    async def run(self, program: str, *arguments: str) -> None:
        """Run one of Postgres' programs. Raises `OperationFailed` if it fails; it prints the reason itself."""
        code = await self.call([str(self.programs / program), *arguments])
        if code != 0:
            raise OperationFailed(f"{program} failed with exit code {code}.")

    async def call(self, command: Sequence[str]) -> int:
        """Run a command in this environment. Returns its exit code. Cancellation terminates it."""
        process = await asyncio.create_subprocess_exec(*command, env=self.env)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        """A connection without a statement timeout."""
        connection = await asyncpg.connect(driver_url(self.url))
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def postgres(settings: Settings) -> AsyncIterator[Postgres]:
    """The database, without a pooler. The embedded Postgres runs while the context is open.

    Raises `OperationFailed` if there are no programs of the server's major version.
    """
    url = settings.database.direct_url or settings.database.url
    embedded = None
    if url is None:
        embedded = await asyncio.to_thread(
            EmbeddedPostgres.start, settings.process.home, settings.database.embedded_parameters
        )
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

    Raises `OperationFailed`, which lists the versions that were found.
    """
    others = []
    for folder in _folders(major, env):
        version = programs_version(folder)
        if version == major:
            return folder
        if version is not None:
            others.append(f"{version} in {folder}")
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
    yield from (Path(folder.format(major)) for folder in SYSTEM_FOLDERS)
    in_path = shutil.which("pg_dump", path=env.get("PATH"))
    if in_path is not None:
        yield Path(in_path).parent


def programs_version(folder: Path) -> int | None:
    """The major version of the programs in this folder, if all of them are present."""
    if not all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
        return None
    command = [str(folder / "pg_dump"), "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603  # Postgres' own
    match = VERSION.search(output)
    return int(match[1]) if match else None


def libpq_environment(url: str) -> dict[str, str]:
    """The variables with which libpq connects to the URL. Raises `OperationFailed`."""
    parsed = asyncpg_url(driver_url(url))
    parts: dict[str, object] = {
        "host": parsed.host,
        "port": parsed.port,
        "user": parsed.username,
        "password": parsed.password,
        "dbname": parsed.database,
        **parsed.query,
    }
    unknown = sorted(set(parts) - set(LIBPQ_VARIABLES))
    if unknown:
        raise OperationFailed(f"DATABASE_URL has parameters that Khala does not support: {', '.join(unknown)}.")
    return {LIBPQ_VARIABLES[name]: str(value) for name, value in parts.items() if value is not None}
