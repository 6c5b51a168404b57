"""The bench: `python -m tests.bench`; its numbers go to standard output, and to a file if asked.

Without more it measures the workloads that are named; `--sweep` how costs grow, `--targets` what Khala is to reach,
`--soak` whether memory stays flat.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tests.bench import report, soak, targets
from tests.bench.bench import bench, opened, template
from tests.bench.growth import SWEEPS, grown
from tests.bench.report import Report
from tests.bench.soak import RUN_SECONDS
from tests.bench.stage import Stage
from tests.bench.workload import BASELINES, Baseline, Options, Workload
from tests.support import postgres

WORKLOADS = ("1x1", "50x2", "200x5", "1x500")
STOPPED = 130
QUICK = 3.0
"""Seconds of a workload that need not be exact."""
RATE, GENTLE = 30.0, 10.0
"""Tokens a second: of single workloads, and where there are so many runs that a small machine would be all model."""

SHORTEST_SOAK = 1.5
SECONDS, TARGET_SECONDS = 10.0, 20.0

Found = TypeVar("Found")


class Problematic(Protocol):
    """Whatever was measured: `problems` tells of every observer that saw anything but what the model sent."""

    @property
    def problems(self) -> list[str]: ...


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", default=WORKLOADS, help=f"RUNSxOBSERVERS each; {' '.join(WORKLOADS)} if none is given"
    )
    parser.add_argument("--sweep", choices=SWEEPS, action="append", default=[], help="measure the growth with these")
    parser.add_argument("--targets", action="store_true", help="measure what Khala is to reach")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="begin runs again and again")
    parser.add_argument("--runs", type=int, default=50, help="at the same time, with --soak (%(default)s)")
    parser.add_argument(
        "--rate", type=float, help=f"tokens a second of each run ({RATE:g}; {GENTLE:g} but for workloads)"
    )
    parser.add_argument("--seconds", type=float, help="how long each run speaks (10; --targets 20, --soak 30)")
    parser.add_argument("--drivers", type=int, default=1, help="processes that hold the observers (%(default)s)")
    parser.add_argument("--together", action="store_true", help="one process that serves and works on runs")
    parser.add_argument("--baselines", help=f"of {','.join(BASELINES)}, or none; all, but with --sweep only flush")
    parser.add_argument("--quick", action="store_true", help=f"--seconds {QUICK:g}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the report there, too")
    asked = parser.parse_args()
    if asked.soak is not None and asked.soak < SHORTEST_SOAK:
        parser.error(f"a soak takes {SHORTEST_SOAK:g} minutes at least; the first one does not count")
    return asked


def _options(asked: argparse.Namespace) -> Options:
    gentle = bool(asked.sweep or asked.targets or asked.soak)
    seconds = QUICK if asked.quick else RUN_SECONDS if asked.soak else TARGET_SECONDS if asked.targets else SECONDS
    chosen: tuple[Baseline, ...] = ("flush",) if asked.sweep else BASELINES
    if asked.baselines is not None:
        chosen = msgspec.convert([name for name in asked.baselines.split(",") if name != "none"], tuple[Baseline, ...])
    return Options(
        rate=asked.rate or (GENTLE if gentle else RATE),
        seconds=asked.seconds or seconds,
        drivers=asked.drivers,
        together=asked.together,
        baselines=chosen,
    )


def measured(together: bool, measure: Callable[[Stage], Awaitable[Found]]) -> Found:
    """Measure on a Postgres of its own. SIGINT and SIGTERM end all that was started, and then this process."""

    async def on_stage(url: str) -> Found:
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this
        # SIGINT does this anyway: everything that was started is ended on the way out.
        loop.add_signal_handler(signal.SIGTERM, this.cancel)
        async with template(url) as name, opened(url, name, together=together) as place:
            return await measure(place)

    with postgres.server() as url:
        try:
            return asyncio.run(on_stage(url))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(STOPPED)


async def _report(asked: argparse.Namespace, options: Options, place: Stage) -> Report:
    if not asked.sweep:
        return await bench([Workload.of(text) for text in asked.workloads], options, place)
    whole: Report | None = None
    for along in asked.sweep:
        steps = [Workload(step, 1) if along == "runs" else Workload(1, step) for step in SWEEPS[along]]
        found = await bench(steps, options, place)
        found.growth = grown(along, found.rows, options.seconds)
        if whole is None:
            whole = found
        else:
            whole.rows += found.rows
            whole.growth += found.growth
            whole.failures |= found.failures
    assert whole
    return whole


def _carried_out(asked: argparse.Namespace, options: Options) -> tuple[Problematic, str, bool]:
    """What was asked for: the figures, their table, and whether they are good enough."""
    if asked.soak:
        soaked = measured(options.together, lambda place: soak.soak(asked.soak, asked.runs, options, place))
        return soaked, soak.told(soaked), soaked.flat
    if asked.targets:
        found = measured(options.together, lambda place: targets.targets(options, place))
        return found, f"{report.table(found.report)}\n\n{targets.told(found)}", found.met
    told = measured(options.together, lambda place: _report(asked, options, place))
    return told, report.table(told), True


def main() -> int:
    """Measure and print; the exit code is 0 if all is as it must be.

    It is 1 if an observer saw what the model did not send, a soak grew, or a target was missed or not measured, and 130
    if a signal stopped the bench.
    """
    asked = arguments()
    found, table, good = _carried_out(asked, _options(asked))
    print(table)
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    for problem in found.problems[:20]:
        print(f"WRONG {problem}", file=sys.stderr)
    if found.problems:
        print(f"{len(found.problems)} problems: not every observer saw what the model sent.", file=sys.stderr)
    return 0 if good and not found.problems else 1


if __name__ == "__main__":
    sys.exit(main())
