"""Exports traces to an OTLP collector over HTTP, configured by OpenTelemetry's own environment variables."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from khala.signals import traces
from khala.version import KHALA_VERSION

SHUTDOWN_TIMEOUT_SECONDS = 5.0
"""Time to export the last spans when the process ends."""


@asynccontextmanager
async def tracing(*, on: bool) -> AsyncIterator[None]:
    """Export traces while the context is open. If the collector is unavailable, spans are lost and nothing waits."""
    if not on:
        yield
        return
    # These imports take half a second, so they run only if traces are on.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.version": KHALA_VERSION})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):  # the environment names none
        resource = resource.merge(Resource({"service.name": "khala"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    traces.start(provider.get_tracer("khala", KHALA_VERSION))
    try:
        yield
    finally:
        traces.stop()
        # A daemon thread, so that a slow collector does not delay the end of the process.
        shutdown = threading.Thread(target=provider.shutdown, daemon=True)
        shutdown.start()
        await asyncio.to_thread(shutdown.join, SHUTDOWN_TIMEOUT_SECONDS)
