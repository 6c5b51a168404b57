"""`khala restore`: from a dump, or from a base backup and archived WAL to a moment. No Khala may run meanwhile."""

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
"""That Postgres may take to go through its WAL."""
FORGET = """
    UPDATE threads SET revision = revision + 1000000000, reset_revision = revision + 1000000000;
    UPDATE users SET revision = revision + 1000000000, floor_revision = revision + 1000000000;
"""
"""Clients have cursors that may be of a time that never came to be. Over this gap none of them is served: all are told
to forget what they have."""
AFTER = (
    'Restored. Before you serve it, see "After a restore" in docs/operations.md: who signed out since the backup is'
    " signed in again, and what was spent since is not counted."
)


async def restore_dump(settings: Settings, backup: Path) -> None:
    """Restore a dump into an empty database, and its blobs to where Khala keeps them. Raises `OperationFailed`."""
    async with postgres(settings) as server:
        async with server.connected() as connection:
            if await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"):
                raise OperationFailed(
                    "The database is not empty, and nothing is overwritten here: let DATABASE_URL name a new one."
                )
        # Bytes first, as Khala itself does it.
        missing = await load_blobs(settings, backup.parent / "blobs", blob_copies.names(backup / "blobs"))
        if missing:
            raise OperationFailed(f"{len(missing)} blobs are neither in the backup nor where Khala keeps them.")
        options = ("--single-transaction", "--no-owner", "--no-privileges")
        database = server.env.get("PGDATABASE", "khala")
        await server.run("pg_restore", *options, f"--dbname={database}", str(backup / "database.dump"))
        await _settle(settings, server)


def restore_base(backup: Path, data: Path, archive: Path, until: str | None, *, owner: str) -> None:
    """Make `data` a Postgres' data directory that goes on from the base backup, to the archive's end or to a moment.

    `owner`: who Postgres runs as, where root does this. Raises `OperationFailed`.
    """
    if data.exists() and any(data.iterdir()):
        raise OperationFailed(f"{data} is not empty: nothing is overwritten here.")
    shutil.copytree(backup / "base", data, symlinks=True, dirs_exist_ok=True)
    copied = f'cp {_shell(archive)}/%f "%p"'
    settings = [
        f"restore_command = {_quoted(copied)}",
        "recovery_target_action = 'promote'",
        "recovery_target_timeline = 'latest'",
        *([] if until is None else [f"recovery_target_time = {_quoted(until)}"]),
        # The restored one would write over what the lost one has archived: archive elsewhere, and switch it on again.
        "archive_mode = 'off'",
    ]
    with (data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{line}\n" for line in settings)
    (data / "recovery.signal").touch()
    data.chmod(0o700)
    if os.geteuid() == 0:
        _give(data, owner)
    click.echo(f"Start Postgres on {data}, and then: khala restore settle {backup}")


def _shell(path: Path) -> str:
    """The path as one word of a shell command, in which Postgres replaces `%`."""
    return (
        '"' + "".join(f"\\{letter}" if letter in '"\\$`' else letter for letter in str(path)).replace("%", "%%") + '"'
    )


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _give(data: Path, owner: str) -> None:
    try:
        user = pwd.getpwnam(owner)
    except KeyError as error:
        raise OperationFailed(f"There is no user {owner}: let OWNER name who Postgres runs as.") from error
    for path in (data, *data.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


async def settle(settings: Settings, backup: Path) -> None:
    """Put blobs back, and make a database fit to be served that was restored to a moment. Raises `OperationFailed`."""
    async with postgres(settings) as server:
        await _until_recovered(server)
        async with server.connected() as connection:
            stored = [row["name"] for row in await connection.fetch(STORED)]
            missing = await load_blobs(settings, backup.parent / "blobs", iter(stored))
            if missing:
                click.echo(f"{len(missing)} blobs came after the last copy, and are lost:", err=True)
                click.echo("\n".join(missing), err=True)
                # So that whoever has one and uploads it again is not told that it is there.
                forget = "UPDATE objects SET stored = false WHERE sha256 = ANY($1::bytea[])"
                await connection.execute(forget, [bytes.fromhex(name) for name in missing])
        await _settle(settings, server)


async def _until_recovered(server: Postgres) -> None:
    async with server.connected() as connection:
        for _ in range(MAX_RECOVERY_SECONDS):
            if not await connection.fetchval("SELECT pg_is_in_recovery()"):
                return
            await asyncio.sleep(1)
    raise OperationFailed("Postgres still recovers after an hour; its log says how far it is.")


async def load_blobs(settings: Settings, folder: Path, wanted: Iterator[str]) -> list[str]:
    """Put these blobs back to where Khala keeps them. Returns those that are in neither place."""
    async with blob_store(settings) as store:
        count, missing = await blob_copies.load(store, folder, wanted)
    click.echo(f"{count} blobs put back, {len(missing)} missing")
    return missing


async def _settle(settings: Settings, server: Postgres) -> None:
    async with server.connected() as connection:
        async with connection.transaction():
            await connection.execute(FORGET)
        await connection.execute("ANALYZE")
    async with open_database(settings) as db:
        await migrations.upgrade(db.direct_url)
        checked, found = VerifyProgress(), 0
        async for difference in find_differences(db, checked):
            found += 1
            click.echo(f"{difference.place}: {difference.problem}")
    click.echo(f"{checked.answers} answers in {checked.threads} threads checked, {found} differences.")
    if found:
        raise OperationFailed("The restored database is not what its parts say.")
    click.echo(AFTER)
