"""Delivery telemetry: the feed's lag as a metric, and trace spans for the delivery of a run's first text and end."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import islice
from uuid import UUID

import msgspec
import structlog
from opentelemetry.trace import SpanKind

from khala.domain.errors import Unavailable
from khala.domain.frames import DeltaFrame
from khala.domain.parts import KIND_OF, Finish, Part, TextDelta
from khala.live.feeds import FeedDelta, TopicRead
from khala.signals import metrics, traces
from khala.store.postgres.database import Database
from khala.store.runs.run_queue import read_traceparents

log = structlog.get_logger()

FIRST_TEXT, END = "first_text", "end"
KINDS = {KIND_OF[TextDelta]: FIRST_TEXT, KIND_OF[Finish]: END}
MAX_TRACKED_RUNS = 10_000
"""Active runs whose first text was delivered, of which the recorder keeps track."""
MAX_PENDING = 1000
"""Deliveries that wait to be traced. If there are more, the oldest are dropped."""
MAX_PER_QUERY = 100
"""Deliveries in one query for their traces."""
QUERY_INTERVAL_SECONDS = 1.0
"""Seconds between two queries, at least."""


class Delivery(msgspec.Struct, frozen=True):
    """The delivery of a run's first text or end to all observers of its thread. Times are nanoseconds since 1970."""

    run_id: UUID
    event: str
    began: int
    ended: int


class DeliveryRecorder:
    """Records the deliveries of one process. Without tracing it stores nothing and queries nothing."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._with_first_text: OrderedDict[UUID, None] = OrderedDict()
        self._waiting: deque[Delivery] = deque(maxlen=MAX_PENDING)
        self._wake = asyncio.Event()

    def record(self, reads: Iterable[TopicRead], began: float) -> None:
        """Record that these changes were delivered now. Their read began at `began`, in monotonic seconds."""
        frames = [read.change.frame for read in reads if isinstance(read.change, FeedDelta)]
        delivered = [frame.parts for frame in frames if isinstance(frame, DeltaFrame) and frame.parts]
        if not delivered:
            return
        now = time.time_ns()
        oldest = min(parts[0].created_at for parts in delivered).timestamp()
        metrics.FEED_LAG.observe(max(0.0, now / traces.NANOSECONDS - oldest))
        if traces.enabled():
            since = now - int((time.monotonic() - began) * traces.NANOSECONDS)
            for parts in delivered:
                self._enqueue(parts, since, now)

    async def run(self) -> None:
        """Record pending deliveries in traces, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._record_traces(list(islice(self._waiting, MAX_PER_QUERY)))
                await asyncio.sleep(QUERY_INTERVAL_SECONDS)

    def _enqueue(self, parts: Iterable[Part], began: int, ended: int) -> None:
        for part in parts:
            event = KINDS.get(part.kind)
            if event is None or (event == FIRST_TEXT and part.run_id in self._with_first_text):
                continue
            if event == END:
                self._with_first_text.pop(part.run_id, None)
            else:
                self._with_first_text[part.run_id] = None
                if len(self._with_first_text) > MAX_TRACKED_RUNS:
                    self._with_first_text.popitem(last=False)
            self._waiting.append(Delivery(part.run_id, event, began, ended))
            self._wake.set()

    async def _record_traces(self, due: list[Delivery]) -> None:
        try:
            async with self._db.driver() as driver:
                traceparents = await read_traceparents(driver, [delivery.run_id for delivery in due])
        except Unavailable as error:
            log.warning("delivery_metrics_failed", error=str(error.__cause__))
            return
        for delivery in due:
            if self._waiting and self._waiting[0] is delivery:
                self._waiting.popleft()
            if delivery.run_id in traceparents:
                facts = {"khala.run.id": str(delivery.run_id), "khala.delivery": delivery.event}
                parent = traces.context_of(traceparents[delivery.run_id])
                traces.record_between(
                    "deliver", delivery.began, delivery.ended, facts, parent=parent, kind=SpanKind.PRODUCER
                )
