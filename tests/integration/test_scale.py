"""Statements read no more than their results need, however large the deployment is.

Two deployments are filled, the second four times as large, and each measurement of `make scale` runs on both. The
assertions are on buffers and rows read, which tell the plans of statements, and never on time.
"""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from khala.blobs.garbage_collector import BATCH_OBJECTS, MAX_KEPT_PER_RUN
from tests.scale.deployment import DeploymentSize
from tests.scale.figures import BUFFERS, ROWS
from tests.scale.measurements import MEASUREMENTS
from tests.scale.stage import Effort, filled

SMALL, LARGE = DeploymentSize.of(500), DeploymentSize.of(2000)
GROWTH = 4
TOLERANCE = 1.4
"""Pages are filled differently, and index levels are added, in a larger table."""
FLOORS = {BUFFERS: 300.0, ROWS: 300.0}
"""Buffers and rows that a call may use at any size: the planner scans a very small table instead of using its index."""
SCANNED_WHOLE = {("purge when nothing is due", ROWS), ("account feed, first frame", ROWS)}
"""Figures of statements that scan tables of a few pages: that reads fewer pages than a search for each row. The first
frame has 200 threads, and there are 2,000. `test_account_feed.py` compares lists that are long enough for an index.
"""
QUICK = Effort(sends=5, flushes=5, lock_seconds=0.2, counted_calls=1, plan_steps=50, counted_days=2)
COMPARED = (
    "threads",
    "before",
    "subscribe",
    "blobs",
    "feed",
    "search",
    "plans",
    "console",
    "claim",
    "status",
    "purge",
    "verify",
)

Figures = Mapping[tuple[str, str], float]
"""By the name and unit of a figure, its value: where a measurement has several sizes, that of the last."""


async def measure(url: str, template: str, size: DeploymentSize, names: Iterable[str]) -> Figures:
    async with filled(url, size, template=template, effort=QUICK, progress=lambda _: None) as stage:
        found = [figure for name in names for figure in await MEASUREMENTS[name](stage)]
    return {(figure.name, figure.unit): figure.value for figure in found}


@pytest.fixture(scope="module")
def figures(postgres_url: str, template: str) -> tuple[Figures, Figures]:
    """The figures of both deployments: all that there are of the small one, and the compared ones of the large one."""
    small = asyncio.run(measure(postgres_url, template, SMALL, MEASUREMENTS))
    return small, asyncio.run(measure(postgres_url, template, LARGE, COMPARED))


def test_a_filled_deployment_passes_verification_and_all_measurements(figures: tuple[Figures, Figures]) -> None:
    small, _ = figures
    assert small["verify", ROWS] > 0
    assert all(value > 0 for (_, unit), value in small.items() if unit != ROWS)


@pytest.mark.parametrize(
    "name",
    [
        "thread list page, one credential",
        "thread list page, half way",
        "thread list page, two credentials",
        "thread list page, two invented keys",
        "older messages",
        "subscribe without after",
        "account feed, first frame",
        "search of messages",
        "open a plan",
        "look for plans that are due",
        "purge when nothing is due",
    ],
)
def test_a_read_costs_the_same_in_a_deployment_four_times_as_large(figures: tuple[Figures, Figures], name: str) -> None:
    small, large = figures
    for unit, floor in FLOORS.items():
        if (name, unit) in SCANNED_WHOLE:
            continue
        assert large[name, unit] <= max(TOLERANCE * small[name, unit], floor), unit


@pytest.mark.parametrize(
    "name",
    [
        "claim",
        "queue status for metrics",
        "purge",
        "verify",
    ],
)
def test_work_on_four_times_as_many_rows_costs_four_times_as_much(figures: tuple[Figures, Figures], name: str) -> None:
    small, large = figures
    for unit in (BUFFERS, ROWS):
        assert large[name, unit] <= GROWTH * TOLERANCE * small[name, unit], unit


def test_a_collection_of_blobs_examines_a_bounded_number_of_objects(figures: tuple[Figures, Figures]) -> None:
    _, large = figures
    most = MAX_KEPT_PER_RUN + BATCH_OBJECTS
    assert large["blob collection when nothing is due", BUFFERS] <= 6 * most
