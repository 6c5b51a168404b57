"""The operators' commands. Each imports what it needs when it is called, so that no other command waits for it."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from uuid import UUID

import click

from khala.console import EPILOG, KnownFailure, run
from khala.operations.home_notice import command_settings
from khala.operations.identity_commands import accounts, tokens
from khala.operations.plan_client.commands import plan
from khala.operations.webhook_commands import webhooks
from khala.operations.worker_commands import workers

if TYPE_CHECKING:
    from khala.store.operations.verify_pages import VerifyPosition

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
GIB_BYTES = 1 << 30
_BackupKind: TypeAlias = Literal["dump", "base"]
PartitionBy: TypeAlias = Literal["hash", "month"]


def _since(_: click.Context, __: click.Parameter, value: str | None) -> datetime | None:
    """The start of a verification: a number of days before now, or a date."""
    if value is None:
        return None
    try:
        if value.isdecimal():
            return datetime.now(UTC) - timedelta(days=int(value))
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter("use a number of days, or a date such as 2026-01-31.") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _position(_: click.Context, __: click.Parameter, value: str | None) -> "VerifyPosition | None":
    from khala.store.operations.verify_pages import VerifyPosition

    try:
        return None if value is None else VerifyPosition.parse(value)
    except ValueError as error:
        raise click.BadParameter("use the position that an interrupted verification has printed.") from error


@click.command(epilog=EPILOG)
@click.option(
    "--since",
    metavar="DAYS|DATE",
    callback=_since,
    help="Check only answers that began since then: so many days ago, or since a date (UTC).",
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 100, min_open=True),
    default=100,
    metavar="PERCENT",
    help="Check only this part of the answers. It is always the same part.",
)
@click.option("--thread", type=click.UUID, metavar="ID", help="Check only this thread.")
@click.option("--after", callback=_position, metavar="POSITION", help="Continue after the position of an earlier one.")
@click.option("--jobs", type=click.IntRange(1, 16), default=2, show_default=True, help="Connections to the database.")
def verify(
    *, since: datetime | None, sample: float, thread: UUID | None, after: "VerifyPosition | None", jobs: int
) -> None:
    """Recompute finished answers and plans, and report differences; exit with 1 if there are any.

    It only reads, in small statements, and may run beside `serve`. If it is interrupted, it prints the position at
    which `--after` continues, with the same other options.
    """
    from khala.operations.verification import verify_database
    from khala.store.operations.verify_pages import VerifyPosition, VerifySelection

    selection = VerifySelection(since=since, sample_percent=sample, thread_id=thread)
    run(verify_database(command_settings(), selection, after=after or VerifyPosition(), jobs=jobs))


@click.command(epilog=EPILOG)
@click.option("--since", metavar="DAYS|DATE", callback=_since, help="Only feedback that was given or changed since.")
@click.option("--texts", is_flag=True, help="Also print the question and the answer.")
def feedback(*, since: datetime | None, texts: bool) -> None:
    """Print people's feedback on answers as JSON lines, the oldest first, for an evaluation.

    It only reads, and may run beside `serve`.
    """
    from khala.operations.feedback_listing import print_feedback

    begin = since or datetime(2020, 1, 1, tzinfo=UTC)
    run(print_feedback(command_settings(), since=begin, with_texts=texts))


@click.command("import-chats", epilog=EPILOG)
@click.argument("file", type=FILE)
@click.option("--user", required=True, metavar="ACCOUNT", help="The account's id or e-mail address.")
def import_chats(*, file: Path, user: str) -> None:
    """Import the conversations in FILE into an account: an export of ChatGPT, Claude or Open WebUI.

    FILE is the zip or its JSON. A second import adds only what is new. It may run beside `serve`.
    """
    from khala.operations.chat_importing import import_export

    run(import_export(command_settings(), file, user))


@click.command("import", epilog=EPILOG)
@click.argument("file", type=FILE)
@click.option("--email", help="The e-mail address to sign in with instead of the archive's. Needs --password-stdin.")
@click.option("--password-stdin", is_flag=True, help="Read the account's password from a line of standard input.")
@click.option(
    "--trusted", is_flag=True, help="Also import identities and members. Only for an archive that nobody could change."
)
@click.option(
    "--max-gib",
    type=click.IntRange(1, 1 << 20),
    default=100,
    show_default=True,
    help="The archive's unpacked size, at most.",
)
def import_(*, file: Path, email: str | None, password_stdin: bool, trusted: bool, max_gib: int) -> None:
    """Import the account in FILE, which was exported from another deployment.

    All of it is imported or nothing. Ids stay, and a second import adds nothing. It may run beside `serve`.
    """
    from khala.operations.importing import import_account

    if email is not None and not password_stdin:
        raise click.UsageError("--email needs --password-stdin.")
    password = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    run(
        import_account(
            command_settings(creates=True),
            file,
            email=email,
            password=password,
            trusted=trusted,
            max_bytes=max_gib * GIB_BYTES,
        )
    )


@click.command(epilog=EPILOG)
@click.argument("kind", type=click.Choice(["dump", "base"]))
@click.argument("folder", type=FOLDER)
@click.option(
    "--keep", type=click.IntRange(1), help="After a dump, delete all but this number of dumps, with their blobs."
)
def backup(*, kind: _BackupKind, folder: Path, keep: int | None) -> None:
    """Back Khala up while it runs: create FOLDER/<time>-<KIND>, and add blobs to FOLDER/blobs.

    dump: one database by pg_dump; it can be restored into any newer Postgres. base: the whole cluster by
    pg_basebackup; with archived WAL it can be restored to any later moment. KHALA_PG_BIN names the folder of Postgres'
    programs, which must have the server's major version.
    """
    from khala.operations.backup import back_up

    run(back_up(command_settings(), kind, folder, keep=keep))


@click.group(epilog=EPILOG)
def restore() -> None:
    """Restore a backup. Stop Khala on this database first."""


@restore.command("dump", epilog=EPILOG)
@click.argument("backup", type=EXISTING_FOLDER)
def restore_dump(*, backup: Path) -> None:
    """Restore a dump into an empty database, and its blobs into Khala's store of blobs."""
    from khala.operations import restore as restoring

    run(restoring.restore_dump(command_settings(creates=True), backup))


@restore.command("base", epilog=EPILOG)
@click.argument("backup", type=EXISTING_FOLDER)
@click.argument("data", type=FOLDER)
@click.argument("archive", type=FOLDER)
@click.argument("until", required=False)
@click.option(
    "--owner", envvar="OWNER", default="nobody", show_default=True, help="The user that Postgres runs as, for root."
)
def restore_base(*, backup: Path, data: Path, archive: Path, until: str | None, owner: str) -> None:
    """Create the data directory DATA of a Postgres from a base backup and the WAL in ARCHIVE.

    It recovers to the archive's end, or to the moment UNTIL, as '2026-01-31 12:00:00+00'. Then start Postgres on it,
    and run `khala restore settle BACKUP`.
    """
    from khala.operations import restore as restoring

    try:
        restoring.restore_base(backup, data, archive, until, owner=owner)
    except (RuntimeError, OSError) as error:
        raise KnownFailure(str(error)) from error


@restore.command("settle", epilog=EPILOG)
@click.argument("backup", type=EXISTING_FOLDER)
def settle(*, backup: Path) -> None:
    """Finish `base`: restore the blobs, and make the database ready to be served."""
    from khala.operations import restore as restoring

    run(restoring.settle(command_settings(creates=True), backup))


@click.group(epilog=EPILOG)
def blobs() -> None:
    """Copy blobs between Khala's store and a folder of backups."""


@blobs.command(epilog=EPILOG)
@click.argument("folder", type=FOLDER)
def save(*, folder: Path) -> None:
    """Copy to FOLDER the blobs that it lacks."""
    from khala.operations.backup import save_blobs

    run(save_blobs(command_settings(creates=True), folder))


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
    """Restore the blobs that NAMES lists, and write the names of missing ones into MISSING."""
    from khala.operations import blob_copies
    from khala.operations.restore import load_blobs

    async def load_all() -> None:
        lost.extend(await load_blobs(command_settings(creates=True), folder, blob_copies.names(names)))

    lost: list[str] = []
    run(load_all())
    missing.write_text("".join(f"{name}\n" for name in lost))


@click.command("with-postgres", epilog=EPILOG, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def with_postgres(*, command: tuple[str, ...]) -> None:
    """Run COMMAND, such as psql, with Postgres' programs and Khala's database in its environment."""
    from khala.operations.programs import postgres

    async def call() -> None:
        async with postgres(command_settings()) as server:
            code = await server.call(command)
        if code != 0:
            raise SystemExit(code)

    run(call())


@click.command("partition-parts", epilog=EPILOG)
@click.argument("by", type=click.Choice(["hash", "month"]))
@click.option("--print", "only_print", is_flag=True, help="Change nothing; print the SQL.")
def partition_parts(*, by: PartitionBy, only_print: bool) -> None:
    """Partition the table of parts: 16 partitions by a hash of the run, or one per month. Stop Khala first.

    docs/scaling.md says what it costs and when it helps.
    """
    from khala.operations import partitions

    if only_print:
        click.echo(partitions.script(by), nl=False)
        return
    run(partitions.split(command_settings(), by))


@click.command("upgrade-check", epilog=EPILOG)
@click.argument("old", type=FILE)
def upgrade_check(*, old: Path) -> None:
    """Rehearse an upgrade from the Khala whose program is OLD (as /opt/khala/bin/khala) to this one.

    Both run side by side on a database of their own and answer messages. It takes a few minutes.
    """
    from khala.operations.upgrade_check import check_upgrade

    run(check_upgrade(old))


@click.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--server", envvar="KHALA_URL", default="http://127.0.0.1:8000", show_default=True, help="Its address.")
@click.option("--token", envvar="KHALA_TOKEN", required=True, help="An API token of the account with the scope `read`.")
@click.option("--thread", type=click.UUID, metavar="ID", help="Search only this thread.")
@click.option("--kind", type=click.Choice(["message", "file", "memory"]), help="By default all kinds.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Results, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer, for programs.")
def search(
    *,
    words: tuple[str, ...],
    server: str,
    token: str,
    thread: UUID | None,
    kind: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Find messages, files and memories of an account on a running server; exit with 1 if there are none.

    It prints exact matches first. Set the token by the variable KHALA_TOKEN, so that no list of processes shows it.
    """
    from khala.operations import search_client

    params = {"q": " ".join(words), "limit": str(limit)}
    params |= {name: str(value) for name, value in (("threadId", thread), ("kind", kind)) if value is not None}
    body = run(search_client.request(f"{server.rstrip('/')}/api/search", params, token)) or b'{"items":[]}'
    found = search_client.hits(body)
    click.echo(body if as_json else "\n".join(line for item in found for line in search_client.lines(item)))
    if not found:
        raise SystemExit(1)


COMMANDS: tuple[click.Command, ...] = (
    verify, import_, import_chats, backup, restore, blobs, with_postgres, partition_parts, upgrade_check, search, plan,
    tokens, accounts, webhooks, workers, feedback,
)  # fmt: skip
