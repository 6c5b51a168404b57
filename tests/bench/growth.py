"""How costs grow with runs or observers: the exponent of a power law, and the cost of one more."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from tests.bench.figures import Row, server_seconds

Along: TypeAlias = Literal["runs", "observers"]
KIB = 1024
SWEEPS: dict[Along, Sequence[int]] = {"runs": (1, 10, 50, 100, 200, 500), "observers": (1, 10, 100, 500, 1000, 2000)}


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of one cost: cost ≈ c · Nᵉˣᵖᵒⁿᵉⁿᵗ, and the R² of that fit on logarithms. `slope` is that of a linear fit.

    With an exponent below 1, each further run or observer costs less than those before.
    """

    along: Along
    cost: str
    exponent: float | None
    r_squared: float | None
    slope: float
    unit: str


class Fit(msgspec.Struct, frozen=True):
    """A straight line by least squares. `r_squared` is None if all values are equal."""

    slope: float
    intercept: float
    r_squared: float | None


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """Fit a line through points, at least two of which differ in x."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    residual = sum((y - intercept - slope * x) ** 2 for x, y in points)
    return Fit(slope, intercept, 1 - residual / total if total else None)


def grown(along: Along, rows: Sequence[Row], seconds: float) -> list[Growth]:
    """Growth over the rows of a sweep: CPU milliseconds for each second of answers, and peak memory."""
    found = []
    for name in ("server", "web", "executor", "database"):
        cost, unit = f"CPU of {name}", f"ms/s for each of {along}"
        found += _growth(along, rows, cost, unit, _cpu(name, seconds), power=True)
    for name in ("web", "executor"):
        cost, unit = f"memory of {name}", f"KiB for each of {along}"
        found += _growth(along, rows, cost, unit, _memory(name), power=False)
    return found


def _cpu(name: str, seconds: float) -> Callable[[Row], float | None]:
    def cost(row: Row) -> float | None:
        spent = row.khala.cpu_seconds
        used = server_seconds(spent) if name == "server" else spent.get(name)
        return None if used is None else used * 1000 / seconds

    return cost


def _memory(name: str) -> Callable[[Row], float | None]:
    def cost(row: Row) -> float | None:
        memory = row.khala.memory.get(name)
        return None if memory is None else memory.peak / KIB

    return cost


def _growth(
    along: Along, rows: Sequence[Row], cost: str, unit: str, figure: Callable[[Row], float | None], *, power: bool
) -> list[Growth]:
    found = [(row.runs if along == "runs" else row.observers, figure(row)) for row in rows]
    points = [(float(count), value) for count, value in found if value is not None and value > 0]
    if len({count for count, _ in points}) < 2:
        return []
    law = fit([(math.log(count), math.log(value)) for count, value in points]) if power else None
    return [
        Growth(
            along=along,
            cost=cost,
            exponent=None if law is None else law.slope,
            r_squared=None if law is None else law.r_squared,
            slope=fit(points).slope,
            unit=unit,
        )
    ]
