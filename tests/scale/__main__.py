"""Fills a database with a large deployment and measures what grows with it: `python -m tests.scale`.

The database is a new one on the Postgres of the tests: TEST_DATABASE_URL, else a container if Docker runs, else the
embedded one with its data in memory, or in `--folder`. The table goes to standard output, and each figure to standard
error as soon as it is measured, so a run that is stopped has shown what it measured.
"""

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from khala.store.embedded import EmbeddedPostgres
from tests.bench import machine
from tests.bench.tables import format_number
from tests.scale.deployment import DEFAULT_THREADS, LARGE_THREADS, DeploymentSize
from tests.scale.figures import ScaleReport, read_report, save_report, table
from tests.scale.measurements import MEASUREMENTS, chosen_measurements
from tests.scale.stage import filled
from tests.support import postgres

MIN_THREADS = 500


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--threads", type=int, default=DEFAULT_THREADS, help="threads to fill in (%(default)s)")
    size.add_argument(
        "--large", action="store_true", help=f"{LARGE_THREADS:,} threads, 40 million parts, 20 GB: use --folder"
    )
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="measure these")
    parser.add_argument("--without", nargs="+", choices=MEASUREMENTS, default=[], help="don't measure these")
    parser.add_argument("--json", type=Path, metavar="PATH", help="save the report there, too")
    parser.add_argument("--compare", type=Path, metavar="SAVED.json", help="show an earlier report beside")
    parser.add_argument("--targets", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--no-parts", action="store_true", help="fill in no parts, which most bytes are: for `--only console`"
    )
    parser.add_argument("--folder", type=Path, help="where the embedded Postgres stores its data")
    asked = parser.parse_args()
    if asked.threads < MIN_THREADS:
        parser.error(f"--threads: at least {MIN_THREADS}")
    return asked


async def measure(
    server_url: str, size: DeploymentSize, names: Sequence[str], *, with_parts: bool = True
) -> ScaleReport:
    """Fill a database and measure."""
    began = time.monotonic()
    async with filled(server_url, size, with_parts=with_parts, progress=_progress) as stage:
        fill_seconds = time.monotonic() - began
        async with stage.connection() as driver:
            facts = await machine.facts(driver)
        figures = []
        for name in names:
            _progress(f"measuring {name}")
            found = await MEASUREMENTS[name](stage)
            for figure in found:
                _progress(f"  {figure.name}, {figure.size}: {format_number(figure.value)} {figure.unit}")
            figures += found
        return ScaleReport(machine=facts, deployment=size, fill_seconds=fill_seconds, figures=figures)


def main() -> int:
    """Fill, measure and print. Returns the exit status."""
    asked = arguments()
    try:
        saved = None if asked.compare is None else read_report(asked.compare)
    except (OSError, msgspec.DecodeError) as error:
        sys.exit(f"{asked.compare} is no saved report: {error}")
    size = DeploymentSize.of(LARGE_THREADS if asked.large else asked.threads)
    with _server(asked.folder) as url:
        names = chosen_measurements(asked.only, asked.without)
        report = asyncio.run(measure(url, size, names, with_parts=not asked.no_parts))
    print(table(report, saved))
    if asked.json:
        save_report(report, asked.json)
    for figure in report.missed:
        print(f"MISSED {figure.name}, {figure.size}: {figure.value:,.1f} {figure.unit}", file=sys.stderr)
    return 1 if asked.targets and report.missed else 0


@contextlib.contextmanager
def _server(folder: Path | None) -> Iterator[str]:
    if folder is None:
        with postgres.server() as url:
            yield url
        return
    home = Path(tempfile.mkdtemp(prefix="khala-scale-", dir=folder))
    try:
        embedded = EmbeddedPostgres.start(home)
        try:
            yield embedded.url
        finally:
            embedded.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _progress(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
