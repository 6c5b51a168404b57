"""An address that keeps whoever asks waiting, until a test lets it answer."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE = 60.0
"""Seconds after which it answers all the same."""


@contextmanager
def an_address_that_answers_late() -> Iterator[tuple[str, threading.Event]]:
    """Its address, and the event that lets it answer."""
    go = threading.Event()

    class Late(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            go.wait(PATIENCE)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"at last")

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as late:
        thread = threading.Thread(target=late.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{late.server_port}/", go
        finally:
            go.set()
            late.shutdown()
            thread.join()
