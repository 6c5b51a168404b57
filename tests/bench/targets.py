"""What Khala is to reach, beside what was measured."""

from collections.abc import Callable, Iterator, Sequence

from khala.domain.flush_policy import FlushPolicy
from tests.bench.bench import bench
from tests.bench.figures import Figures, Latency, Row, System, over
from tests.bench.idle import MANY, Idle, idle
from tests.bench.late import Late, late
from tests.bench.report import Report
from tests.bench.stage import Stage
from tests.bench.tables import aligned, shown
from tests.bench.workload import Options, Workload

KIB = 1024
NAIVE_SHARE, FALLING = 0.4, 0.8
"""Of the naive way's CPU at 100 runs; and at 500 runs, of what a delta cost at 100."""
FLUSH_P50, FLUSH_P99, FLUSH_EACH = 3.0, 10.0, 0.025
"""Milliseconds from the row, and from its commit, to observers; each observer may add something to the 99th percentile.
"""
TOKEN_SLACK = 15.0
"""Milliseconds over half the flush policy's time, at the median of all tokens."""
LATE_P50 = 5.0
WAL, SIZE = 450.0, 300.0
"""Bytes of a part."""
OBSERVER, RUN = 40.0, 80.0
"""KiB."""
COMMITS = 40.0
QUERIES = 1 / 60
"""Transactions a second that an idle thread may seem to add: what is told late makes as much."""

NAIVE = (Workload(100, 1), Workload(500, 1))
RUNS = (Workload(10, 1), *NAIVE)
OBSERVERS = (Workload(1, 100), Workload(1, 1000))


class Target(Figures, frozen=True, kw_only=True):
    """One of them: what was measured must not be over the limit."""

    name: str
    unit: str
    limit: float
    measured: float | None

    @property
    def met(self) -> bool:
        """What could not be measured is not met."""
        return self.measured is not None and self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return "not measured" if self.measured is None else "met" if self.met else "MISSED"


class Targets(Figures, frozen=True, kw_only=True):
    """All of them, and the measurements behind them."""

    targets: list[Target]
    report: Report
    late: Late
    idle: Idle

    @property
    def met(self) -> bool:
        """Whether every target was measured and met."""
        return all(one.met for one in self.targets)

    @property
    def problems(self) -> list[str]:
        """Of all measurements."""
        return self.report.problems + self.late.problems


async def targets(options: Options, place: Stage) -> Targets:
    """Measure what they need; some five minutes."""
    alone = Options(rate=options.rate, seconds=options.seconds, drivers=options.drivers, baselines=())
    report = await bench([RUNS[0], *OBSERVERS], alone, place)
    beside = Options(rate=options.rate, seconds=options.seconds, drivers=options.drivers, baselines=("flush",))
    compared = await bench(NAIVE, beside, place)
    report.options, report.rows = beside, [*report.rows, *compared.rows]
    report.failures |= compared.failures
    joined, watched = await late(Options(rate=30.0, seconds=12.0), place), await idle(place)
    rows = Rows(report.rows)
    found = [*_costs(rows), *_latencies(rows), *_memory(rows), *_others(joined, watched)]
    return Targets(targets=found, report=report, late=joined, idle=watched)


def _target(name: str, unit: str, limit: float, measured: float | None) -> Target:
    return Target(name=name, unit=unit, limit=limit, measured=measured)


class Rows:
    """The rows by workload; what failed has none."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row.workload: row for row in rows}

    def of(self, workload: Workload, cell: Callable[[Row], float | None]) -> float | None:
        """A figure of that workload."""
        row = self._rows.get(workload.name)
        return None if row is None else cell(row)

    def slope(self, workloads: tuple[Workload, Workload], name: str) -> float | None:
        """KiB by which each more run and observer makes a process larger at most."""
        low, high = (self.of(workload, lambda row: _peak(row, name)) for workload in workloads)
        more = workloads[1].runs * workloads[1].observers - workloads[0].runs * workloads[0].observers
        return None if low is None or high is None else (high - low) / more


def _peak(row: Row, name: str) -> float | None:
    return row.khala.memory[name].peak / KIB if name in row.khala.memory else None


def _costs(rows: Rows) -> Iterator[Target]:
    for workload in NAIVE:
        share = rows.of(workload, lambda row: row.ratios.flush_cpu_by_deltas)
        yield _target(f"server CPU per delta : naive, a commit a flush, {workload.name}", "×", NAIVE_SHARE, share)
    some, most = (rows.of(workload, lambda row: row.khala.cpu.server) for workload in NAIVE)
    yield _target(f"server CPU per delta, {NAIVE[1].name} : {NAIVE[0].name}", "×", FALLING, over(most, some))
    for workload in RUNS:
        commits = rows.of(workload, lambda row: row.khala.storage.appends_per_second)
        yield _target(f"commits of parts, {workload.name}", "/s", COMMITS, commits)
    wal = rows.of(NAIVE[0], lambda row: row.khala.storage.wal_bytes_per_1000_parts)
    size = rows.of(NAIVE[0], lambda row: row.khala.storage.size_bytes_per_1000_parts)
    yield _target(f"WAL of 1,000 parts, {NAIVE[0].name}", "bytes", WAL * 1000, wal)
    yield _target(f"heap and indexes of 1,000 parts, {NAIVE[0].name}", "bytes", SIZE * 1000, size)


def _latencies(rows: Rows) -> Iterator[Target]:
    for workload in (*RUNS, *OBSERVERS):
        yield from _since("written", rows, workload, lambda one: one.written)
        yield from _since("committed", rows, workload, lambda one: one.committed)
    for workload in RUNS:
        half = FlushPolicy().milliseconds / 2
        p50 = rows.of(workload, lambda row: row.khala.token.p50_ms)
        yield _target(f"token → observer p50, {workload.name}", "ms", half + TOKEN_SLACK, p50)


def _since(what: str, rows: Rows, workload: Workload, of: Callable[[System], Latency]) -> Iterator[Target]:
    limit = FLUSH_P99 + FLUSH_EACH * workload.observers
    p50, p99 = rows.of(workload, lambda row: of(row.khala).p50_ms), rows.of(workload, lambda row: of(row.khala).p99_ms)
    yield _target(f"row {what} → observer p50, {workload.name}", "ms", FLUSH_P50, p50)
    yield _target(f"row {what} → observer p99, {workload.name}", "ms", limit, p99)


def _memory(rows: Rows) -> Iterator[Target]:
    yield _target("memory of an observer (web)", "KiB", OBSERVER, rows.slope(OBSERVERS, "web"))
    yield _target("memory of a live run (executor)", "KiB", RUN, rows.slope(NAIVE, "executor"))


def _others(joined: Late, watched: Idle) -> Iterator[Target]:
    yield _target("late join → caught up p50", "ms", LATE_P50, joined.caught_up.p50_ms)
    yield _target(f"transactions that an idle watched thread adds, of {MANY}", "/s", QUERIES, watched.each_adds)


def told(found: Targets) -> str:
    """A table of them."""
    head = ["target", "", "at most", "measured", ""]
    rows = [[one.name, one.unit, shown(one.limit), shown(one.measured), one.verdict] for one in found.targets]
    watched = found.idle
    rates = " ".join(shown(rate) for rate in (watched.none, watched.one, watched.many))
    return "\n".join([*aligned([head, *rows]), "", f"transactions a second, idle, with 0, 1, {MANY} watched: {rates}"])
