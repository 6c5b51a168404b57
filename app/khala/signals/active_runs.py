"""The runs that this process works on, for whoever has to tell of one of them and is not inside of it: the writer."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from khala.signals import metrics, traces


class ActiveRun:
    """One of them: when it was asked for, in monotonic seconds, its trace, and whether its answer has text so far."""

    __slots__ = ("asked_at", "context", "said")

    def __init__(self, asked_at: float, context: Context | None, *, said: bool) -> None:
        self.asked_at = asked_at
        self.context = context
        self.said = said


runs: dict[UUID, ActiveRun] = {}


@contextmanager
def working(
    run_id: UUID, traceparent: str | None, *, waited: float, attempt: int, taken_over: bool, begun: bool
) -> Iterator[None]:
    """A run that was claimed is worked on, in its trace, while this is open.

    `waited`: seconds since it was asked for. `begun`: an executor before has written something of it.
    """
    metrics.RUNS_CLAIMED.labels("yes" if taken_over else "no").inc()
    metrics.RUNS_WORKING.inc()
    facts: dict[str, str | int | float] = {
        "khala.run.id": str(run_id),
        "khala.run.attempt": attempt,
        "khala.run.waited_seconds": waited,
    }
    with traces.span("run", SpanKind.CONSUMER, traceparent, facts):
        here = context.get_current() if traces.on() else None
        mine = runs[run_id] = ActiveRun(time.monotonic() - waited, here, said=begun)
        try:
            yield
        finally:
            metrics.RUNS_WORKING.dec()
            if runs.get(run_id) is mine:
                del runs[run_id]
