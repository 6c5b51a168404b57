"""Traces with OpenTelemetry. They are off, and cost nothing, until the composition root sets a tracer.

An operation is recorded when it has ended, as a span with a start in the past, so no span is kept open for it. Only a
request and a run, inside of which other operations happen, are spans while they last.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SpanAttributes: TypeAlias = Mapping[str, str | int | float | bool]

NANOSECONDS = 1_000_000_000
PROPAGATOR = TraceContextTextMapPropagator()

_tracer: Tracer | None = None


def start(tracer: Tracer) -> None:
    """Send traces to this tracer from now on."""
    global _tracer
    _tracer = tracer


def stop() -> None:
    """Send no more traces."""
    global _tracer
    _tracer = None


def enabled() -> bool:
    """Whether traces are sent."""
    return _tracer is not None


def traceparent() -> str | None:
    """The current span as a W3C `traceparent` header; None without a trace."""
    if _tracer is None:
        return None
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def trace_id() -> str | None:
    """The id of the current trace, as 32 hex digits; None without a trace."""
    if _tracer is None:
        return None
    span_context = trace.get_current_span().get_span_context()
    return f"{span_context.trace_id:032x}" if span_context.is_valid else None


def context_of(parent: str | None) -> Context:
    """The context of this `traceparent`; a new root context if it is missing or malformed."""
    return PROPAGATOR.extract({} if parent is None else {"traceparent": parent}, context=Context())


@contextmanager
def span(name: str, kind: SpanKind, parent: str | None, attributes: SpanAttributes) -> Iterator[Span]:
    """A span around the block, which is the parent of the spans inside it.

    The span may be ended before the block is; later spans of the block still belong to it.
    """
    if _tracer is None:
        yield trace.INVALID_SPAN
        return
    new = _tracer.start_span(name, context_of(parent), kind, attributes)
    token = attach(trace.set_span_in_context(new))
    try:
        yield new
    except Exception as error:
        new.set_attribute("error.type", type(error).__name__)
        new.set_status(StatusCode.ERROR)
        raise
    finally:
        detach(token)
        if new.is_recording():
            new.end()


def record(
    name: str,
    seconds: float,
    attributes: SpanAttributes,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str | None = None,
) -> None:
    """Record an operation that took so many seconds and has just ended, in `parent` or in the current span.

    `error` is the code of its failure.
    """
    if _tracer is not None:
        now = time.time_ns()
        record_between(name, now - int(seconds * NANOSECONDS), now, attributes, parent=parent, kind=kind, error=error)


def record_between(
    name: str,
    began: int,
    ended: int,
    attributes: SpanAttributes,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str | None = None,
) -> None:
    """Record an operation that took place between two times, in nanoseconds since 1970."""
    if _tracer is None:
        return
    new = _tracer.start_span(name, parent, kind, attributes, start_time=began)
    if error is not None:
        new.set_attribute("error.type", error)
        new.set_status(StatusCode.ERROR)
    new.end(ended)
