"""The console command `khala`."""

import gc
import resource
import sys
from importlib.metadata import version

import click
import msgspec

from khala import isolated_run
from khala import main as composition
from khala.blobs.garbage_collector import BlobGarbageCollector
from khala.console import EPILOG, KnownFailure
from khala.console import run as _run
from khala.console import settings as _settings
from khala.operations.commands import COMMANDS
from khala.runs import isolation
from khala.settings import Settings
from khala.store.operations import retention
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.postgres import migrations

MOST_FILES = 65_536
"""Open files that a process takes at most, each connection being one."""
MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


@click.group(epilog=EPILOG)
@click.version_option(version("khala"), prog_name="khala")
def main() -> None:
    """Khala: durable, realtime chat threads on nothing but Postgres."""


@main.command(epilog=EPILOG)
@click.option("--no-executor", is_flag=True, help="Serve only; runs are worked on by `khala work` elsewhere.")
def serve(*, no_executor: bool) -> None:
    """Serve the API and the page, and work on runs.

    Starts the embedded Postgres unless DATABASE_URL names another, brings the schema up to date, and listens on HOST
    and PORT. Ctrl-C ends or hands over the runs under way and stops what was started; pressed twice, it doesn't wait.
    """
    _open_many()
    settings = _settings()

    def announce(address: str) -> None:
        _keep_for_good()
        click.echo(f"Khala is at {address}")
        click.echo(f"  database  {_database(settings)}")
        click.echo(f"  blobs     {settings.blobs.url or f'in {settings.process.home}'}")
        click.echo(f"  models    {', '.join(map(str, settings.model_chain))}{_hint(settings)}")
        sys.stdout.flush()

    _run(composition.serve(settings, with_executor=not no_executor, announce=announce))


@main.command(epilog=EPILOG)
def work() -> None:
    """Work on runs, without serving anybody. Start as many as you like beside `khala serve --no-executor`."""
    _open_many()
    settings = _settings()

    def announce(name: str) -> None:
        _keep_for_good()
        click.echo(f"Khala works as {name} on {_database(settings)}")

    _run(composition.work(settings, announce=announce))


@main.command(isolation.COMMAND, hidden=True)
def execute_run() -> None:
    """Execute the run whose claim is on standard input. `serve` and `work` start this themselves."""
    isolated_run.confine()
    settings = _settings()
    claimed = isolated_run.claim()
    isolated_run.end_with_parent()
    raise SystemExit(_run(isolated_run.execute(settings, claimed)))


@main.command(epilog=EPILOG)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if the schema is not up to date.")
def migrate(*, check: bool) -> None:
    """Bring the database's schema up to date. `serve` and `work` do so by themselves."""
    _run(_migrate(_settings(), check=check))


@main.command(epilog=EPILOG)
def verify() -> None:
    """Recompute every finished answer from its parts, and report what differs; exits with 1 if anything does."""
    _run(_verify(_settings()))


@main.command(epilog=EPILOG)
@click.option("--dry-run", is_flag=True, help="Delete nothing; say how much there is.")
def purge(*, dry_run: bool) -> None:
    """Delete what nobody may keep any more: idle anonymous threads, deleted threads, what has expired.

    Bytes of blobs go when nothing has referred to them for an hour.

    `serve` and `work` do so by themselves, about once a minute.
    """
    _run(_purge(_settings(), dry_run=dry_run))


@main.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Say it for programs: one JSON object.")
@click.option("--call", is_flag=True, help="Call each model once, too, which costs a little.")
@click.option("--processes", type=click.IntRange(1, 1000), default=2, show_default=True, help="That shall run at once.")
def doctor(*, as_json: bool, call: bool, processes: int) -> None:
    """Check what Khala needs, and say what to do about what is missing; exits with 1 if anything is bad."""
    _run(_doctor(_settings(), as_json=as_json, call=call, processes=processes))


async def _migrate(settings: Settings, *, check: bool) -> None:
    async with composition.database(settings) as db:
        at = await migrations.current(db)
        newer = at is not None and not migrations.is_known(at)
        if check and at != migrations.head() and not newer:
            raise KnownFailure(f"The schema is at {at}, and should be at {migrations.head()}: run `khala migrate`.")
        if not check:
            await migrations.upgrade(db.direct_url)
        beyond = ", which is newer than this program" if newer else ""
        click.echo(f"The schema is at {await migrations.current(db)}{beyond}.")


async def _verify(settings: Settings) -> None:
    checked, found = VerifyProgress(), 0
    async with composition.database(settings) as db:
        if await migrations.current(db) is None:
            raise KnownFailure("There is no schema yet: run `khala migrate` or `khala serve`.")
        async for difference in find_differences(db, checked):
            found += 1
            click.echo(f"{difference.place}: {difference.problem}")
    click.echo(f"{checked.answers} answers in {checked.threads} threads checked, {found} differences.")
    if found:
        raise SystemExit(1)


async def _purge(settings: Settings, *, dry_run: bool) -> None:
    policy = composition.retention_policy(settings)
    async with composition.database(settings) as db, composition.blobs(settings, db) as blob_service:
        if await migrations.current(db) != migrations.head():
            raise KnownFailure("The schema is not up to date: run `khala migrate` or `khala serve`.")
        collector = BlobGarbageCollector(db, blob_service.store)
        found = await (retention.count_due(db, policy) if dry_run else retention.purge(db, policy))
        found["objects"] = await (collector.due() if dry_run else collector.collect())
    for kind, count in found.items():
        click.echo(f"{count:>9,} {kind.replace('_', ' ')}")
    click.echo("Nothing was deleted." if dry_run else "Deleted.")


async def _doctor(settings: Settings, *, as_json: bool, call: bool, processes: int) -> None:
    async with composition.database(settings) as db, composition.blobs(settings, db) as blob_service:
        from khala import doctor as examination  # what it needs is much, and no other command needs it

        found = await examination.examine(settings, db, blob_service, processes=processes, call=call)
    well = all(finding.well for finding in found)
    if as_json:
        click.echo(msgspec.json.encode({"ok": well, "findings": found}))
    else:
        for finding in found:
            click.echo(f"{MARKS[finding.state]} {finding.what}: {' '.join(finding.says.split())}")
    if not well:
        raise SystemExit(1)


def _database(settings: Settings) -> str:
    if settings.database.url is None:
        return f"embedded Postgres in {settings.process.home}"
    return "DATABASE_URL"


def _hint(settings: Settings) -> str:
    only_demo = all(ref.provider == "demo" for ref in settings.model_chain)
    return " (set OPENAI_API_KEY, ANTHROPIC_API_KEY or GOOGLE_API_KEY for a real one)" if only_demo else ""


def _keep_for_good() -> None:
    """Let Python's collector leave alone what is there by now: modules, mostly, which stay for as long as the process.

    Else it looks through all of it every time, which takes a tenth of a second in which nobody is told anything; and it
    does so only once a quarter as much again has gathered.
    """
    gc.freeze()
    # How much a quarter is, it learns here.
    gc.collect()


def _open_many() -> None:
    """Take as many open files as this process may: 1,024, which is usual to begin with, are few connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


for _command in COMMANDS:
    main.add_command(_command)
