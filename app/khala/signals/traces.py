"""Traces by OpenTelemetry: off, and then free, until the composition root says where they go.

What has ended is told at once as a span that has begun some time ago, so that nothing needs to be held open or nested
for it. Only what others happen inside of, a request and a run, is a span while it lasts.
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

NANO = 1_000_000_000
PROPAGATOR = TraceContextTextMapPropagator()

_tracer: Tracer | None = None


def begin(tracer: Tracer) -> None:
    """Traces go to this tracer from now on."""
    global _tracer
    _tracer = tracer


def end() -> None:
    """No more traces."""
    global _tracer
    _tracer = None


def on() -> bool:
    """Whether there are traces."""
    return _tracer is not None


def traceparent() -> str | None:
    """Where we are, as W3C's header says it; None where there is no trace."""
    if _tracer is None:
        return None
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def trace_id() -> str | None:
    """The id of the trace that we are in, as 32 hex digits."""
    if _tracer is None:
        return None
    here = trace.get_current_span().get_span_context()
    return f"{here.trace_id:032x}" if here.is_valid else None


def within(parent: str | None) -> Context:
    """The context after this `traceparent`; one of its own where it is missing or not well-formed."""
    return PROPAGATOR.extract({} if parent is None else {"traceparent": parent}, context=Context())


@contextmanager
def span(name: str, kind: SpanKind, parent: str | None, attributes: SpanAttributes) -> Iterator[Span]:
    """A span that others happen inside of. It may be ended before; what follows is still within it."""
    if _tracer is None:
        yield trace.INVALID_SPAN
        return
    made = _tracer.start_span(name, within(parent), kind, attributes)
    token = attach(trace.set_span_in_context(made))
    try:
        yield made
    except Exception as error:
        made.set_attribute("error.type", type(error).__name__)
        made.set_status(StatusCode.ERROR)
        raise
    finally:
        detach(token)
        if made.is_recording():
            made.end()


def record(
    name: str,
    seconds: float,
    attributes: SpanAttributes,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str | None = None,
) -> None:
    """What took so many seconds and has just ended, in `parent` or in the span that we are in.

    `error` says why it failed, as a code.
    """
    if _tracer is not None:
        now = time.time_ns()
        told(name, now - int(seconds * NANO), now, attributes, parent=parent, kind=kind, error=error)


def told(
    name: str,
    began: int,
    ended: int,
    attributes: SpanAttributes,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str | None = None,
) -> None:
    """The same, between two times in nanoseconds since 1970."""
    if _tracer is None:
        return
    made = _tracer.start_span(name, parent, kind, attributes, start_time=began)
    if error is not None:
        made.set_attribute("error.type", error)
        made.set_status(StatusCode.ERROR)
    made.end(ended)
