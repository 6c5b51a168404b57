"""Figures of a measured deployment: their targets, the printed table, and the comparison with an earlier run."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.bench.tables import align_columns, format_number
from tests.scale.deployment import DeploymentSize
from tests.scale.meter import Usage

MILLISECONDS, BUFFERS, ROWS = "ms", "buffers", "rows read"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured figure. `size` says of how much; a target is an upper bound."""

    name: str
    size: str
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the figure meets its target; None without one."""
        return None if self.target is None else self.value <= self.target

    @property
    def key(self) -> tuple[str, str, str]:
        """The same in another run of the same size."""
        return self.name, self.size, self.unit


class ScaleReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run, as saved in JSON."""

    machine: dict[str, str]
    deployment: DeploymentSize
    fill_seconds: float
    figures: Sequence[Figure]

    @property
    def missed(self) -> list[Figure]:
        """Figures that miss their target."""
        return [figure for figure in self.figures if figure.met is False]


def usage_figures(
    name: str, size: str, usage: Usage, *, milliseconds: float | None = None, buffers: float | None = None
) -> list[Figure]:
    """The time, the buffers and the rows read of a call, with their targets."""
    return [
        Figure(name=name, size=size, value=usage.milliseconds, unit=MILLISECONDS, target=milliseconds),
        Figure(name=name, size=size, value=usage.buffers, unit=BUFFERS, target=buffers),
        Figure(name=name, size=size, value=usage.rows, unit=ROWS),
    ]


def table(report: ScaleReport, saved: ScaleReport | None = None) -> str:
    """The report as text; with an earlier report, its figures and the ratio of new to earlier stand beside."""
    lines = [f"{name}: {fact}" for name, fact in report.machine.items()]
    lines += [f"deployment: {_deployment(report.deployment)}", f"filled in {report.fill_seconds:.0f} s", ""]
    earlier = {} if saved is None else {figure.key: figure.value for figure in saved.figures}
    head = ["what", "size", "figure", "unit", "target", "met"] + (["before", "×"] if saved else [])
    rows = [_row(figure) + (_comparison(figure, earlier.get(figure.key)) if saved else []) for figure in report.figures]
    return "\n".join([*lines, *align_columns([head, *rows])])


def read_report(path: Path) -> ScaleReport:
    """A saved report. Raises `msgspec.DecodeError` for another file."""
    return msgspec.json.decode(path.read_bytes(), type=ScaleReport)


def save_report(report: ScaleReport, path: Path) -> None:
    """Write the report as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))


def _deployment(size: DeploymentSize) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in msgspec.structs.asdict(size).items())


def _row(figure: Figure) -> list[str]:
    met = {None: "", True: "yes", False: "MISSED"}[figure.met]
    target = "" if figure.target is None else f"≤ {format_number(figure.target)}"
    return [figure.name, figure.size, format_number(figure.value), figure.unit, target, met]


def _comparison(figure: Figure, before: float | None) -> list[str]:
    return [format_number(before), format_number(figure.value / before if before else None)]
