"""Runs a chaos test: `python -m tests.chaos --seed 7 --minutes 3`. The exit status is 1 if a promise was broken."""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.chaos import chaos_run, schedule
from tests.chaos.chaos_run import Result
from tests.chaos.schedule import FAULTS, Schedule

MAX_SHOWN_PROBLEMS = 12
"""Of one promise; the report file has all."""
INTERRUPTED_STATUS = 130


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="determines the faults and the actions of users (%(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=3.0, help="duration of the faults (%(default)s)")
    parser.add_argument("--users", type=int, default=6, help="number of users, with a thread each (%(default)s)")
    parser.add_argument("--every", type=float, default=1.5, help="mean seconds between two faults (%(default)s)")
    parser.add_argument("--only", default="", metavar="FAULT,…", help=f"only these faults: {', '.join(FAULTS)}")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the schedule of an earlier run, instead of a seed")
    parser.add_argument("--keep", action="store_true", help="keep logs and schedule even if no promise was broken")
    return parser.parse_args()


def planned(args: argparse.Namespace) -> Schedule:
    """The schedule of the seed, or of the file to replay."""
    if args.replay:
        return msgspec.json.decode(args.replay.read_bytes(), type=Schedule)
    only = [kind for kind in FAULTS if kind in args.only.split(",")]
    if unknown := set(filter(None, args.only.split(","))) - set(only):
        sys.exit(f"Unknown faults: {', '.join(sorted(unknown))}")
    return schedule.from_seed(args.seed, args.minutes * 60, users=args.users, only=only, every=args.every)


def report(result: Result) -> str:
    """The faults, and a verdict for each promise."""
    lines = [*result.faults, ""]
    lines.append(f"{result.sends} sends, {result.refused} refused as busy, {result.outputs} calls of the model")
    for verdict in result.verdicts:
        lines.append(f"{'BROKEN' if verdict.problems else 'kept  '} {verdict.promise} ({verdict.checked})")
        lines += [f"       {problem}" for problem in verdict.problems]
    return "\n".join(lines)


def shortened(text: str) -> str:
    """The report with only the first problems of each promise."""
    lines: list[str] = []
    shown = 0
    for line in text.splitlines():
        shown = shown + 1 if line.startswith("       ") else 0
        if shown <= MAX_SHOWN_PROBLEMS:
            lines.append(line[:1000])
    return "\n".join(lines)


async def _run(plan: Schedule, folder: Path) -> Result:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    return await chaos_run.run(plan, folder)


def main() -> int:
    """Run the chaos test and print its report; returns the exit status."""
    args = parse_arguments()
    plan = planned(args)
    folder = Path(tempfile.mkdtemp(prefix=f"khala-chaos-{plan.seed}-"))
    (folder / "schedule.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    print(f"seed {plan.seed}, {plan.seconds:g} s, {len(plan.faults)} faults, {len(plan.scripts)} users; {folder}")
    try:
        result = asyncio.run(_run(plan, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED_STATUS
    text = report(result)
    (folder / "report.txt").write_text(text)
    print(shortened(text))
    if result.kept and not args.keep:
        shutil.rmtree(folder)
    else:
        print(f"Logs, report and schedule (for --replay) are in {folder}")
    return 0 if result.kept else 1


if __name__ == "__main__":
    sys.exit(main())
