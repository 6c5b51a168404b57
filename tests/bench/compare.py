"""This machine's figures beside saved ones: `python -m tests.bench.compare SAVED.json [NEW.json]`.

Without NEW the same workloads are measured now. What is worse by more than 15 % is marked. Times depend on the machine
and on what else it does; ratios to baselines of the same run do so much less, and the exit code is theirs alone: 1 if
one of them is worse.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from tests.bench.__main__ import measured
from tests.bench.bench import bench
from tests.bench.figures import Row
from tests.bench.report import LINES, Line, Report
from tests.bench.tables import aligned, shown
from tests.bench.workload import Workload

WORSE = 1.15


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one workload, as it was saved and as it is."""

    workload: str
    line: Line
    saved: float
    new: float

    @property
    def ratio(self) -> float | None:
        """New as a multiple of saved."""
        return self.new / self.saved if self.saved else None

    @property
    def worse(self) -> bool:
        """By more than 15 %, in the direction that is bad for such a figure."""
        match self.line.sort:
            case "fact":
                return False
            case "gain":
                return self.new * WORSE < self.saved
            case "cost" | "ratio":
                return self.new > self.saved * WORSE
            case _:
                assert_never(self.line.sort)


def compared(saved: Report, new: Report) -> list[Compared]:
    """Every figure that both have."""
    rows = {row.workload: row for row in new.rows}
    return [one for row in saved.rows if row.workload in rows for one in _row(row, rows[row.workload])]


def _row(saved: Row, new: Row) -> Iterator[Compared]:
    for line in LINES:
        was, is_now = line.cell(saved), line.cell(new)
        if was is not None and is_now is not None:
            yield Compared(workload=saved.workload, line=line, saved=was, new=is_now)


def told(figures: list[Compared]) -> str:
    """A table of them."""
    head = ["figure", "", "saved", "new", "×", ""]
    rows = [
        [f"{one.workload} {one.line.section}: {one.line.name}", one.line.unit, shown(one.saved), shown(one.new),
         shown(one.ratio), "WORSE" if one.worse else ""]
        for one in figures
    ]  # fmt: skip
    return "\n".join(aligned([head, *rows]))


def missing(saved: Report, new: Report) -> list[str]:
    """Saved workloads that the new report does not have."""
    return [row.workload for row in saved.rows if row.workload not in {one.workload for one in new.rows}]


def _read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def main() -> int:
    """Compare and tell; the exit code is 1 if a ratio to a baseline is worse, or a workload or its text is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__)
    parser.add_argument("saved", type=Path, metavar="SAVED.json")
    parser.add_argument("new", type=Path, nargs="?", metavar="NEW.json")
    asked = parser.parse_args()
    try:
        saved, given = _read(asked.saved), asked.new and _read(asked.new)
    except msgspec.DecodeError as error:
        parser.error(f"only what `python -m tests.bench --json` writes of workloads and sweeps is compared: {error}")
    workloads = [Workload(row.runs, row.observers) for row in saved.rows]
    new = given or measured(saved.options.together, lambda place: bench(workloads, saved.options, place))
    figures = compared(saved, new)
    print(told(figures))
    wrong = [*new.problems, *(f"{workload} is missing" for workload in missing(saved, new))]
    for problem in wrong:
        print(f"WRONG {problem}", file=sys.stderr)
    worse = [one for one in figures if one.worse and one.line.sort == "ratio"]
    return 1 if worse or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
