"""The console command `khala`. Each command imports what it needs when it is called, so that `--help` is fast."""

import gc
import math
import os
import resource
import sys
from typing import TYPE_CHECKING

import click

from khala.console import EPILOG, KnownFailure, load_settings, run
from khala.dev.commands import dev, new
from khala.operations.commands import COMMANDS
from khala.operations.home_notice import command_settings

if TYPE_CHECKING:
    from khala.settings import Settings

COLLECTION_THRESHOLDS = (10_000, 20, 25)
"""How many new objects, and collections of newer objects, begin a collection: `gc.set_threshold`."""
MAX_OPEN_FILES = 65_536
"""Open files of a process, at most. Each connection is one."""
EXECUTE_RUN = "execute-run"
"""The command of the child process of a single run; `khala.runs.isolation` starts it by this name."""
MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


@click.group(epilog=EPILOG)
@click.version_option(package_name="khala-server", prog_name="khala")
def main() -> None:
    """Khala: durable, realtime chat threads on nothing but Postgres."""


@main.command(epilog=EPILOG)
@click.option("--no-executor", is_flag=True, help="Serve only. Runs are executed by `khala work` elsewhere.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; by default PORT or 8000.")
def serve(*, no_executor: bool, port: int | None) -> None:
    """Serve the API and the page, and execute runs.

    Starts the embedded Postgres unless DATABASE_URL names another, brings the schema up to date, and listens on HOST
    and PORT. Ctrl-C ends or hands over the active runs and stops what was started; a second Ctrl-C does not wait.
    """
    from khala import main as composition

    _raise_file_limit()
    if port is not None:
        os.environ["PORT"] = str(port)
    settings = load_settings()

    def announce(address: str) -> None:
        _freeze_objects()
        click.echo(f"Khala is at {address}")
        click.echo(f"  database  {_database_name(settings)}")
        click.echo(f"  blobs     {settings.blobs.url or f'in {settings.process.home}'}")
        click.echo(f"  models    {', '.join(map(str, settings.model_chain))}{_key_hint(settings)}")
        sys.stdout.flush()

    run(composition.serve(settings, with_executor=not no_executor, announce=announce))


@main.command(epilog=EPILOG)
def work() -> None:
    """Execute runs, without serving requests. Start any number beside `khala serve --no-executor`."""
    from khala import main as composition

    _raise_file_limit()
    settings = load_settings()

    def announce(name: str) -> None:
        _freeze_objects()
        click.echo(f"Khala works as {name} on {_database_name(settings)}")

    run(composition.work(settings, announce=announce))


@main.command(EXECUTE_RUN, hidden=True)
def execute_run() -> None:
    """Execute the run whose claim is on standard input. `serve` and `work` start this themselves."""
    from khala import isolated_run

    isolated_run.confine()
    settings = load_settings()
    claimed = isolated_run.claim()
    isolated_run.end_with_parent()
    raise SystemExit(run(isolated_run.execute(settings, claimed)))


@main.command(epilog=EPILOG)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if the schema is not up to date.")
@click.option("--drop-retired", is_flag=True, help="Also drop indexes that only the previous version reads.")
def migrate(*, check: bool, drop_retired: bool) -> None:
    """Bring the database's schema up to date. `serve` and `work` do so, too.

    Use --drop-retired once no process of the previous version will run again: it would be slow.
    """
    if check and drop_retired:
        raise click.UsageError("--check changes nothing: leave out --drop-retired.")
    run(_migrate(command_settings(creates=not check), check=check, drop_retired=drop_retired))


@main.command(epilog=EPILOG)
@click.option("--dry-run", is_flag=True, help="Delete nothing; only count.")
def purge(*, dry_run: bool) -> None:
    """Delete what has expired: idle anonymous threads, deleted threads, sessions, tokens and the like.

    The bytes of a blob are deleted when its last reference is an hour old.

    `serve` and `work` do so, too, about once a minute.
    """
    run(_purge(command_settings(), dry_run=dry_run))


@main.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--call", is_flag=True, help="Call each model once, too, which costs a little.")
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=2, show_default=True, help="Processes that run at once."
)
def doctor(*, as_json: bool, call: bool, processes: int) -> None:
    """Check what Khala needs, and say what to do about problems; exit with 1 if anything is bad."""
    run(_doctor(command_settings(creates=True), as_json=as_json, call=call, processes=processes))


async def _migrate(settings: "Settings", *, check: bool, drop_retired: bool) -> None:
    from khala.components import open_database
    from khala.store.postgres import migrations

    async with open_database(settings) as db:
        at = await migrations.current(db)
        newer = at is not None and not migrations.is_known(at)
        if check and at != migrations.head() and not newer:
            raise KnownFailure(f"The schema is at {at}, and should be at {migrations.head()}: run `khala migrate`.")
        if not check:
            await migrations.upgrade(db.direct_url)
        for name in await migrations.drop_retired_indexes(db.direct_url) if drop_retired else ():
            click.echo(f"Dropped the index {name}.")
        beyond = ", which is newer than this program" if newer else ""
        click.echo(f"The schema is at {await migrations.current(db)}{beyond}.")


async def _purge(settings: "Settings", *, dry_run: bool) -> None:
    from khala.blobs.garbage_collector import BlobGarbageCollector
    from khala.components import open_blobs, open_database
    from khala.main import retention_policy
    from khala.store.operations import retention
    from khala.store.operations.part_partitions import maintain_partitions
    from khala.store.postgres import migrations

    policy = retention_policy(settings)
    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        collector = BlobGarbageCollector(db, blob_service.store)
        if not dry_run:
            await maintain_partitions(db)
        counts = await (retention.count_due(db, policy) if dry_run else retention.purge(db, policy))
        counts["objects"] = await (collector.due() if dry_run else collector.collect(max_kept=math.inf))
    for kind, count in counts.items():
        click.echo(f"{count:>9,} {kind.replace('_', ' ')}")
    click.echo("Nothing was deleted." if dry_run else "Deleted.")


async def _doctor(settings: "Settings", *, as_json: bool, call: bool, processes: int) -> None:
    import msgspec

    from khala.components import open_blobs, open_database
    from khala.doctor import examine

    async with open_database(settings) as db, open_blobs(settings, db) as blob_service:
        findings = await examine(settings, db, blob_service, processes=processes, call=call)
    well = all(finding.well for finding in findings)
    if as_json:
        click.echo(msgspec.json.encode({"ok": well, "findings": findings}))
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.state]} {finding.what}: {' '.join(finding.says.split())}")
    if not well:
        raise SystemExit(1)


def _database_name(settings: "Settings") -> str:
    if settings.database.url is None:
        return f"embedded Postgres in {settings.process.home}"
    return "DATABASE_URL"


def _key_hint(settings: "Settings") -> str:
    from khala.models.provider_registry import PROVIDERS

    if any(ref.provider in PROVIDERS for ref in settings.model_chain):
        return ""
    *keys, last = (spec.key_variables[0] for spec in PROVIDERS.values())
    return f" (set {', '.join(keys)} or {last} for a real one)"


def _freeze_objects() -> None:
    """Have Python's collector ignore all objects that exist now: mostly modules, which stay as long as the process.

    A full collection of them takes a tenth of a second, in which nothing is delivered. Collections of new objects
    find next to nothing, so they are less frequent than usual.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    # The collector runs fully when objects have grown by a quarter since the last full run: this sets the base.
    gc.collect()


def _raise_file_limit() -> None:
    """Raise the limit of open files as far as this process may. The usual 1,024 allow few connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


for _command in (dev, new, *COMMANDS):
    main.add_command(_command)
