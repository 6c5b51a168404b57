"""`khala verify`: prints the differences on standard output, and its progress on standard error."""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator

import click

from khala.components import open_database
from khala.console import KnownFailure
from khala.lifecycle import background
from khala.settings import Settings
from khala.store.operations.answer_checks import StoredDifference
from khala.store.operations.verify import VerifyProgress, find_differences
from khala.store.operations.verify_pages import VerifyPosition, VerifySelection
from khala.store.postgres import migrations
from khala.store.postgres.database import Database

TERMINAL_INTERVAL_SECONDS = 0.5
"""Seconds between two updates of the line on a terminal."""
LOG_INTERVAL_SECONDS = 60.0
"""Seconds between two lines where standard error is no terminal."""
CLEAR_LINE = "\r\x1b[K"
ESTIMATED_MESSAGES = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'messages'::regclass"


class ProgressLine:
    """Shows the progress: one line that changes on a terminal, else a line with the position each minute.

    `total`: the estimated number of messages, for a percentage; 0 shows none.
    """

    def __init__(self, progress: VerifyProgress, total: int, *, terminal: bool) -> None:
        self.differences = 0
        self._progress = progress
        self._total = total
        self._terminal = terminal
        self._began = time.monotonic()

    async def run(self) -> None:
        """Show the progress regularly, for ever."""
        while True:
            await asyncio.sleep(TERMINAL_INTERVAL_SECONDS if self._terminal else LOG_INTERVAL_SECONDS)
            self.show()

    def show(self) -> None:
        """Show the progress now."""
        line = self._line()
        if self._terminal:
            # A longer line would take several, of which `clear` removes one.
            line = CLEAR_LINE + line[: shutil.get_terminal_size().columns - 1]
        click.echo(line, err=True, nl=not self._terminal)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._terminal:
            click.echo(CLEAR_LINE, err=True, nl=False)

    def _line(self) -> str:
        progress = self._progress
        percent = f" ({min(100, 100 * progress.messages // self._total)} %)" if self._total else ""
        rate = progress.answers / max(time.monotonic() - self._began, 0.001)
        checked = f"{progress.answers:,} answers{percent}, {progress.threads:,} threads, {progress.plans:,} plans"
        return f"{checked}, {self.differences} differences, at {progress.position}, {rate:,.0f} answers/s"


async def verify_database(settings: Settings, selection: VerifySelection, *, after: VerifyPosition, jobs: int) -> None:
    """Print all differences, and exit with 1 if there are any. Raises `KnownFailure` if there is no schema."""
    progress = VerifyProgress(position=after)
    # Half of a pool's connections are those that verification uses.
    async with open_database(settings, pool_size=2 * jobs) as db:
        if await migrations.current(db) is None:
            raise KnownFailure("There is no schema yet: run `khala migrate` or `khala serve`.")
        whole = selection.is_everything and after == VerifyPosition()
        line = ProgressLine(progress, await _total(db) if whole else 0, terminal=sys.stderr.isatty())
        async with background({"progress": line.run}):
            await _print_differences(find_differences(db, progress, selection, jobs=jobs), line, progress)
    checked = f"{progress.answers} answers in {progress.threads} threads and {progress.plans} plans checked"
    click.echo(f"{checked}, {line.differences} differences.")
    if line.differences:
        raise SystemExit(1)


async def _print_differences(
    found: AsyncIterator[StoredDifference], line: ProgressLine, progress: VerifyProgress
) -> None:
    """Print the differences, and the position if the verification does not come to its end."""
    start = progress.position
    try:
        async for difference in found:
            line.differences += 1
            line.clear()
            click.echo(f"{difference.place}: {difference.problem}")
    except BaseException:
        line.clear()
        if progress.position != start:
            click.echo(f"Interrupted. Continue with the same options and --after {progress.position}", err=True)
        raise
    line.clear()


async def _total(db: Database) -> int:
    async with db.driver() as driver:
        return int(await driver.fetchval(ESTIMATED_MESSAGES))
