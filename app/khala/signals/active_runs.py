"""The runs that this process executes, for code that measures a run but does not execute it, such as the writer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from khala.signals import metrics, traces


class ActiveRun:
    """A run that this process executes.

    `requested_at` is in monotonic seconds; `context` is the run's trace; `has_text` says whether its answer has text.
    """

    __slots__ = ("context", "has_text", "requested_at")

    def __init__(self, requested_at: float, context: Context | None, *, has_text: bool) -> None:
        self.requested_at = requested_at
        self.context = context
        self.has_text = has_text


runs: dict[UUID, ActiveRun] = {}


@contextmanager
def track(
    run_id: UUID, traceparent: str | None, *, waited: float, attempt: int, taken_over: bool, begun: bool
) -> Iterator[None]:
    """While this is open, the run counts as active, and what is traced belongs to its trace.

    `waited`: seconds since the run was requested. `begun`: whether an earlier executor has written parts of it.
    """
    metrics.RUNS_CLAIMED.labels("yes" if taken_over else "no").inc()
    metrics.RUNS_WORKING.inc()
    attributes: dict[str, str | int | float] = {
        "khala.run.id": str(run_id),
        "khala.run.attempt": attempt,
        "khala.run.waited_seconds": waited,
    }
    with traces.span("run", SpanKind.CONSUMER, traceparent, attributes):
        current = context.get_current() if traces.enabled() else None
        run = runs[run_id] = ActiveRun(time.monotonic() - waited, current, has_text=begun)
        try:
            yield
        finally:
            metrics.RUNS_WORKING.dec()
            if runs.get(run_id) is run:
                del runs[run_id]
