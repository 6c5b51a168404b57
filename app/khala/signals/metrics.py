"""All instruments: counters, gauges and histograms, by Prometheus's conventions.

None is touched for a token: text is counted when it is flushed or read, a call when it has ended. Values of labels are
bounded: they are what the code or the operator has named, never what people have.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot its types

REGISTRY = CollectorRegistry()
"""What this process tells of itself; what it tells of the database is `of_database`."""
ProcessCollector(registry=REGISTRY)

MOST_VALUES = 100
"""Values of one label that is not a closed list; whatever comes after them is `other`."""
OTHER = "other"

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: bounds of what takes milliseconds."""
SLOW = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: bounds of what a model or a tool takes."""
MANY = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Bounds of how many there are of something at once."""


def _counter(name: str, says: str, *labels: str) -> Counter:
    return Counter(f"khala_{name}", says, labels, registry=REGISTRY)


def _gauge(name: str, says: str, *labels: str) -> Gauge:
    return Gauge(f"khala_{name}", says, labels, registry=REGISTRY)


def _histogram(name: str, says: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"khala_{name}", says, labels, registry=REGISTRY, buckets=buckets)


BUILD = _gauge("build_info", "Always 1; its label is the version that runs.", "version")

# The event loop
LOOP_LAG = _histogram(
    "loop_lag_seconds", "How late a timer of the event loop was, once a second.", buckets=(*QUICK, 30.0)
)
LOOP_LAG_LONGEST = _gauge("loop_lag_longest_seconds", "The longest such lag of the last minute.")
WATCHDOG_ENDED = _gauge(
    "watchdog_ended_processes",
    "Processes that the watchdog ended before this one started, of those with its KHALA_HOME.",
)

# Runs
EXECUTOR_PLACES = _gauge("executor_places", "Runs that this process may work on at once; 0 when it drains.")
RUNS_WORKING = _gauge("runs_working", "Runs that this process works on.")
RUNS_CLAIMED = _counter("runs_claimed_total", "Runs claimed, and whether from an executor that was lost.", "taken_over")
RUNS_ENDED = _counter("runs_ended_total", "Runs that this process has stopped working on, by why.", "outcome")
FIRST_TEXT = _histogram(
    "run_first_text_seconds", "From a send to the commit of the first text of its answer.", buckets=SLOW
)
ISOLATED_RUNS = _gauge("isolated_runs", "Runs that this process executes in processes of their own.")
ISOLATED_ENDED = _counter(
    "isolated_runs_ended_total", "Processes of a single run that ended, by what became of the run.", "outcome"
)
HEARTBEATS_FAILED = _counter("heartbeats_failed_total", "Times that leases could not be renewed.")

# The write path
FLUSH = _histogram("flush_seconds", "One commit of text: from its beginning to the end of its commit.", buckets=QUICK)
FLUSH_RUNS = _histogram("flush_runs", "Runs in one commit of text.", buckets=MANY)
FLUSH_PARTS = _counter("flush_parts_total", "Parts committed.")
FLUSH_BYTES = _counter("flush_bytes_total", "Bytes of the parts committed, as JSON.")
FLUSHES_FAILED = _counter("flushes_failed_total", "Commits of text that failed and are tried again, or were refused.")

# The feed
FEED_LAG = _histogram(
    "feed_lag_seconds",
    "From the writing of the oldest part of a read, by the database's clock, to the hand-over to observers.",
    buckets=QUICK,
)
FEED_TOPICS = _histogram("feed_read_topics", "Topics that one read of the feed looks at.", buckets=MANY)
FEED_FAILED = _counter("feed_reads_failed_total", "Reads of the feed that failed and are tried again.")
LISTENER_CONNECTED = _gauge("listener_connected", "Whether notifications arrive: 1 or 0.")
LISTENER_LOST = _counter("listener_reconnects_total", "Times that the connection for notifications was lost.")
SOCKETS = _gauge("sockets", "WebSocket connections.")
EVENT_STREAMS = _gauge("event_streams", "Streams of server-sent events of threads.")
SUBSCRIPTIONS = _gauge("subscriptions", "Followings of threads and accounts, over sockets and streams.")
DROPPED_BACK = _counter("observers_dropped_back_total", "Times that an observer was too slow, and reads on by itself.")
PRESENT = _gauge("present", "Connections of this process that are present in threads.")

# HTTP
REQUESTS = _counter("http_requests_total", "Answers begun, by the route's template.", "method", "route", "status")
REQUEST = _histogram(
    "http_request_seconds", "From a request to the beginning of its answer.", "method", "route", buckets=QUICK
)

# Models and tools
MODEL_CALLS = _counter("model_calls_total", "Calls of models that ended, by how.", "provider", "model", "outcome")
MODEL_CALL = _histogram("model_call_seconds", "A model call from beginning to end.", "provider", "model", buckets=SLOW)
MODEL_FIRST_TOKEN = _histogram(
    "model_first_token_seconds", "From a model call to its first text.", "provider", "model", buckets=SLOW
)
MODEL_RETRIES = _counter("model_retries_total", "Model calls that were tried again, by why.", "provider", "code")
MODEL_TOKENS = _counter("model_tokens_total", "Tokens used, `input` and `output`.", "provider", "model", "kind")
MODEL_COST = _counter("model_cost_usd_total", "Cost in USD, where the price is known.", "provider", "model")
TOOL_CALLS = _counter("tool_calls_total", "Calls of tools that ended, by how.", "tool", "outcome")
TOOL_CALL = _histogram("tool_call_seconds", "A tool call that was made, from beginning to end.", "tool", buckets=SLOW)

# Blobs and the database
BLOB_BYTES = _counter("blob_bytes_total", "Bytes of blobs kept and read.", "direction")
DATABASE_WAIT = _histogram(
    "database_wait_seconds", "Until a connection of the pool was at hand and had answered.", buckets=QUICK
)
DATABASE_UNAVAILABLE = _counter("database_unavailable_total", "Commands that failed: the database was away or busy.")
DATABASE_DEADLOCKS = _counter(
    "database_deadlocks_total",
    "Transactions that Postgres ended over the locks of others, by `deadlock` or `serialization`; they are retried.",
    "cause",
)


class BoundedLabel:
    """The first values of a label as they are, and `other` for whatever comes after `most`."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to use."""
        if value not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


model = BoundedLabel()
"""Names of models: callers may choose among those that the operator's patterns fit."""
outcome = BoundedLabel()
"""Codes of how something ended."""


def of_database(queued: int, running: int, blocked: int, oldest: float, lease: float) -> Iterable[Metric]:
    """What all processes tell alike, since it is the database's: take the `max` of them, never the sum."""
    says = "Runs that have not ended, by state. The same from all."
    runs = GaugeMetricFamily("khala_queue_runs", says, labels=["status"])
    for status, count in (("queued", queued), ("running", running), ("blocked", blocked)):
        runs.add_metric([status], count)
    yield runs
    says = "How long the oldest run that could begin has waited to be claimed for the first time. The same from all."
    yield GaugeMetricFamily("khala_queue_oldest_seconds", says, value=oldest)
    says = "Time since the oldest last heartbeat of a run under way, 0 if there is none. The same from all."
    yield GaugeMetricFamily("khala_lease_age_seconds", says, value=lease)


def of_reading(*, ok: bool) -> Iterable[Metric]:
    """Whether the database could be asked for `of_database`."""
    yield GaugeMetricFamily("khala_database_up", "Whether the database answered this process: 1 or 0.", value=float(ok))


def of_pool(pools: Iterable[tuple[str, int, int]]) -> Iterable[Metric]:
    """Connections by pool: its name, how many are in use, and how many there may be."""
    used = GaugeMetricFamily("khala_database_connections_in_use", "Connections in use.", labels=["pool"])
    most = GaugeMetricFamily("khala_database_connections_most", "Connections that there may be.", labels=["pool"])
    for name, taken, size in pools:
        used.add_metric([name], taken)
        most.add_metric([name], size)
    yield used
    yield most
