"""Benchmark of Khala: `python -m tests.bench`. Prints a report, and writes it as JSON if `--json` names a file.

By default it measures the named workloads. `--sweep` measures how costs grow, `--targets` compares Khala with its
performance targets, and `--soak` checks that memory stays flat.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tests.bench import adapters, memory, plans, report, soak, targets
from tests.bench.bench import bench, open_environment, template
from tests.bench.fixtures import BenchEnvironment
from tests.bench.growth import SWEEPS, grown
from tests.bench.report import Report
from tests.bench.soak import RUN_SECONDS
from tests.bench.workload import BASELINES, Baseline, Options, Workload
from tests.support import postgres

WORKLOADS = ("1x1", "50x2", "200x5", "1x500")
INTERRUPTED_STATUS = 130
QUICK_SECONDS = 3.0
"""Length of each answer with `--quick`."""
RATE, LOW_RATE = 30.0, 10.0
"""Tokens a second of each run: for named workloads; and for sweeps, targets and soaks, whose many runs would otherwise
leave a small machine to the model server."""

MIN_SOAK_MINUTES = 1.5
SECONDS, TARGET_SECONDS = 10.0, 20.0
"""Length of each answer: by default, and with `--targets`."""

Result = TypeVar("Result")


class HasProblems(Protocol):
    """The result of a measurement. `problems` has a line for each observer that received another text than was sent."""

    @property
    def problems(self) -> list[str]: ...


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", default=WORKLOADS, help=f"RUNSxOBSERVERS each; {' '.join(WORKLOADS)} if none is given"
    )
    parser.add_argument(
        "--sweep", choices=SWEEPS, action="append", default=[], help="measure how costs grow with these"
    )
    parser.add_argument("--targets", action="store_true", help="compare Khala with its targets")
    parser.add_argument("--memory", action="store_true", help="measure searches of memories (tests.bench.memory)")
    parser.add_argument("--plans", action="store_true", help="measure plans (tests.bench.plans)")
    parser.add_argument("--adapters", action="store_true", help="measure other protocols (tests.bench.adapters)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="start runs again and again")
    parser.add_argument("--runs", type=int, default=50, help="concurrent runs, with --soak (%(default)s)")
    parser.add_argument(
        "--rate",
        type=float,
        help=f"tokens a second of each run ({RATE:g}; {LOW_RATE:g} with --sweep, --targets, --soak)",
    )
    parser.add_argument("--seconds", type=float, help="length of each answer (10; --targets 20, --soak 30)")
    parser.add_argument("--drivers", type=int, default=1, help="processes that run the observers (%(default)s)")
    parser.add_argument("--together", action="store_true", help="serve and execute runs in one process")
    parser.add_argument(
        "--baselines", help=f"comma-separated list of {','.join(BASELINES)}, or none (all; with --sweep flush)"
    )
    parser.add_argument("--quick", action="store_true", help=f"the same as --seconds {QUICK_SECONDS:g}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the report to this file")
    args = parser.parse_args()
    if args.soak is not None and args.soak < MIN_SOAK_MINUTES:
        parser.error(f"a soak takes {MIN_SOAK_MINUTES:g} minutes at least: the first minute is not measured")
    return args


def _options(args: argparse.Namespace) -> Options:
    low_rate = bool(args.sweep or args.targets or args.soak)
    seconds = QUICK_SECONDS if args.quick else RUN_SECONDS if args.soak else TARGET_SECONDS if args.targets else SECONDS
    chosen: tuple[Baseline, ...] = ("flush",) if args.sweep else BASELINES
    if args.baselines is not None:
        chosen = msgspec.convert([name for name in args.baselines.split(",") if name != "none"], tuple[Baseline, ...])
    return Options(
        rate=args.rate or (LOW_RATE if low_rate else RATE),
        seconds=args.seconds or seconds,
        drivers=args.drivers,
        together=args.together,
        baselines=chosen,
    )


def run_measurement(together: bool, measure: Callable[[BenchEnvironment], Awaitable[Result]]) -> Result:
    """Run a measurement on a new Postgres. SIGINT and SIGTERM end all processes it started, and then this one."""

    async def in_environment(url: str) -> Result:
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        assert this
        # As SIGINT does: the cancellation ends all processes on the way out.
        loop.add_signal_handler(signal.SIGTERM, this.cancel)
        async with template(url) as name, open_environment(url, name, together=together) as environment:
            return await measure(environment)

    with postgres.server() as url:
        try:
            return asyncio.run(in_environment(url))
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(INTERRUPTED_STATUS)


async def _run_workloads(args: argparse.Namespace, options: Options, environment: BenchEnvironment) -> Report:
    if not args.sweep:
        return await bench([Workload.of(text) for text in args.workloads], options, environment)
    whole: Report | None = None
    for along in args.sweep:
        steps = [Workload(step, 1) if along == "runs" else Workload(1, step) for step in SWEEPS[along]]
        found = await bench(steps, options, environment)
        found.growth = grown(along, found.rows, options.seconds)
        if whole is None:
            whole = found
        else:
            whole.rows += found.rows
            whole.growth += found.growth
            whole.failures |= found.failures
    assert whole
    return whole


def _measure(args: argparse.Namespace, options: Options) -> tuple[HasProblems, str, bool]:
    """Run the chosen measurement; returns the figures, their table, and whether they pass."""
    if args.memory:
        costs = memory.measure_costs(memory.SIZES)
        text, met = memory.report(costs)
        return costs, text, met or not args.targets
    if args.plans:
        costs_of_plans = run_measurement(options.together, plans.measure)
        text, met = plans.table(costs_of_plans)
        return costs_of_plans, text, met or not args.targets
    if args.adapters:
        costs_of_adapters = run_measurement(options.together, adapters.measure)
        return costs_of_adapters, adapters.table(costs_of_adapters), costs_of_adapters.met or not args.targets
    if args.soak:
        soaked = run_measurement(
            options.together, lambda environment: soak.soak(args.soak, args.runs, options, environment)
        )
        return soaked, soak.table(soaked), soaked.flat
    if args.targets:
        found = run_measurement(options.together, lambda environment: targets.targets(options, environment))
        return found, f"{report.table(found.report)}\n\n{targets.table(found)}", found.met
    workloads = run_measurement(options.together, lambda environment: _run_workloads(args, options, environment))
    return workloads, report.table(workloads), True


def main() -> int:
    """Measure and print; returns the exit status.

    It is 1 if an observer received another text than the model sent, if memory grew in a soak, or if a target was
    missed or not measured. It is 130 if a signal stopped the benchmark, and 0 otherwise.
    """
    args = parse_arguments()
    found, table, good = _measure(args, _options(args))
    print(table)
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    for problem in found.problems[:20]:
        print(f"WRONG {problem}", file=sys.stderr)
    if found.problems:
        print(f"{len(found.problems)} problems: not every observer received what the model sent.", file=sys.stderr)
    return 0 if good and not found.problems else 1


if __name__ == "__main__":
    sys.exit(main())
