"""The bench: `python -m tests.bench`; its numbers go to standard output, and to a file if asked."""

import argparse
import asyncio
import contextlib
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import asyncpg
import msgspec

from app.store.db import driver_url
from tests.bench import machine
from tests.bench.processes import Address, Listen, worker
from tests.bench.report import Report, table
from tests.bench.stage import Stage
from tests.bench.workload import Options, Workload, run
from tests.support import postgres

WORKLOADS = ("1x1", "50x2", "200x5", "1x500")
STOPPED = 130
QUICK = 3.0
"""Seconds of a workload that need not be exact."""


async def bench(workloads: Sequence[Workload], options: Options, url: str, template: str) -> Report:
    """Measure these workloads, one after the other, on databases cloned from `template`."""
    connection = await asyncpg.connect(driver_url(url))
    try:
        facts = await machine.facts(connection)
    finally:
        await connection.close()
    rows, failures = [], {}
    async with worker("model") as model:
        stage = Stage(url=url, template=template, model=model, model_url=(await model.ask(Listen(), Address)).url)
        for workload in workloads:
            print(f"{workload.name} …", file=sys.stderr, flush=True)
            try:
                rows.append(await run(workload, options, stage))
            except Exception as error:
                traceback.print_exc()
                failures[workload.name] = repr(error)
    return Report(
        machine=facts,
        tokens_per_second=options.rate,
        seconds=options.seconds,
        ramp_seconds=options.ramp,
        rows=rows,
        failures=failures,
    )


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", default=WORKLOADS, help=f"RUNSxOBSERVERS each; {' '.join(WORKLOADS)} if none is given"
    )
    parser.add_argument("--rate", type=float, default=30.0, help="tokens a second of each run (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long each run speaks (%(default)s)")
    parser.add_argument("--ramp", type=float, default=1.0, help="seconds in which the runs are begun (%(default)s)")
    parser.add_argument("--drivers", type=int, default=1, help="processes that hold the observers (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"--seconds {QUICK:g}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report there, too")
    return parser.parse_args()


def _workload(text: str) -> Workload:
    runs, _, observers = text.replace("×", "x").partition("x")
    return Workload(int(runs), int(observers))


@contextlib.asynccontextmanager
async def _template(url: str) -> AsyncIterator[str]:
    name = await postgres.make_template(url)
    try:
        yield name
    finally:
        await postgres.execute(url, f'DROP DATABASE "{name}" WITH (FORCE)')


async def _measured(asked: argparse.Namespace, url: str) -> Report:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this
    # SIGINT does this anyway: everything that was started is ended on the way out.
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    options = Options(
        rate=asked.rate, seconds=QUICK if asked.quick else asked.seconds, ramp=asked.ramp, drivers=asked.drivers
    )
    async with _template(url) as template:
        return await bench([_workload(text) for text in asked.workloads], options, url, template)


def main() -> int:
    """Measure and tell; the exit code is 1 if an observer saw anything but what the model sent, 130 if stopped."""
    asked = arguments()
    with postgres.server() as url:
        try:
            report = asyncio.run(_measured(asked, url))
        except (KeyboardInterrupt, asyncio.CancelledError):
            return STOPPED
    print(table(report))
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    for problem in report.problems[:20]:
        print(f"WRONG {problem}", file=sys.stderr)
    if report.problems:
        print(f"{len(report.problems)} problems: not every observer saw what the model sent.", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
