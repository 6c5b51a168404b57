"""Compares new figures with saved ones: `python -m tests.bench.compare SAVED.json [NEW.json]`.

Without NEW, it measures the same workloads now. It marks figures that are worse by more than 15 %. Times depend on the
machine and its load. Ratios to the baselines of the same run depend on them much less, so only they decide the exit
status: it is 1 if a ratio is worse.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from tests.bench.__main__ import run_measurement
from tests.bench.bench import bench
from tests.bench.figures import Row
from tests.bench.report import LINES, Line, Report
from tests.bench.tables import align_columns, format_number
from tests.bench.workload import Workload

WORSE_RATIO = 1.15


class FigureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one workload: the saved value and the new one."""

    workload: str
    line: Line
    saved: float
    new: float

    @property
    def ratio(self) -> float | None:
        """The new value as a multiple of the saved one; None if that was 0."""
        return self.new / self.saved if self.saved else None

    @property
    def worse(self) -> bool:
        """Whether the new value is more than 15 % worse."""
        match self.line.kind:
            case "fact":
                return False
            case "gain":
                return self.new * WORSE_RATIO < self.saved
            case "cost" | "ratio":
                return self.new > self.saved * WORSE_RATIO
            case _:
                assert_never(self.line.kind)


def compare(saved: Report, new: Report) -> list[FigureComparison]:
    """Compare every figure that both reports have."""
    rows = {row.workload: row for row in new.rows}
    return [one for row in saved.rows if row.workload in rows for one in _row(row, rows[row.workload])]


def _row(saved: Row, new: Row) -> Iterator[FigureComparison]:
    for line in LINES:
        saved_value, new_value = line.cell(saved), line.cell(new)
        if saved_value is not None and new_value is not None:
            yield FigureComparison(workload=saved.workload, line=line, saved=saved_value, new=new_value)


def table(figures: list[FigureComparison]) -> str:
    """The comparisons as a table."""
    head = ["figure", "", "saved", "new", "×", ""]
    rows = [
        [f"{one.workload} {one.line.section}: {one.line.name}", one.line.unit, format_number(one.saved),
         format_number(one.new),
         format_number(one.ratio), "WORSE" if one.worse else ""]
        for one in figures
    ]  # fmt: skip
    return "\n".join(align_columns([head, *rows]))


def missing(saved: Report, new: Report) -> list[str]:
    """Saved workloads that the new report does not have."""
    return [row.workload for row in saved.rows if row.workload not in {one.workload for one in new.rows}]


def _read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def main() -> int:
    """Compare and print; returns exit status 1 if a ratio to a baseline is worse, or a workload is missing or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__)
    parser.add_argument("saved", type=Path, metavar="SAVED.json")
    parser.add_argument("new", type=Path, nargs="?", metavar="NEW.json")
    args = parser.parse_args()
    try:
        saved, given = _read(args.saved), args.new and _read(args.new)
    except msgspec.DecodeError as error:
        parser.error(f"the file must be a report of workloads or sweeps by `python -m tests.bench --json`: {error}")
    workloads = [Workload(row.runs, row.observers) for row in saved.rows]
    new = given or run_measurement(
        saved.options.together, lambda environment: bench(workloads, saved.options, environment)
    )
    figures = compare(saved, new)
    print(table(figures))
    wrong = [*new.problems, *(f"{workload} is missing" for workload in missing(saved, new))]
    for problem in wrong:
        print(f"WRONG {problem}", file=sys.stderr)
    worse = [one for one in figures if one.worse and one.line.kind == "ratio"]
    return 1 if worse or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
