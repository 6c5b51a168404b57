"""Traces on their way out: to an OTLP collector over HTTP, set up by OpenTelemetry's own environment variables."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from khala.signals import traces
from khala.version import KHALA_VERSION

LAST_WORDS = 5.0
"""Seconds that the last spans have to get out when the process ends."""


@asynccontextmanager
async def tracing(*, on: bool) -> AsyncIterator[None]:
    """Traces go out for as long as this is open. A collector that is away costs spans, and nobody waits for it."""
    if not on:
        yield
        return
    # Half a second of imports, for those who have traces.
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
        # A thread that the end of the process does not wait for, whatever the collector does.
        last = threading.Thread(target=provider.shutdown, daemon=True)
        last.start()
        await asyncio.to_thread(last.join, LAST_WORDS)
