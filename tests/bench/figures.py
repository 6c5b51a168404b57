"""The bench's figures: what one workload came to, through Khala and through each baseline, and the ratios of them."""

from collections.abc import Mapping, Sequence

import msgspec

from tests.bench.measure import Memory, per_thousand, percentile
from tests.bench.reading import Seen
from tests.bench.storage import Storage

SERVERS = ("web", "executor", "database")
"""Whose CPU the server's is."""
DISTURBED = 0.25
"""Cores that others used: with more, latencies say little, and CPU times are somewhat long."""
DRIVER_BOUND = 0.7
"""Of a core: a model server or driver that used more may be what was slow."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers under their names; what could not be measured is null."""


class Latency(Figures, frozen=True, kw_only=True):
    """Percentiles in milliseconds."""

    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None

    @classmethod
    def of(cls, microseconds: Sequence[int]) -> "Latency":
        """Of latencies in any order."""
        ranked = sorted(microseconds)
        return cls(p50_ms=percentile(ranked, 50), p99_ms=percentile(ranked, 99), p999_ms=percentile(ranked, 99.9))


UNKNOWN = Latency(p50_ms=None, p99_ms=None, p999_ms=None)


class Delivery(Figures, frozen=True, kw_only=True):
    """What reached the observers: a delta is one frame that brings text to one observer."""

    frames: int
    deltas: int
    seconds: float
    deltas_per_second: float
    bytes_per_frame: float

    @classmethod
    def of(cls, seen: Seen, seconds: float, deltas: int) -> "Delivery":
        """In so many seconds of the wall's clock."""
        return cls(
            frames=seen.frames,
            deltas=deltas,
            seconds=seconds,
            deltas_per_second=deltas / seconds,
            bytes_per_frame=seen.size / max(1, seen.frames),
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
        """Of CPU seconds by name; a name that is missing was not measured."""
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
    """Web, executor and database together; None where the database's could not be seen."""
    return None if "database" not in seconds else sum(seconds.get(name, 0.0) for name in SERVERS)


class System(Figures, frozen=True, kw_only=True):
    """The whole way from a model to observers. Latencies are ages at which an observer has something.

    `first`: from the request to send until the answer's first text, without the pause that the model makes before its
    first token; the naive server's begins where it asks the model. `token` is the age of each token since the model
    sent it, with the time for which a flush policy gathers; `newest` is that of each delta's last token.

    `written` is that of each delta's last row by the clock of Postgres: Khala's at the beginning of the transaction,
    the naive server's at its INSERT. So it contains all or most of that transaction with its commit (and the commit's
    fsync), the notification, the read, and the way through the socket, but not the time in the executor before it.
    `committed` is that of the same rows since the commit was about to be written: its fsync and what follows, but not
    the wait for the lock that all commits with a NOTIFY take one after the other. It is null where Postgres does not
    keep `track_commit_timestamp`, and in reports from before it was measured.
    """

    delivery: Delivery
    first: Latency
    token: Latency
    newest: Latency
    written: Latency
    committed: Latency = UNKNOWN
    cpu: Cpu
    """For each 1,000 deltas."""
    cpu_by_tokens: Cpu
    """For each 1,000 tokens of the model: a token costs the same to take in, however many deltas it is made into."""
    busy: dict[str, float]
    """Of a core, by process, over the whole time. Of several drivers it is the busiest one's; `others` is the rest of
    the machine, and may be more than one core's."""
    cpu_seconds: dict[str, float]
    memory: dict[str, Memory]
    """Resident bytes; the database's are those of all its processes, each shared page once."""
    storage: Storage

    @property
    def driver_bound(self) -> bool:
        """Whether the model server or a driver was so busy that it may be what was measured."""
        return max(self.busy["model"], self.busy["driver"]) > DRIVER_BOUND

    @property
    def disturbed(self) -> bool:
        """Whether the machine had so much else to do that figures are off."""
        return self.busy["others"] > DISTURBED


class Bare(Figures, frozen=True, kw_only=True):
    """The same frames from a bare server; `late_ms` is how late its latest broadcast was. Its deltas are Khala's."""

    delivery: Delivery
    latency: Latency
    cpu: Cpu
    memory: Memory
    late_ms: float


class Ratios(Figures, frozen=True, kw_only=True):
    """Khala's figures as multiples of each baseline's; null where that wasn't run.

    `bare` is the broadcast of the same frames, `flush` the naive way with Khala's flush policy and a commit for each
    flush of each run, `token` the naive way with a commit for each token. A token's share is the fairer one there: a
    delta of 350 ms is more than a delta of one token.
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
    """One workload. `problems` tells of every observer whose text was not what the model sent."""

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
        """Whether one of the systems was."""
        return any(system.driver_bound for system in self._systems())

    @property
    def disturbed(self) -> bool:
        """Whether one of the systems was."""
        return any(system.disturbed for system in self._systems())

    def _systems(self) -> list[System]:
        return [system for system in (self.khala, self.naive_flush, self.naive_token) if system is not None]


def ratios(khala: System, bare: Bare | None, flush: System | None, token: System | None) -> Ratios:
    """Khala beside its baselines."""
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
    """One as a multiple of the other; None where there is no such thing."""
    return one / other if one is not None and other else None
