"""Telemetry of a flush: metrics for all its runs together, and a span for each traced run.

A run that only continues its text gets no span.
"""

from collections.abc import Sequence

from khala.domain.parts import KIND_OF, TextDelta
from khala.signals import active_runs, metrics, traces
from khala.store.runs.parts import Batch

TEXT = KIND_OF[TextDelta]
"""The kind of the parts that contain the answer's text."""


def record_flush(batches: Sequence[Batch], began: float, now: float, *, oldest: float) -> None:
    """Record that these batches were committed, between two times in monotonic seconds.

    `oldest` is the time at which the oldest of their parts was added.
    """
    metrics.FLUSH.observe(now - began)
    if batches:
        metrics.FLUSH_WAIT.observe(now - oldest)
    metrics.FLUSH_RUNS.observe(len(batches))
    parts = size = 0
    for batch in batches:
        parts += len(batch.parts)
        for _, _, data in batch.parts:
            size += len(data) if data.isascii() else len(data.encode())
        run = active_runs.runs.get(batch.lease.run_id)
        if run is not None and not (run.has_text and run.context is None):
            _record_run(run, batch, began, now)
    metrics.FLUSH_PARTS.inc(parts)
    metrics.FLUSH_BYTES.inc(size)


def _record_run(run: active_runs.ActiveRun, batch: Batch, began: float, now: float) -> None:
    first = not run.has_text and any(kind == TEXT for _, kind, _ in batch.parts)
    if first:
        run.has_text = True
        metrics.FIRST_TEXT.observe(now - run.requested_at)
    if run.context is not None and (first or any(kind != TEXT for _, kind, _ in batch.parts)):
        facts: dict[str, str | int | bool] = {
            "khala.run.id": str(batch.lease.run_id),
            "khala.flush.parts": len(batch.parts),
            "khala.flush.first_text": first,
            "khala.flush.ends_run": batch.ending is not None,
        }
        traces.record("flush", now - began, facts, parent=run.context)
