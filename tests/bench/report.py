"""The report of a benchmark: one row per workload, as text and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from tests.bench.counters import Memory
from tests.bench.figures import Bare, Row, System
from tests.bench.growth import Growth
from tests.bench.tables import align_columns, format_number
from tests.bench.workload import Options

MIB = 1 << 20


class Report(msgspec.Struct, kw_only=True):
    """All results. `failures` has the error of each workload that failed."""

    machine: dict[str, str]
    options: Options
    rows: list[Row] = msgspec.field(default_factory=list)
    growth: list[Growth] = msgspec.field(default_factory=list)
    failures: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The problems of all workloads."""
        failed = [f"{workload}: failed with {error}" for workload, error in self.failures.items()]
        return failed + [f"{row.workload}: {problem}" for row in self.rows for problem in row.problems]


FigureKind: TypeAlias = Literal["cost", "gain", "fact", "ratio"]
"""A cost is better if it is lower, and so is a ratio to a baseline; a gain if it is higher; a fact is neither."""


class Line(msgspec.Struct, frozen=True):
    """One line of the table: a figure of every row."""

    section: str
    name: str
    unit: str
    cell: Callable[[Row], float | None]
    kind: FigureKind = "cost"


SystemOfRow: TypeAlias = Callable[[Row], System | None]


def _system(section: str, system_of: SystemOfRow) -> Iterator[Line]:
    def line(name: str, unit: str, cell: Callable[[System], float | None], kind: FigureKind = "cost") -> Line:
        return Line(section, name, unit, lambda row: None if (one := system_of(row)) is None else cell(one), kind)

    yield line("send → first text p50", "ms", lambda one: one.first.p50_ms)
    yield line("send → first text p99", "ms", lambda one: one.first.p99_ms)
    yield line("token → observer p50", "ms", lambda one: one.token.p50_ms)
    yield line("token → observer p99", "ms", lambda one: one.token.p99_ms)
    yield line("token → observer p99.9", "ms", lambda one: one.token.p999_ms)
    yield line("newest token of a delta → observer p50", "ms", lambda one: one.newest.p50_ms)
    yield line("newest token of a delta → observer p99", "ms", lambda one: one.newest.p99_ms)
    yield line("row written → observer p50", "ms", lambda one: one.written.p50_ms)
    yield line("row written → observer p99", "ms", lambda one: one.written.p99_ms)
    yield line("row written → observer p99.9", "ms", lambda one: one.written.p999_ms)
    yield line("row committed → observer p50", "ms", lambda one: one.committed.p50_ms)
    yield line("row committed → observer p99", "ms", lambda one: one.committed.p99_ms)
    yield line("deltas delivered", "/s", lambda one: one.delivery.deltas_per_second, "fact")
    yield line("CPU per 1,000 deltas: server", "ms", lambda one: one.cpu.server)
    yield line("CPU per 1,000 deltas: web", "ms", lambda one: one.cpu.web)
    yield line("CPU per 1,000 deltas: executor", "ms", lambda one: one.cpu.executor)
    yield line("CPU per 1,000 deltas: database", "ms", lambda one: one.cpu.database)
    yield line("CPU per 1,000 tokens: server", "ms", lambda one: one.cpu_by_tokens.server)
    yield line("CPU per 1,000 tokens: executor", "ms", lambda one: one.cpu_by_tokens.executor)
    for name in ("web", "executor", "database"):
        yield line(f"memory at the start: {name}", "MiB", lambda one, name=name: _before(one.memory.get(name)))  # type: ignore[misc]
        yield line(f"peak memory: {name}", "MiB", lambda one, name=name: _peak(one.memory.get(name)))  # type: ignore[misc]
    yield line("commits of parts", "/s", lambda one: one.storage.appends_per_second)
    yield line("transactions that wrote", "/s", lambda one: one.storage.writes_per_second)
    yield line("WAL per 1,000 parts", "bytes", lambda one: one.storage.wal_bytes_per_1000_parts)
    yield line("heap and indexes per 1,000 parts", "bytes", lambda one: one.storage.size_bytes_per_1000_parts)
    for name in ("web", "executor", "database", "model", "driver", "others"):
        yield line(f"busy: {name}", "cores", lambda one, name=name: one.busy.get(name), "fact")  # type: ignore[misc]


def _bare() -> Iterator[Line]:
    def line(name: str, unit: str, cell: Callable[[Bare], float | None]) -> Line:
        return Line("Bare", name, unit, lambda row: None if row.bare is None else cell(row.bare), "fact")

    yield line("send → observer p50", "ms", lambda one: one.latency.p50_ms)
    yield line("send → observer p99", "ms", lambda one: one.latency.p99_ms)
    yield line("CPU per 1,000 deltas", "ms", lambda one: one.cpu.web)
    yield line("peak memory", "MiB", lambda one: one.memory.peak / MIB)


def _ratios() -> Iterator[Line]:
    names = {
        "bare_cpu_web": "CPU of web : bare broadcast",
        "bare_cpu_server": "CPU of the server : bare broadcast",
        "flush_cpu_by_deltas": "CPU per delta : naive, a commit per flush",
        "flush_cpu_by_tokens": "CPU per token : naive, a commit per flush",
        "flush_written_p50": "row written → observer p50 : naive, a commit per flush",
        "token_cpu_by_deltas": "CPU per delta : naive, a commit per token",
        "token_cpu_by_tokens": "CPU per token : naive, a commit per token",
        "token_written_p50": "row written → observer p50 : naive, a commit per token",
    }
    for field, name in names.items():
        yield Line("Ratios of Khala to the baselines", name, "×", _ratio(field), "ratio")


def _ratio(field: str) -> Callable[[Row], float | None]:
    return lambda row: getattr(row.ratios, field)


def _before(memory: Memory | None) -> float | None:
    return None if memory is None else memory.before / MIB


def _peak(memory: Memory | None) -> float | None:
    return None if memory is None else memory.peak / MIB


LINES: Sequence[Line] = (
    *_system("Khala", lambda row: row.khala),
    *_system("Naive, a commit per flush of each run", lambda row: row.naive_flush),
    *_system("Naive, a commit per token", lambda row: row.naive_token),
    *_bare(),
    *_ratios(),
)


def table(report: Report) -> str:
    """The report as text, one column per workload (runs × observers), without sections that were not measured."""
    facts = [f"{name}: {fact}" for name, fact in report.machine.items()]
    processes = "one process" if report.options.together else "a web process and an executor"
    options = f"{processes}; {report.options.rate:g} tokens/s a run for {report.options.seconds:g} s"
    rows = [["runs × observers", "", *(_title(row) for row in report.rows)]]
    section = ""
    for line in LINES:
        cells = [line.cell(row) for row in report.rows]
        if all(cell is None for cell in cells):
            continue
        if line.section != section:
            section = line.section
            rows.append([section, "", *("" for _ in cells)])
        rows.append([f"  {line.name}", line.unit, *map(format_number, cells)])
    return "\n".join([*facts, options, "", *align_columns(rows), *_notes(report), *_growth(report)])


MARKS: Sequence[tuple[str, str, Callable[[Row], bool]]] = (
    ("*", "driver-bound: the model server or a driver used more than 70 % of a core", lambda row: row.driver_bound),
    ("!", "disturbed: other processes used more than 25 % of a core", lambda row: row.disturbed),
)


def _title(row: Row) -> str:
    return row.workload.replace("x", "×") + "".join(mark for mark, _, holds in MARKS if holds(row))


def _notes(report: Report) -> list[str]:
    return [f"{mark} {meaning}; see `busy`" for mark, meaning, holds in MARKS if any(map(holds, report.rows))]


def _growth(report: Report) -> list[str]:
    head = ["growth with", "of", "exponent", "R²", "each adds", ""]
    lines = [
        [
            one.along,
            one.cost,
            format_number(one.exponent),
            format_number(one.r_squared),
            format_number(one.slope),
            one.unit,
        ]
        for one in report.growth
    ]
    return ["", *align_columns([head, *lines])] if lines else []
