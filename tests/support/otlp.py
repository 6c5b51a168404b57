"""A collector of traces, which receives spans by OTLP over HTTP and stores them."""

import contextlib
import gzip
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True)
class Received:
    """One received span. Ids are hex digits, times nanoseconds since 1970."""

    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    failed: bool
    facts: dict[str, Any]
    process: dict[str, Any]
    """The attributes of the process."""


class Collector:
    """All received spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Received] = []

    def of(self, trace: str) -> list[Received]:
        """The spans of one trace, ordered by their start."""
        return sorted((span for span in list(self.spans) if span.trace == trace), key=lambda span: span.began)

    def wait(self, done: Callable[[], bool], *, within: float = 20.0) -> None:
        """Wait until `done` returns True."""
        deadline = time.monotonic() + within
        while not done():
            assert time.monotonic() < deadline, [(span.name, span.facts) for span in self.spans]
            time.sleep(0.05)

    def take(self, body: bytes) -> None:
        """Store the spans of one request."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            process = _read(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        Received(
                            name=span.name,
                            trace=span.trace_id.hex(),
                            id=span.span_id.hex(),
                            parent=span.parent_span_id.hex(),
                            began=span.start_time_unix_nano,
                            ended=span.end_time_unix_nano,
                            failed=span.status.code == span.status.STATUS_CODE_ERROR,
                            facts=_read(span.attributes),
                            process=process,
                        )
                    )


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own, for as long as this is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/v1/traces"
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _read(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes if isinstance(one, KeyValue)}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)
