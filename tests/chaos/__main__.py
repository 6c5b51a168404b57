"""Chaos by hand: `python -m tests.chaos --seed 7 --minutes 3`; the exit code is 1 if a promise was broken."""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.chaos import running, schedule
from tests.chaos.running import Result
from tests.chaos.schedule import FAULTS, Schedule

SHOWN = 12
"""Problems of one promise that are shown; all are in the report."""
STOPPED = 130


def arguments() -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides the faults and what users do (%(default)s)")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults go on (%(default)s)")
    parser.add_argument("--users", type=int, default=6, help="users, with a thread each (%(default)s)")
    parser.add_argument("--every", type=float, default=1.5, help="mean seconds between two faults (%(default)s)")
    parser.add_argument("--only", default="", metavar="FAULT,…", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="the schedule of an earlier run, instead of a seed")
    parser.add_argument("--keep", action="store_true", help="keep logs and schedule also if all went well")
    return parser.parse_args()


def planned(asked: argparse.Namespace) -> Schedule:
    """The schedule that was asked for."""
    if asked.replay:
        return msgspec.json.decode(asked.replay.read_bytes(), type=Schedule)
    only = [kind for kind in FAULTS if kind in asked.only.split(",")]
    if unknown := set(filter(None, asked.only.split(","))) - set(only):
        sys.exit(f"There are no such faults: {', '.join(sorted(unknown))}")
    return schedule.made(asked.seed, asked.minutes * 60, users=asked.users, only=only, every=asked.every)


def report(result: Result) -> str:
    """The faults, and a verdict for each promise."""
    lines = [*result.faults, ""]
    lines.append(f"{result.asked} sends, {result.refused} refused as busy, {result.productions} calls of the model")
    for one in result.verdicts:
        lines.append(f"{'BROKEN' if one.problems else 'kept  '} {one.promise} ({one.looked})")
        lines += [f"       {problem}" for problem in one.problems]
    return "\n".join(lines)


def shortened(text: str) -> str:
    """The report with the first problems of each promise."""
    lines: list[str] = []
    shown = 0
    for line in text.splitlines():
        shown = shown + 1 if line.startswith("       ") else 0
        if shown <= SHOWN:
            lines.append(line[:1000])
    return "\n".join(lines)


async def _run(plan: Schedule, folder: Path) -> Result:
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    return await running.run(plan, folder)


def main() -> int:
    """Run it and tell."""
    asked = arguments()
    plan = planned(asked)
    folder = Path(tempfile.mkdtemp(prefix=f"khala-chaos-{plan.seed}-"))
    (folder / "schedule.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    print(f"seed {plan.seed}, {plan.seconds:g} s, {len(plan.faults)} faults, {len(plan.scripts)} users; {folder}")
    try:
        result = asyncio.run(_run(plan, folder))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return STOPPED
    text = report(result)
    (folder / "report.txt").write_text(text)
    print(shortened(text))
    if result.kept and not asked.keep:
        shutil.rmtree(folder)
    else:
        print(f"Logs, report and schedule (for --replay) are in {folder}")
    return 0 if result.kept else 1


if __name__ == "__main__":
    sys.exit(main())
