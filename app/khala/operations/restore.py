"""`khala restore`: restores a dump, or a base backup with archived WAL to a moment. Khala must not run meanwhile."""

import asyncio
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import click

from khala.components import open_database
from khala.operations import blob_copies
from khala.operations.backup import STORED, blob_store
from khala.operations.programs import OperationFailed, Postgres, postgres
from khala.settings import Settings
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres import migrations

MAX_RECOVERY_SECONDS = 3600
"""Time that Postgres may take to replay its WAL."""
RESET_CURSORS = """
    UPDATE threads SET revision = revision + 1000000000, reset_revision = revision + 1000000000;
    UPDATE users SET revision = revision + 1000000000, floor_revision = revision + 1000000000;
"""
"""Clients may have cursors of revisions that were lost. After this jump no cursor is continued, and each client gets a
new snapshot."""
AFTER = (
    'Restored. Before you serve it, see "After a restore" in docs/operations.md: sessions that were signed out'
    " since the backup are valid again, and spending since then is not counted."
)


async def restore_dump(settings: Settings, backup: Path) -> None:
    """Restore a dump into an empty database, and its blobs into Khala's store. Raises `OperationFailed`."""
    async with postgres(settings) as server:
        async with server.connected() as connection:
            if await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"):
                raise OperationFailed(
                    "The database is not empty, and a restore overwrites nothing: set DATABASE_URL to a new database, "
                    "or KHALA_HOME to a new folder for an embedded Postgres."
                )
        # Bytes come before the rows that name them, as in Khala itself.
        missing = await load_blobs(settings, backup.parent / "blobs", blob_copies.names(backup / "blobs"))
        if missing:
            raise OperationFailed(f"{len(missing)} blobs are neither in the backup nor in Khala's store.")
        options = ("--single-transaction", "--no-owner", "--no-privileges")
        database = server.env.get("PGDATABASE", "khala")
        await server.run("pg_restore", *options, f"--dbname={database}", str(backup / "database.dump"))
        await _prepare(settings, server)


def restore_base(backup: Path, data: Path, archive: Path, until: str | None, *, owner: str) -> None:
    """Create the data directory `data`, which recovers from the base backup to the archive's end or to a moment.

    `owner`: the user that Postgres runs as, if this process is root. Raises `OperationFailed`.
    """
    if data.exists() and any(data.iterdir()):
        raise OperationFailed(f"{data} is not empty, and a restore overwrites nothing: choose another folder.")
    shutil.copytree(backup / "base", data, symlinks=True, dirs_exist_ok=True)
    copy_command = f'cp {_shell(archive)}/%f "%p"'
    settings = [
        f"restore_command = {_quoted(copy_command)}",
        "recovery_target_action = 'promote'",
        "recovery_target_timeline = 'latest'",
        *([] if until is None else [f"recovery_target_time = {_quoted(until)}"]),
        # Otherwise the restored cluster would write into the archive of the lost one: see docs/operations.md.
        "archive_mode = 'off'",
    ]
    with (data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{line}\n" for line in settings)
    (data / "recovery.signal").touch()
    data.chmod(0o700)
    if os.geteuid() == 0:
        _change_owner(data, owner)
    click.echo(f"Start Postgres on {data}, and then: khala restore settle {backup}")


def _shell(path: Path) -> str:
    """The path as one word of a shell command, in which Postgres replaces `%`."""
    return (
        '"' + "".join(f"\\{letter}" if letter in '"\\$`' else letter for letter in str(path)).replace("%", "%%") + '"'
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _change_owner(data: Path, owner: str) -> None:
    try:
        user = pwd.getpwnam(owner)
    except KeyError as error:
        raise OperationFailed(f"There is no user {owner}: set OWNER to the user that Postgres runs as.") from error
    for path in (data, *data.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


async def settle(settings: Settings, backup: Path) -> None:
    """Restore the blobs of a database that was restored to a moment, and prepare it for Khala.

    Raises `OperationFailed`.
    """
    async with postgres(settings) as server:
        await _wait_recovered(server)
        async with server.connected() as connection:
            stored = [row["name"] for row in await connection.fetch(STORED)]
            missing = await load_blobs(settings, backup.parent / "blobs", iter(stored))
            if missing:
                click.echo(f"{len(missing)} blobs were added after the last copy, and are lost:", err=True)
                click.echo("\n".join(missing), err=True)
                # So that the next upload of the same content stores the bytes.
                mark_missing = "UPDATE objects SET stored = false WHERE sha256 = ANY($1::bytea[])"
                await connection.execute(mark_missing, [bytes.fromhex(name) for name in missing])
        await _prepare(settings, server)


async def _wait_recovered(server: Postgres) -> None:
    async with server.connected() as connection:
        for _ in range(MAX_RECOVERY_SECONDS):
            if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                return
            await asyncio.sleep(1)
    raise OperationFailed("Postgres is still recovering after an hour. Its log has the progress.")


async def load_blobs(settings: Settings, folder: Path, wanted: Iterator[str]) -> list[str]:
    """Restore these blobs into Khala's store. Returns the names that are in neither place."""
    async with blob_store(settings) as store:
        count, missing = await blob_copies.load(store, folder, wanted)
    click.echo(f"{count} blobs put back, {len(missing)} missing")
    return missing


async def _prepare(settings: Settings, server: Postgres) -> None:
    async with server.connected() as connection:
        async with connection.transaction():
            await connection.execute(RESET_CURSORS)
        await connection.execute("ANALYZE")
    async with open_database(settings) as db:
        await migrations.upgrade(db.direct_url)
        progress, count = VerifyProgress(), 0
        async for difference in find_differences(db, progress):
            count += 1
            click.echo(f"{difference.place}: {difference.problem}")
    checked = f"{progress.answers} answers in {progress.threads} threads and {progress.plans} plans checked"
    click.echo(f"{checked}, {count} differences.")
    if count:
        raise OperationFailed("Answers of the restored database differ from their parts; see the list above.")
    click.echo(AFTER)
