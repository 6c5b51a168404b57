"""The figures of one workload: of Khala, of each baseline, and the ratios between them."""

from collections.abc import Mapping, Sequence

import msgspec

from tests.bench.counters import Memory, per_thousand, percentile
from tests.bench.observations import Observations
from tests.bench.storage import Storage

SERVER_PROCESSES = ("web", "executor", "database")
MAX_OTHER_CORES = 0.25
"""If other processes used more cores, latencies mean little, and CPU times are somewhat too long."""
MAX_DRIVER_CORES = 0.7
"""A model server or driver that used more of a core may be the bottleneck."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Named numbers; null stands for a figure that could not be measured."""


class Latency(Figures, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> "Latency":
        """The percentiles of latencies in any order."""
        ranked = sorted(microseconds)
        return cls(p50_ms=percentile(ranked, 50), p99_ms=percentile(ranked, 99), p999_ms=percentile(ranked, 99.9))


UNKNOWN = Latency(p50_ms=None, p99_ms=None, p999_ms=None)


class Delivery(Figures, frozen=True, kw_only=True):
    """What the observers received. A delta is one frame that brings text to one observer."""

    frames: int
    deltas: int
    seconds: float
    deltas_per_second: float
    bytes_per_frame: float

    @classmethod
    def of(cls, observations: Observations, seconds: float, deltas: int) -> "Delivery":
        """The delivery within so many seconds of wall-clock time."""
        return cls(
            frames=observations.frames,
            deltas=deltas,
            seconds=seconds,
            deltas_per_second=deltas / seconds,
            bytes_per_frame=observations.size / max(1, observations.frames),
        )


class Cpu(Figures, frozen=True, kw_only=True):
    """CPU milliseconds for each 1,000 of something. `server` is web, executor and database (the whole cluster)."""

    server: float | None
    web: float | None
    executor: float | None
    database: float | None
    model: float | None
    driver: float | None

    @classmethod
    def of(cls, seconds: Mapping[str, float], count: int) -> "Cpu":
        """From CPU seconds by process; a process that is missing was not measured."""
        whole = server_seconds(seconds)
        each = {name: per_thousand(spent * 1000, count) for name, spent in seconds.items()}
        return cls(
            server=None if whole is None else per_thousand(whole * 1000, count),
            web=each.get("web"),
            executor=each.get("executor"),
            database=each.get("database"),
            model=each.get("model"),
            driver=each.get("driver"),
        )


def server_seconds(seconds: Mapping[str, float]) -> float | None:
    """CPU seconds of web, executor and database together; None if those of the database are unknown."""
    return None if "database" not in seconds else sum(seconds.get(name, 0.0) for name in SERVER_PROCESSES)


class System(Figures, frozen=True, kw_only=True):
    """The whole path from a model to the observers. Latencies are ages on arrival at an observer.

    `first` is the time from the send request to the answer's first text, without the model's own delay before its first
    token; that of the naive server starts with the call of the model. `token` is the age of each token since the model
    sent it, including the wait for a flush; `newest` is the age of each delta's last token.

    `written` is the age of each delta's last row by the clock of Postgres: Khala's since the start of the transaction,
    the naive server's since its INSERT. So it contains all or most of that transaction with its commit (and the
    commit's fsync), the notification, the read, and the socket, but not the time in the executor before it.
    `committed` is the age of the same rows since just before the commit record was written: it contains its fsync and
    what follows, but not the wait for the lock that serialises all commits with a NOTIFY. It is null if
    `track_commit_timestamp` is off, and in reports from before this figure existed.
    """

    delivery: Delivery
    first: Latency
    token: Latency
    newest: Latency
    written: Latency
    committed: Latency = UNKNOWN
    cpu: Cpu
    """Per 1,000 deltas."""
    cpu_by_tokens: Cpu
    """Per 1,000 tokens of the model: to receive a token costs the same, however many deltas it becomes."""
    busy: dict[str, float]
    """Cores used by each process on average. Of several drivers it is the busiest one; `others` is the rest of the
    machine, and may be more than one core."""
    cpu_seconds: dict[str, float]
    memory: dict[str, Memory]
    """Resident bytes; for the database those of all its processes, with each shared page counted once."""
    storage: Storage
    live_executor: float | None = None
    """Cores that the executor used while all runs were active, without their starts and ends."""
    live_cpu: float | None = None
    """CPU milliseconds of the server per 1,000 deltas since the last run was sent, without the sends before."""

    @property
    def driver_bound(self) -> bool:
        """Whether the model server or a driver was so busy that it may be the bottleneck."""
        return max(self.busy["model"], self.busy["driver"]) > MAX_DRIVER_CORES

    @property
    def disturbed(self) -> bool:
        """Whether other load on the machine distorts the figures."""
        return self.busy["others"] > MAX_OTHER_CORES


class Bare(Figures, frozen=True, kw_only=True):
    """The same frames from a bare server. `late_ms` is the largest delay of a broadcast. The deltas are Khala's."""

    delivery: Delivery
    latency: Latency
    cpu: Cpu
    memory: Memory
    late_ms: float


class Ratios(Figures, frozen=True, kw_only=True):
    """Khala's figures as multiples of each baseline's; null if that baseline did not run.

    `bare` is the broadcast of the same frames. `flush` is the naive implementation with Khala's flush policy and a
    commit for each flush of each run; `token` is the same with a commit for each token. With `token`, compare CPU by
    tokens: a delta of 350 ms has more text than a delta of one token.
    """

    bare_cpu_web: float | None = None
    bare_cpu_server: float | None = None
    flush_cpu_by_deltas: float | None = None
    flush_cpu_by_tokens: float | None = None
    flush_written_p50: float | None = None
    token_cpu_by_deltas: float | None = None
    token_cpu_by_tokens: float | None = None
    token_written_p50: float | None = None


class Row(Figures, frozen=True, kw_only=True):
    """One workload. `problems` has a line for each observer whose text was not what the model sent."""

    workload: str
    runs: int
    observers: int
    khala: System
    bare: Bare | None
    naive_flush: System | None
    naive_token: System | None
    ratios: Ratios
    problems: list[str]

    @property
    def driver_bound(self) -> bool:
        """Whether this holds for one of the systems."""
        return any(system.driver_bound for system in self._systems())

    @property
    def disturbed(self) -> bool:
        """Whether this holds for one of the systems."""
        return any(system.disturbed for system in self._systems())

    def _systems(self) -> list[System]:
        return [system for system in (self.khala, self.naive_flush, self.naive_token) if system is not None]


def ratios(khala: System, bare: Bare | None, flush: System | None, token: System | None) -> Ratios:
    """The ratios of Khala to its baselines."""
    return Ratios(
        bare_cpu_web=None if bare is None else over(khala.cpu.web, bare.cpu.web),
        bare_cpu_server=None if bare is None else over(khala.cpu.server, bare.cpu.web),
        flush_cpu_by_deltas=None if flush is None else over(khala.cpu.server, flush.cpu.server),
        flush_cpu_by_tokens=None if flush is None else over(khala.cpu_by_tokens.server, flush.cpu_by_tokens.server),
        flush_written_p50=None if flush is None else over(khala.written.p50_ms, flush.written.p50_ms),
        token_cpu_by_deltas=None if token is None else over(khala.cpu.server, token.cpu.server),
        token_cpu_by_tokens=None if token is None else over(khala.cpu_by_tokens.server, token.cpu_by_tokens.server),
        token_written_p50=None if token is None else over(khala.written.p50_ms, token.written.p50_ms),
    )


def over(one: float | None, other: float | None) -> float | None:
    """One as a multiple of the other; None if that is undefined."""
    return one / other if one is not None and other else None
