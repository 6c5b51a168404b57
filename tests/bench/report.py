"""What the bench found: one row a workload, as a table for people and as JSON for programs."""

from collections.abc import Callable, Sequence

import msgspec

from tests.bench.measure import Memory, per_thousand, percentile


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers under their names; what could not be measured is null."""


class Latency(Figures, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50_ms: float | None
    p99_ms: float | None

    @classmethod
    def of(cls, microseconds: list[int]) -> "Latency":
        """Of latencies in any order."""
        ranked = sorted(microseconds)
        return cls(p50_ms=percentile(ranked, 50), p99_ms=percentile(ranked, 99))


class Delivery(Figures, frozen=True, kw_only=True):
    """What reached the observers: a delta is one frame to one observer."""

    deltas: int
    seconds: float
    deltas_per_second: float
    bytes_per_delta: float


class Cpu(Figures, frozen=True, kw_only=True):
    """CPU milliseconds for each 1,000 deltas."""

    server: float | None
    database: float | None = None
    model: float | None = None
    driver: float | None

    @classmethod
    def of(cls, seconds: dict[str, float], deltas: int) -> "Cpu":
        """Of CPU seconds by name; a name that is missing was not measured."""
        each = {name: per_thousand(spent * 1000, deltas) for name, spent in seconds.items()}
        return cls(
            server=each.get("server"),
            database=each.get("database"),
            model=each.get("model"),
            driver=each.get("driver"),
        )


class Khala(Figures, frozen=True, kw_only=True):
    """The whole path. Latencies are ages at which an observer has something.

    `token` is the age of each token since the model sent it, with the time for which the flush policy gathers; `newest`
    is that of each delta's last token; `written` is that of each delta's last row by Postgres' clock, so it begins in
    the transaction, before the commit.
    """

    delivery: Delivery
    token: Latency
    newest: Latency
    written: Latency
    cpu: Cpu
    cpu_ms_per_1000_tokens: float | None
    """The server's. Taking in a token costs the same however many observers there are."""
    rss: Memory
    commits_per_second: float
    writes_per_second: float
    parts: int
    wal_bytes_per_1000_parts: float | None


class Baseline(Figures, frozen=True, kw_only=True):
    """The same frames from a bare server; `late_ms` is how late its latest broadcast was."""

    delivery: Delivery
    latency: Latency
    cpu: Cpu
    rss: Memory
    late_ms: float


class Ratios(Figures, frozen=True, kw_only=True):
    """Khala's CPU as a multiple of the baseline's, and what its latencies have over the baseline's."""

    cpu_server: float | None
    cpu_server_and_database: float | None
    token_p50_ms: float | None
    token_p99_ms: float | None
    written_p50_ms: float | None
    written_p99_ms: float | None


class Row(Figures, frozen=True, kw_only=True):
    """One workload. `problems` tells of every observer whose text was not what the model sent."""

    workload: str
    runs: int
    observers: int
    khala: Khala
    baseline: Baseline
    ratios: Ratios
    problems: list[str]


class Report(Figures, frozen=True, kw_only=True):
    """Everything."""

    machine: dict[str, str]
    tokens_per_second: float
    seconds: float
    ramp_seconds: float
    rows: list[Row]
    failures: dict[str, str]
    """Workloads that could not be carried through, and why."""

    @property
    def problems(self) -> list[str]:
        """Of all workloads."""
        failed = [f"{workload}: failed with {why}" for workload, why in self.failures.items()]
        return failed + [f"{row.workload}: {problem}" for row in self.rows for problem in row.problems]


def ratios(khala: Khala, baseline: Baseline) -> Ratios:
    """Khala beside the baseline."""
    whole = None if khala.cpu.server is None or khala.cpu.database is None else khala.cpu.server + khala.cpu.database
    return Ratios(
        cpu_server=_over(khala.cpu.server, baseline.cpu.server),
        cpu_server_and_database=_over(whole, baseline.cpu.server),
        token_p50_ms=_minus(khala.token.p50_ms, baseline.latency.p50_ms),
        token_p99_ms=_minus(khala.token.p99_ms, baseline.latency.p99_ms),
        written_p50_ms=_minus(khala.written.p50_ms, baseline.latency.p50_ms),
        written_p99_ms=_minus(khala.written.p99_ms, baseline.latency.p99_ms),
    )


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _minus(one: float | None, other: float | None) -> float | None:
    return one - other if one is not None and other is not None else None


def _mib(size: int) -> float:
    return size / 2**20


Cell = Callable[[Row], float | None]

LINES: Sequence[tuple[str, str, Cell | None]] = (
    ("Khala", "", None),
    ("  token → observer p50", "ms", lambda row: row.khala.token.p50_ms),
    ("  token → observer p99", "ms", lambda row: row.khala.token.p99_ms),
    ("  newest token of a delta → observer p50", "ms", lambda row: row.khala.newest.p50_ms),
    ("  newest token of a delta → observer p99", "ms", lambda row: row.khala.newest.p99_ms),
    ("  row written → observer p50", "ms", lambda row: row.khala.written.p50_ms),
    ("  row written → observer p99", "ms", lambda row: row.khala.written.p99_ms),
    ("  deltas delivered", "/s", lambda row: row.khala.delivery.deltas_per_second),
    ("  size of a delta", "bytes", lambda row: row.khala.delivery.bytes_per_delta),
    ("  CPU per 1,000 deltas: server", "ms", lambda row: row.khala.cpu.server),
    ("  CPU per 1,000 deltas: database", "ms", lambda row: row.khala.cpu.database),
    ("  CPU per 1,000 deltas: (model server)", "ms", lambda row: row.khala.cpu.model),
    ("  CPU per 1,000 deltas: (driver)", "ms", lambda row: row.khala.cpu.driver),
    ("  CPU per 1,000 tokens: server", "ms", lambda row: row.khala.cpu_ms_per_1000_tokens),
    ("  server memory before", "MiB", lambda row: _mib(row.khala.rss.before)),
    ("  server memory at most", "MiB", lambda row: _mib(row.khala.rss.peak)),
    ("  commits", "/s", lambda row: row.khala.commits_per_second),
    ("  commits that wrote", "/s", lambda row: row.khala.writes_per_second),
    ("  parts", "", lambda row: row.khala.parts),
    ("  WAL per 1,000 parts", "bytes", lambda row: row.khala.wal_bytes_per_1000_parts),
    ("Bare websockets, the same frames", "", None),
    ("  send → observer p50", "ms", lambda row: row.baseline.latency.p50_ms),
    ("  send → observer p99", "ms", lambda row: row.baseline.latency.p99_ms),
    ("  deltas delivered", "/s", lambda row: row.baseline.delivery.deltas_per_second),
    ("  CPU per 1,000 deltas: server", "ms", lambda row: row.baseline.cpu.server),
    ("  CPU per 1,000 deltas: (driver)", "ms", lambda row: row.baseline.cpu.driver),
    ("  server memory before", "MiB", lambda row: _mib(row.baseline.rss.before)),
    ("  server memory at most", "MiB", lambda row: _mib(row.baseline.rss.peak)),
    ("Khala beside it", "", None),
    ("  CPU: server", "×", lambda row: row.ratios.cpu_server),
    ("  CPU: server and database", "×", lambda row: row.ratios.cpu_server_and_database),
    ("  token → observer p50", "+ms", lambda row: row.ratios.token_p50_ms),
    ("  token → observer p99", "+ms", lambda row: row.ratios.token_p99_ms),
    ("  row written → observer p50", "+ms", lambda row: row.ratios.written_p50_ms),
    ("  row written → observer p99", "+ms", lambda row: row.ratios.written_p99_ms),
)


def table(report: Report) -> str:
    """The report, one column a workload (runs × observers)."""
    facts = [f"{name}: {fact}" for name, fact in report.machine.items()]
    asked = (
        f"{report.tokens_per_second:g} tokens/s a run for {report.seconds:g} s, begun within {report.ramp_seconds:g} s"
    )
    head = ["runs × observers", "", *(row.workload.replace("x", "×") for row in report.rows)]
    body = [
        [name, unit, *("" if cell is None else _shown(cell(row)) for row in report.rows)] for name, unit, cell in LINES
    ]
    return "\n".join([*facts, asked, "", *_aligned([head, *body])])


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or isinstance(value, int) else f"{value:.2f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
