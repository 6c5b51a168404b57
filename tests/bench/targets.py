"""Performance targets of Khala, compared with measurements."""

import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from khala.domain.flush_policy import FlushPolicy
from tests.bench.bench import bench
from tests.bench.figures import Figures, Latency, Row, System, over
from tests.bench.fixtures import BenchEnvironment
from tests.bench.idle import MANY, Idle, idle
from tests.bench.jetstream import MISSING, Jetstream, jetstream, server_program
from tests.bench.late_join import Late, late
from tests.bench.report import Report
from tests.bench.short_runs import ShortRuns, short_runs
from tests.bench.tables import align_columns, format_number
from tests.bench.workload import Options, Workload

KIB = 1024
MAX_NAIVE_CPU_SHARE, MAX_CPU_AT_500 = 0.4, 0.8
"""CPU per delta: of the naive baseline's at 100 runs and more; and at 500 runs, of Khala's own at 100."""
MAX_ROW_P50_MS, MAX_ROW_P99_MS, MAX_ROW_P99_MS_PER_OBSERVER = 3.0, 10.0, 0.025
"""From the write of a row, and from its commit, to the observers. Each observer may add to the 99th percentile."""
MAX_TOKEN_EXTRA_MS = 15.0
"""Beyond half the time of the flush policy, at the median of all tokens."""
MAX_LATE_JOIN_P50_MS = 5.0
MAX_WAL_BYTES, MAX_STORED_BYTES = 450.0, 300.0
"""Of a part."""
MAX_OBSERVER_KIB, MAX_RUN_KIB = 40.0, 80.0
MAX_COMMITS_PER_SECOND = 40.0
MAX_SEND_STATEMENTS = 8.0
MAX_SEND_MS = 1.0
"""Of the time from one send to the next: 1,000 sends a second."""
MAX_SHORT_RUN_CPU_MS = 5.0
MAX_IDLE_TRANSACTIONS_PER_SECOND = 1 / 60
"""Of one idle thread. Postgres reports some transactions late, which alone can amount to this."""

WITH_NAIVE = (Workload(100, 1), Workload(500, 1))
RUNS = (Workload(10, 1), *WITH_NAIVE)
FAST_RATE = 60.0
"""Tokens a second, as current models send them."""
JETSTREAM_LIMITS = {Workload(100, 1): 0.5, Workload(10, 50): 0.6, Workload(1, 200): 0.8}
"""CPU per delta as a multiple of NATS JetStream's, with the process that makes and publishes its tokens, since the last
run was sent. A send has no counterpart there."""
LIVE = Workload(200, 1)
MAX_CORES_OF_1000_RUNS, MAX_LIVE_P99_MS = 1.0, 1000.0
"""One executor uses one core. 1,000 runs would leave none to the model server of a small machine, so the CPU of
`LIVE` is measured."""
OBSERVERS = (Workload(1, 100), Workload(1, 1000))


class Target(Figures, frozen=True, kw_only=True):
    """One target: the measured figure must not exceed the limit."""

    name: str
    unit: str
    limit: float
    measured: float | None

    @property
    def met(self) -> bool:
        """Whether the target is met; it is not if it could not be measured."""
        return self.measured is not None and self.measured <= self.limit

    @property
    def verdict(self) -> str:
        """The result in words."""
        return "not measured" if self.measured is None else "met" if self.met else "MISSED"


class Targets(Figures, frozen=True, kw_only=True):
    """All targets, and the measurements behind them."""

    targets: list[Target]
    report: Report
    late: Late
    idle: Idle
    short_runs: ShortRuns
    fast: Report | None = None
    """Runs of `FAST_RATE`."""
    jetstream: list[Jetstream] = msgspec.field(default_factory=list)
    """NATS JetStream with the workloads of `JETSTREAM_LIMITS`; empty if its server is not installed."""

    @property
    def met(self) -> bool:
        """Whether every target was measured and met."""
        return all(one.met for one in self.targets)

    @property
    def problems(self) -> list[str]:
        """The problems of all measurements."""
        compared = [f"NATS, {one.workload}: {problem}" for one in self.jetstream for problem in one.problems]
        fast = self.fast.problems if self.fast is not None else []
        return self.report.problems + self.late.problems + fast + compared


async def targets(options: Options, environment: BenchEnvironment) -> Targets:
    """Measure everything that the targets need, which takes about eight minutes."""
    without_baselines = Options(rate=options.rate, seconds=options.seconds, drivers=options.drivers, baselines=())
    report = await bench([RUNS[0], *OBSERVERS], without_baselines, environment)
    with_flush = Options(rate=options.rate, seconds=options.seconds, drivers=options.drivers, baselines=("flush",))
    compared = await bench(WITH_NAIVE, with_flush, environment)
    report.options, report.rows = with_flush, [*report.rows, *compared.rows]
    report.failures |= compared.failures
    late_joins, idle_threads = await late(Options(rate=30.0, seconds=12.0), environment), await idle(environment)
    fixed = await short_runs(environment)
    rows = Rows(report.rows)
    fast, others = await fast_runs(options, environment)
    found = [*_costs(rows), *_latencies(rows), *_memory(rows), *_others(late_joins, idle_threads), *_fixed(fixed)]
    found += fast_targets(Rows(fast.rows), others)
    return Targets(
        targets=found,
        report=report,
        late=late_joins,
        idle=idle_threads,
        short_runs=fixed,
        fast=fast,
        jetstream=others,
    )


async def fast_runs(options: Options, environment: BenchEnvironment) -> tuple[Report, list[Jetstream]]:
    """Measure runs of `FAST_RATE`: Khala and NATS JetStream in turns, and as many live runs as the machine bears."""
    fast = Options(rate=FAST_RATE, seconds=options.seconds, drivers=options.drivers, baselines=())
    program, others = server_program(), []
    if program is None:
        print(MISSING, file=sys.stderr, flush=True)
    report = await bench([LIVE], fast, environment)
    for workload in JETSTREAM_LIMITS:
        compared = await bench([workload], fast, environment)
        report.rows += compared.rows
        report.failures |= compared.failures
        if program is not None:
            others.append(await jetstream(workload, fast, program))
    return report, others


def fast_targets(rows: "Rows", others: Sequence[Jetstream]) -> Iterator[Target]:
    """The targets of runs of `FAST_RATE`."""
    for (workload, limit), other in zip(JETSTREAM_LIMITS.items(), others, strict=bool(others)):  # none without NATS
        ratio = over(rows.of(workload, lambda row: row.khala.live_cpu), other.live_cpu)
        yield _target(f"CPU per delta : NATS JetStream and publisher, {workload.name}", "×", limit, ratio)
    cores = rows.of(LIVE, lambda row: row.khala.live_executor)
    each = None if cores is None else cores / LIVE.runs * 1000
    yield _target(f"executor cores for 1,000 live runs of {FAST_RATE:g} tokens/s", "", MAX_CORES_OF_1000_RUNS, each)
    p99 = rows.of(LIVE, lambda row: row.khala.token.p99_ms)
    yield _target(f"token → observer p99, {LIVE.name} of {FAST_RATE:g} tokens/s", "ms", MAX_LIVE_P99_MS, p99)


def _target(name: str, unit: str, limit: float, measured: float | None) -> Target:
    return Target(name=name, unit=unit, limit=limit, measured=measured)


class Rows:
    """The rows by workload; a failed workload has none."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {row.workload: row for row in rows}

    def of(self, workload: Workload, cell: Callable[[Row], float | None]) -> float | None:
        """A figure of that workload, or None."""
        row = self._rows.get(workload.name)
        return None if row is None else cell(row)

    def slope(self, workloads: tuple[Workload, Workload], name: str) -> float | None:
        """Growth of a process's peak memory in KiB for each further run or observer."""
        low, high = (self.of(workload, lambda row: _peak(row, name)) for workload in workloads)
        more = workloads[1].runs * workloads[1].observers - workloads[0].runs * workloads[0].observers
        return None if low is None or high is None else (high - low) / more


def _peak(row: Row, name: str) -> float | None:
    return row.khala.memory[name].peak / KIB if name in row.khala.memory else None


def _costs(rows: Rows) -> Iterator[Target]:
    for workload in WITH_NAIVE:
        share = rows.of(workload, lambda row: row.ratios.flush_cpu_by_deltas)
        yield _target(
            f"server CPU per delta : naive, a commit per flush, {workload.name}", "×", MAX_NAIVE_CPU_SHARE, share
        )
    at_100, at_500 = (rows.of(workload, lambda row: row.khala.cpu.server) for workload in WITH_NAIVE)
    yield _target(
        f"server CPU per delta, {WITH_NAIVE[1].name} : {WITH_NAIVE[0].name}", "×", MAX_CPU_AT_500, over(at_500, at_100)
    )
    for workload in RUNS:
        commits = rows.of(workload, lambda row: row.khala.storage.appends_per_second)
        yield _target(f"commits of parts, {workload.name}", "/s", MAX_COMMITS_PER_SECOND, commits)
    wal = rows.of(WITH_NAIVE[0], lambda row: row.khala.storage.wal_bytes_per_1000_parts)
    size = rows.of(WITH_NAIVE[0], lambda row: row.khala.storage.size_bytes_per_1000_parts)
    yield _target(f"WAL of 1,000 parts, {WITH_NAIVE[0].name}", "bytes", MAX_WAL_BYTES * 1000, wal)
    yield _target(f"heap and indexes of 1,000 parts, {WITH_NAIVE[0].name}", "bytes", MAX_STORED_BYTES * 1000, size)


def _latencies(rows: Rows) -> Iterator[Target]:
    for workload in (*RUNS, *OBSERVERS):
        yield from _since("written", rows, workload, lambda system: system.written)
        yield from _since("committed", rows, workload, lambda system: system.committed)
    for workload in RUNS:
        half = FlushPolicy().milliseconds / 2
        p50 = rows.of(workload, lambda row: row.khala.token.p50_ms)
        yield _target(f"token → observer p50, {workload.name}", "ms", half + MAX_TOKEN_EXTRA_MS, p50)


def _since(event: str, rows: Rows, workload: Workload, latency: Callable[[System], Latency]) -> Iterator[Target]:
    limit = MAX_ROW_P99_MS + MAX_ROW_P99_MS_PER_OBSERVER * workload.observers
    p50, p99 = (
        rows.of(workload, lambda row: latency(row.khala).p50_ms),
        rows.of(workload, lambda row: latency(row.khala).p99_ms),
    )
    yield _target(f"row {event} → observer p50, {workload.name}", "ms", MAX_ROW_P50_MS, p50)
    yield _target(f"row {event} → observer p99, {workload.name}", "ms", limit, p99)


def _memory(rows: Rows) -> Iterator[Target]:
    yield _target("memory of an observer (web)", "KiB", MAX_OBSERVER_KIB, rows.slope(OBSERVERS, "web"))
    yield _target("memory of a live run (executor)", "KiB", MAX_RUN_KIB, rows.slope(WITH_NAIVE, "executor"))


def _others(late_joins: Late, idle_threads: Idle) -> Iterator[Target]:
    yield _target("late join → caught up p50", "ms", MAX_LATE_JOIN_P50_MS, late_joins.caught_up.p50_ms)
    yield _target(
        f"transactions that an idle observed thread adds, of {MANY}",
        "/s",
        MAX_IDLE_TRANSACTIONS_PER_SECOND,
        idle_threads.each_adds,
    )


def _fixed(measured: ShortRuns) -> Iterator[Target]:
    yield _target("statements of a send", "", MAX_SEND_STATEMENTS, measured.statements)
    yield _target("time per send, 16 at once, one budget of all", "ms", MAX_SEND_MS, 1000 / measured.sends_per_second)
    yield _target("CPU of a short run: send, claim, text, end", "ms", MAX_SHORT_RUN_CPU_MS, measured.run_cpu_ms)


def table(found: Targets) -> str:
    """The targets as a table."""
    head = ["target", "", "at most", "measured", ""]
    rows = [
        [one.name, one.unit, format_number(one.limit), format_number(one.measured), one.verdict]
        for one in found.targets
    ]
    idle_threads, fixed = found.idle, found.short_runs
    rates = " ".join(format_number(rate) for rate in (idle_threads.none, idle_threads.one, idle_threads.many))
    return "\n".join(
        [
            *align_columns([head, *rows]),
            "",
            f"transactions a second, idle, with 0, 1, {MANY} observed threads: {rates}",
            _beside_naive("sends a second", fixed.sends_per_second, fixed.naive_sends_per_second),
            _beside_naive("CPU of a short run, ms", fixed.run_cpu_ms, fixed.naive_run_cpu_ms),
        ]
    )


def _beside_naive(name: str, ours: float, naive: float) -> str:
    return f"{name}: {format_number(ours)}, naive: {format_number(naive)}"
