"""All metrics of a process: counters, gauges and histograms, named by Prometheus's conventions.

No metric is updated per token: text is counted when it is flushed or read, a call when it has ended. Label values are
bounded: they are named by the code or the operator, never by users.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library forgot its types

REGISTRY = CollectorRegistry()
"""The metrics of this process. Those of the database are read for each scrape: `database_metrics`."""
ProcessCollector(registry=REGISTRY)

MAX_LABEL_VALUES = 100
"""Distinct values of a label that has no closed list; all later values become `other`."""
OTHER = "other"

FAST_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Bucket bounds of operations that take milliseconds."""
SLOW_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket bounds of calls of models and tools."""
COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
"""Bucket bounds of counts."""


def _counter(name: str, help_text: str, *labels: str) -> Counter:
    return Counter(f"khala_{name}", help_text, labels, registry=REGISTRY)


def _gauge(name: str, help_text: str, *labels: str) -> Gauge:
    return Gauge(f"khala_{name}", help_text, labels, registry=REGISTRY)


def _histogram(name: str, help_text: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"khala_{name}", help_text, labels, registry=REGISTRY, buckets=buckets)


BUILD = _gauge("build_info", "Always 1. The label is the version that runs.", "version")

# The event loop
LOOP_LAG = _histogram(
    "loop_lag_seconds",
    "Delay of a timer of the event loop, measured once a second.",
    buckets=(*FAST_BUCKETS_SECONDS, 30.0),
)
LOOP_LAG_LONGEST = _gauge("loop_lag_longest_seconds", "The longest lag of the last minute.")
WATCHDOG_ENDED = _gauge(
    "watchdog_ended_processes",
    "Earlier processes with the same KHALA_HOME that the watchdog ended.",
)

# Runs
EXECUTOR_PLACES = _gauge("executor_places", "Runs that this process may execute at once; 0 while it drains.")
RUNS_WORKING = _gauge("runs_working", "Runs that this process executes.")
RUNS_CLAIMED = _counter(
    "runs_claimed_total", "Runs claimed, by whether they were taken over from a lost executor.", "taken_over"
)
CLAIM = _histogram("claim_seconds", "Duration of one claim of runs from the queue.", buckets=FAST_BUCKETS_SECONDS)
RUNS_ENDED = _counter("runs_ended_total", "Runs that this process has stopped executing, by outcome.", "outcome")
FIRST_TEXT = _histogram(
    "run_first_text_seconds",
    "Time from a send to the commit of the first text of its answer.",
    buckets=SLOW_BUCKETS_SECONDS,
)
ISOLATED_RUNS = _gauge("isolated_runs", "Runs that this process executes in child processes.")
ISOLATED_ENDED = _counter(
    "isolated_runs_ended_total", "Child processes of single runs that ended, by the run's outcome.", "outcome"
)
HEARTBEATS_FAILED = _counter("heartbeats_failed_total", "Failed renewals of leases.")

# Plans
PLANS_DRIVEN = _gauge("plans_driven", "Plans that this process drives.")
PLANS_CLAIMED = _counter("plans_claimed_total", "Plans that this process has claimed, also after another driver.")
PLAN_DRIVES_FAILED = _counter(
    "plan_drives_failed_total",
    "Plans that a driver left until its lease lapsed: `damaged` rows, or `crashed` by a defect.",
    "cause",
)
PLAN_ATTEMPTS = _counter("plan_attempts_total", "Attempts of steps that this process has ended, by outcome.", "outcome")
PLANS_ENDED = _counter(
    "plans_ended_total", "Plans that this process has paused or stopped, by status and reason.", "status", "reason"
)

# The write path
FLUSH = _histogram("flush_seconds", "Duration of one commit of parts.", buckets=FAST_BUCKETS_SECONDS)
FLUSH_WAIT = _histogram(
    "flush_wait_seconds",
    "Age of the oldest text in a commit of parts: the time that it was buffered, waited for a lock, and was written.",
    buckets=FAST_BUCKETS_SECONDS,
)
FLUSH_RUNS = _histogram("flush_runs", "Runs in one commit of parts.", buckets=COUNT_BUCKETS)
FLUSH_PARTS = _counter("flush_parts_total", "Parts committed.")
FLUSH_BYTES = _counter("flush_bytes_total", "Bytes of the committed parts, as JSON.")
FLUSHES_FAILED = _counter("flushes_failed_total", "Commits of parts that failed and are retried, or were refused.")
FLUSHES_DELAYED = _counter(
    "flushes_delayed_total",
    "Batches of parts that a commit left out because their thread was locked.",
)

# Retention
PURGE = _histogram("purge_seconds", "Duration of one purge of expired data.", buckets=SLOW_BUCKETS_SECONDS)
PURGED_ROWS = _counter("purged_rows_total", "Rows that purges deleted, and threads that they closed.", "kind")
PURGES_FAILED = _counter("purges_failed_total", "Purges that the database ended or refused; the next one continues.")

# The feed
FEED_LAG = _histogram(
    "feed_lag_seconds",
    "Time from the write of the oldest part of a read, by the database's clock, to its delivery to observers.",
    buckets=FAST_BUCKETS_SECONDS,
)
FEED_TOPICS = _histogram("feed_read_topics", "Topics in one read of the feed.", buckets=COUNT_BUCKETS)
FEED_OWN_TOPICS = _histogram(
    "feed_own_topics", "Topics whose text this process delivers together without a read.", buckets=COUNT_BUCKETS
)
FEED_FAILED = _counter("feed_reads_failed_total", "Reads of the feed that failed and are retried.")
LISTENER_CONNECTED = _gauge("listener_connected", "Whether the connection for notifications is up: 1 or 0.")
LISTENER_LOST = _counter("listener_reconnects_total", "Losses of the connection for notifications.")
SOCKETS = _gauge("sockets", "WebSocket connections.")
STREAM_WAKES = _counter(
    "stream_wakes_total", "Wakes of subscriptions to streams that were sent to webhooks, by outcome.", "outcome"
)
WEBHOOK_DELIVERIES = _counter(
    "webhook_deliveries_total", "Attempts to deliver events to webhooks, by the state of the event after it.", "state"
)
PUSH_DELIVERIES = _counter(
    "push_deliveries_total",
    "Attempts to deliver notifications to push services, by outcome; `dropped`: not needed or not allowed any more.",
    "outcome",
)
EVENT_STREAMS = _gauge("event_streams", "Open event streams (SSE) of threads.")
SUBSCRIPTIONS = _gauge("subscriptions", "Subscriptions to threads and accounts, over sockets and event streams.")
DROPPED_BACK = _counter(
    "observers_dropped_back_total", "Observers that were too slow and were dropped back to their cursor."
)
PRESENT = _gauge("present", "Connections of this process that show presence in threads.")

# HTTP
REQUESTS = _counter("http_requests_total", "Responses begun, by route template.", "method", "route", "status")
REQUEST = _histogram(
    "http_request_seconds",
    "Time from a request to the beginning of its response.",
    "method",
    "route",
    buckets=FAST_BUCKETS_SECONDS,
)

# Models and tools
MODEL_CALLS = _counter("model_calls_total", "Model calls that ended, by outcome.", "provider", "model", "outcome")
MODEL_CALL = _histogram(
    "model_call_seconds", "Duration of a model call.", "provider", "model", buckets=SLOW_BUCKETS_SECONDS
)
MODEL_FIRST_TOKEN = _histogram(
    "model_first_token_seconds",
    "Time from the start of a model call to its first text.",
    "provider",
    "model",
    buckets=SLOW_BUCKETS_SECONDS,
)
MODEL_RETRIES = _counter("model_retries_total", "Retries of model calls, by error code.", "provider", "code")
MODEL_TOKENS = _counter("model_tokens_total", "Tokens used, `input` and `output`.", "provider", "model", "kind")
MODEL_COST = _counter(
    "model_cost_usd_total", "Cost of model calls in USD, where the price is known.", "provider", "model"
)
EMBEDDING_CALLS = _counter(
    "embedding_calls_total", "Calls of the embedding model, by outcome.", "provider", "model", "outcome"
)
EMBEDDING_CALL = _histogram(
    "embedding_call_seconds", "Duration of an embedding call.", "provider", "model", buckets=FAST_BUCKETS_SECONDS
)
EMBEDDING_TOKENS = _counter("embedding_tokens_total", "Tokens embedded.", "provider", "model")
EMBEDDING_MODEL_CHANGES = _counter(
    "embedding_model_changes_total", "Changes of the embedding model under the same name, which embed all texts again."
)
MEMORIES_EMBEDDED = _counter("memories_embedded_total", "Memories whose vector was computed.")
MEMORIES_WITHOUT_VECTOR = _counter(
    "memories_without_vector_total", "Memories that the embedding model refused, and that only their words find."
)
EXTRACTIONS = _counter(
    "memory_extractions_total",
    "Extractions of memories that ended: done, off, budget, invalid or failed.",
    "outcome",
)
TITLES = _counter(
    "titles_total", "Titles of threads that ended: written, unneeded, budget, invalid or failed.", "outcome"
)
EXTRACTED = _counter("memories_extracted_total", "Memories that extractions stored or proposed.", "kind")
SEARCH = _histogram("search_seconds", "Duration of a search.", buckets=FAST_BUCKETS_SECONDS)
SEARCH_INDEXED = _counter("search_indexed_total", "Messages that this process has prepared for searches.")
SEARCH_INDEXING = _histogram(
    "search_indexing_seconds", "Duration of a batch of messages that is prepared.", buckets=FAST_BUCKETS_SECONDS
)
SEARCH_INDEXING_FAILED = _counter("search_indexing_failed_total", "Batches that failed and are repeated.")
PASSAGES_EMBEDDED = _counter("passages_embedded_total", "Passages of messages whose vector was computed.")
PASSAGES_WITHOUT_VECTOR = _counter(
    "passages_without_vector_total", "Passages that the embedding model refused, and that only their words find."
)
PASSAGE_EMBEDDING_FAILED = _counter("passage_embedding_failed_total", "Batches that failed and are repeated.")
AGENTS_EMBEDDED = _counter("agents_embedded_total", "Agents of users whose vectors were computed.")
ROUTES = _counter(
    "routes_total", "Tasks routed to agents: `routed` or `abstained`, by `words` or `meaning`.", "outcome", "by"
)
TOOLS_EMBEDDED = _counter("tools_embedded_total", "Tools whose vectors were computed by this process.")
TOOL_CHOICES = _counter(
    "tool_choices_total", "Times that tools were chosen for a prompt or by `find_tools`: by `words` or `meaning`.", "by"
)
TOOL_CALLS = _counter("tool_calls_total", "Tool calls that ended, by outcome.", "tool", "outcome")
TOOL_CALL = _histogram("tool_call_seconds", "Duration of an executed tool call.", "tool", buckets=SLOW_BUCKETS_SECONDS)

# Blobs and the database
BLOB_BYTES = _counter("blob_bytes_total", "Bytes of blobs stored and read.", "direction")
DATABASE_WAIT = _histogram(
    "database_wait_seconds", "Time until the pool provided a connection that answered.", buckets=FAST_BUCKETS_SECONDS
)
DATABASE_UNAVAILABLE = _counter(
    "database_unavailable_total", "Commands that failed because the database was unavailable or busy."
)
DATABASE_DEADLOCKS = _counter(
    "database_deadlocks_total",
    "Transactions that Postgres aborted because of others, by `deadlock` or `serialization`; they are retried.",
    "cause",
)
PACKED_PARTS = _counter("packed_parts_total", "Parts of old runs that this process has packed.")
VERIFIED_ANSWERS = _counter("verified_answers_total", "Answers that this process has compared with their parts.")
VERIFIED_PLANS = _counter("verified_plans_total", "Plans that this process has compared with their events.")
VERIFY_DIFFERENCES = _counter(
    "verify_differences_total",
    "Differences between answers and their parts, and plans and their events, that this process has found.",
)


class BoundedLabel:
    """Limits the values of one label: the first `max_values` are used as they are, all later ones become `other`."""

    def __init__(self, max_values: int = MAX_LABEL_VALUES) -> None:
        self._max_values = max_values
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value to use for this one."""
        if value not in self._known:
            if len(self._known) >= self._max_values:
                return OTHER
            self._known.add(value)
        return value


model = BoundedLabel()
"""Limits names of models, which callers choose among those that match the operator's patterns."""
outcome = BoundedLabel()
"""Limits codes of outcomes."""


def database_metrics(queued: int, running: int, blocked: int, oldest: float, lease: float) -> Iterable[Metric]:
    """Metrics of the database, which are the same in all processes: take their `max`, never the sum."""
    help_text = "Runs that have not ended, by state. The same in all processes."
    runs = GaugeMetricFamily("khala_queue_runs", help_text, labels=["status"])
    for status, count in (("queued", queued), ("running", running), ("blocked", blocked)):
        runs.add_metric([status], count)
    yield runs
    help_text = "Waiting time of the oldest run that could begin and was never claimed. The same in all processes."
    yield GaugeMetricFamily("khala_queue_oldest_seconds", help_text, value=oldest)
    help_text = "Age of the oldest lease's last heartbeat, 0 without running runs. The same in all processes."
    yield GaugeMetricFamily("khala_lease_age_seconds", help_text, value=lease)


def plan_metrics(undriven: int, waiting: int) -> Iterable[Metric]:
    """Metrics of the plans of all threads."""
    help_text = "Plans that should go on, and that no driver has held for three leases; at most 10,000 are counted."
    yield GaugeMetricFamily("khala_plans_undriven", f"{help_text} The same in all processes.", value=undriven)
    help_text = "Plans that have paused by themselves and wait for a person; at most 10,000 are counted."
    yield GaugeMetricFamily("khala_plans_waiting", f"{help_text} The same in all processes.", value=waiting)


def webhook_metrics(waiting: int, oldest_seconds: float, disabled: int) -> Iterable[Metric]:
    """Metrics of the outbox of webhooks."""
    help_text = "Events that wait for their delivery to enabled webhooks; at most 100,000 are counted."
    yield GaugeMetricFamily("khala_webhooks_waiting", f"{help_text} The same in all processes.", value=waiting)
    help_text = "Age of the oldest event that waits for its delivery. The same in all processes."
    yield GaugeMetricFamily("khala_webhooks_oldest_seconds", help_text, value=oldest_seconds)
    help_text = "Webhooks that were disabled because their endpoint failed. The same in all processes."
    yield GaugeMetricFamily("khala_webhooks_disabled", help_text, value=disabled)


def activity_metrics(lock_waiters: int, longest_lock_wait: float, oldest_transaction: float) -> Iterable[Metric]:
    """Metrics of the sessions of the database. Times are seconds."""
    help_text = "Statements that wait for a lock. The same in all processes."
    yield GaugeMetricFamily("khala_lock_waiters", help_text, value=lock_waiters)
    help_text = "Time since the oldest statement that waits for a lock began. The same in all processes."
    yield GaugeMetricFamily("khala_lock_wait_seconds", help_text, value=longest_lock_wait)
    help_text = "Age of the oldest open transaction, which holds up vacuum. The same in all processes."
    yield GaugeMetricFamily("khala_transaction_oldest_seconds", help_text, value=oldest_transaction)


def storage_metrics(database_bytes: int, backlog: int, oldest_backlog_seconds: float) -> Iterable[Metric]:
    """Metrics of the whole database and of the purge."""
    help_text = "Size of the database on disk, without WAL. The same in all processes."
    yield GaugeMetricFamily("khala_database_bytes", help_text, value=database_bytes)
    help_text = (
        "Deleted accounts, and deleted or reset threads, that are not purged yet; at most 10,000 of each are counted."
    )
    yield GaugeMetricFamily("khala_purge_backlog_threads", f"{help_text} The same in all processes.", value=backlog)
    help_text = "Time since the oldest thread in the purge's backlog was deleted or reset. The same in all processes."
    yield GaugeMetricFamily("khala_purge_backlog_seconds", help_text, value=oldest_backlog_seconds)


def search_metrics(waiting: int) -> Iterable[Metric]:
    """Metrics of the search."""
    help_text = "Answers and imports to prepare for searches, counted up to 10,000. The same in all processes."
    yield GaugeMetricFamily("khala_search_waiting", help_text, value=waiting)


def table_metrics(tables: Iterable[tuple[str, int, int, int, int]]) -> Iterable[Metric]:
    """Metrics of each table, given as its name, bytes, bytes of its indexes, live rows and dead rows."""
    families = [
        GaugeMetricFamily(f"khala_table_{name}", f"{help_text} The same in all processes.", labels=["table"])
        for name, help_text in (
            ("bytes", "Size of the table with its partitions at its last vacuum or analysis."),
            ("index_bytes", "Size of the table's indexes at its last vacuum or analysis."),
            ("rows", "Estimated rows of the table."),
            ("dead_rows", "Estimated rows that were deleted or replaced, and that vacuum has not removed."),
        )
    ]
    for table, *values in tables:
        for family, value in zip(families, values, strict=True):
            family.add_metric([table], value)
    yield from families


def freeze_metric(tables: Iterable[tuple[str, int]]) -> Iterable[Metric]:
    """Transactions since the oldest row of each table that is not frozen. At 2 billion, Postgres refuses writes."""
    help_text = "Transactions since the oldest row of the table that vacuum has not frozen. The same in all processes."
    ages = GaugeMetricFamily("khala_table_transaction_age", help_text, labels=["table"])
    for table, age in tables:
        ages.add_metric([table], age)
    yield ages


def database_up_metric(*, ok: bool) -> Iterable[Metric]:
    """Whether `database_metrics` could be read from the database."""
    yield GaugeMetricFamily("khala_database_up", "Whether the database answered this process: 1 or 0.", value=float(ok))


def pool_metrics(pools: Iterable[tuple[str, int, int]]) -> Iterable[Metric]:
    """Connections of each pool, given as its name, the connections in use, and its size."""
    used = GaugeMetricFamily("khala_database_connections_in_use", "Connections in use, by pool.", labels=["pool"])
    maximum = GaugeMetricFamily("khala_database_connections_most", "Size of each pool.", labels=["pool"])
    for name, in_use, size in pools:
        used.add_metric([name], in_use)
        maximum.add_metric([name], size)
    yield used
    yield maximum
