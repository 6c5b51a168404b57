"""The operators' commands. What each needs is imported when it is called: no other command waits for that."""

import sys
from pathlib import Path
from typing import Literal, TypeAlias

import click

from khala.console import EPILOG, KnownFailure, run, settings

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(path_type=Path)
MADE = click.Path(exists=True, file_okay=False, path_type=Path)
GIB = 1 << 30
BackupKind: TypeAlias = Literal["dump", "base"]
PartitionBy: TypeAlias = Literal["hash", "month"]


@click.command("import", epilog=EPILOG)
@click.argument("file", type=FILE)
@click.option("--email", help="The address to sign in by, if not the one in the archive. Goes with --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Give the account the password that standard input has a line of.")
@click.option("--trusted", is_flag=True, help="The archive is as a server wrote it: take over identities and members.")
@click.option("--max-gib", type=click.IntRange(1, 1 << 20), default=100, show_default=True, help="Of it, unpacked.")
def import_(*, file: Path, email: str | None, password_stdin: bool, trusted: bool, max_gib: int) -> None:
    """Import the account in FILE, which somebody exported, into this deployment.

    All of it or nothing; ids stay, and a second time nothing is added. It may run beside `serve`.
    """
    from khala.operations.importing import import_account

    if email is not None and not password_stdin:
        raise click.UsageError("--email goes with --password-stdin.")
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    run(import_account(settings(), file, email=email, password=password, trusted=trusted, max_bytes=max_gib * GIB))


@click.command(epilog=EPILOG)
@click.argument("kind", type=click.Choice(["dump", "base"]))
@click.argument("folder", type=FOLDER)
@click.option("--keep", type=click.IntRange(1), help="After a dump, delete all dumps but so many, with their blobs.")
def backup(*, kind: BackupKind, folder: Path, keep: int | None) -> None:
    """Back Khala up while it runs: make FOLDER/<time>-<KIND>, and add blobs to FOLDER/blobs.

    dump: one database by pg_dump, which restores into any newer Postgres. base: the whole cluster by pg_basebackup, for
    any moment after it, with archived WAL. The programs must be of the server's major version; KHALA_PG_BIN says where.
    """
    from khala.operations.backup import back_up

    run(back_up(settings(), kind, folder, keep=keep))


@click.group(epilog=EPILOG)
def restore() -> None:
    """Restore a backup. No Khala may run on the database meanwhile."""


@restore.command("dump", epilog=EPILOG)
@click.argument("backup", type=MADE)
def restore_dump(*, backup: Path) -> None:
    """Restore a dump into an empty database, and its blobs to where Khala keeps them."""
    from khala.operations import restore as restoring

    run(restoring.restore_dump(settings(), backup))


@restore.command("base", epilog=EPILOG)
@click.argument("backup", type=MADE)
@click.argument("data", type=FOLDER)
@click.argument("archive", type=FOLDER)
@click.argument("until", required=False)
@click.option("--owner", envvar="OWNER", default="nobody", show_default=True, help="Who Postgres runs as, for root.")
def restore_base(*, backup: Path, data: Path, archive: Path, until: str | None, owner: str) -> None:
    """Make DATA a Postgres' data directory, from a base backup and the WAL in ARCHIVE.

    It goes on to the archive's end, or to the moment UNTIL, as '2026-01-31 12:00:00+00'. Start Postgres on it, and then
    `khala restore settle BACKUP`.
    """
    from khala.operations import restore as restoring

    try:
        restoring.restore_base(backup, data, archive, until, owner=owner)
    except (RuntimeError, OSError) as error:
        raise KnownFailure(str(error)) from error


@restore.command("settle", epilog=EPILOG)
@click.argument("backup", type=MADE)
def settle(*, backup: Path) -> None:
    """Put blobs back after `base`, and make the database fit to be served."""
    from khala.operations import restore as restoring

    run(restoring.settle(settings(), backup))


@click.group(epilog=EPILOG)
def blobs() -> None:
    """Copy blobs between where Khala keeps them and a folder of backups."""


@blobs.command(epilog=EPILOG)
@click.argument("folder", type=FOLDER)
def save(*, folder: Path) -> None:
    """Add to FOLDER the blobs that it has not yet."""
    from khala.operations.backup import save_blobs

    run(save_blobs(settings(), folder))


@blobs.command(epilog=EPILOG)
@click.argument("folder", type=FOLDER)
@click.argument("names", type=FILE)
def check(*, folder: Path, names: Path) -> None:
    """Fail unless FOLDER has every blob that NAMES lists, one a line."""
    from khala.operations import blob_copies

    try:
        click.echo(blob_copies.check(folder, blob_copies.names(names)))
    except (blob_copies.DamagedBlob, OSError) as error:
        raise KnownFailure(str(error)) from error


@blobs.command(epilog=EPILOG)
@click.argument("folder", type=FOLDER)
@click.argument("names", type=FILE)
@click.argument("missing", type=FOLDER)
def load(*, folder: Path, names: Path, missing: Path) -> None:
    """Put the blobs that NAMES lists back, and write into MISSING the names of those that are nowhere."""
    from khala.operations import blob_copies
    from khala.operations.restore import load_blobs

    async def loaded() -> None:
        lost.extend(await load_blobs(settings(), folder, blob_copies.names(names)))

    lost: list[str] = []
    run(loaded())
    missing.write_text("".join(f"{name}\n" for name in lost))


@click.command("with-postgres", epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def with_postgres(*, command: tuple[str, ...]) -> None:
    """Run COMMAND, such as psql, with Postgres' own programs and Khala's database in its environment."""
    from khala.operations.programs import postgres

    async def called() -> None:
        async with postgres(settings()) as server:
            code = await server.call(command)
        if code != 0:
            raise SystemExit(code)

    run(called())


@click.command("partition-parts", epilog=EPILOG)
@click.argument("by", type=click.Choice(["hash", "month"]))
@click.option("--print", "only_print", is_flag=True, help="Change nothing; print the SQL.")
def partition_parts(*, by: PartitionBy, only_print: bool) -> None:
    """Split the table of parts: into 16 by a hash of the thread, or into one a month. Stop Khala first.

    docs/scaling.md says what it costs and what it is good for.
    """
    from khala.operations import partitions

    if only_print:
        click.echo(partitions.script(by), nl=False)
        return
    run(partitions.split(settings(), by))


@click.command("upgrade-check", epilog=EPILOG)
@click.argument("old", type=FILE)
def upgrade_check(*, old: Path) -> None:
    """Play an upgrade through, from the Khala whose program is OLD (as /opt/khala/bin/khala) to this one.

    Both run side by side on a database of their own while questions are asked; takes a few minutes.
    """
    from khala.operations.upgrade_check import check_upgrade

    run(check_upgrade(old))


COMMANDS: tuple[click.Command, ...] = (
    import_, backup, restore, blobs, with_postgres, partition_parts, upgrade_check,
)  # fmt: skip
