"""How costs grow with runs or observers: the exponent of a power law, and what each one more costs."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from tests.bench.figures import Row, server_seconds

Along: TypeAlias = Literal["runs", "observers"]
KIB = 1024
SWEEPS: dict[Along, Sequence[int]] = {"runs": (1, 10, 50, 100, 200, 500), "observers": (1, 10, 100, 500, 1000, 2000)}


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How one cost grew: cost ≈ c · Nᵉˣᵖᵒⁿᵉⁿᵗ, with the R² of that fit on logarithms; `slope` is a straight line's.

    An exponent under 1 says that each one more costs less than those before.
    """

    along: Along
    cost: str
    exponent: float | None
    r_squared: float | None
    slope: float
    unit: str


class Fit(msgspec.Struct, frozen=True):
    """A straight line by least squares. `r_squared` is None where all values are the same."""

    slope: float
    intercept: float
    r_squared: float | None


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """Through at least two points of different abscissas."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    total = sum((y - mean_y) ** 2 for _, y in points)
    left = sum((y - intercept - slope * x) ** 2 for x, y in points)
    return Fit(slope, intercept, 1 - left / total if total else None)


def grown(along: Along, rows: Sequence[Row], seconds: float) -> list[Growth]:
    """Of a sweep's rows: CPU milliseconds for each second of speaking, and memory at most."""
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
        seen = row.khala.memory.get(name)
        return None if seen is None else seen.peak / KIB

    return cost


def _growth(
    along: Along, rows: Sequence[Row], cost: str, unit: str, of: Callable[[Row], float | None], *, power: bool
) -> list[Growth]:
    found = [(row.runs if along == "runs" else row.observers, of(row)) for row in rows]
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
