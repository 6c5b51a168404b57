"""An HTTP server that does not respond until a test lets it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_DELAY_SECONDS = 60.0
"""After which it responds anyway."""


@contextmanager
def delayed_server() -> Iterator[tuple[str, threading.Event]]:
    """Run the server; yields its URL, and the event that lets it respond."""
    respond = threading.Event()

    class Late(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond.wait(MAX_DELAY_SECONDS)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"at last")

        def log_message(self, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Late) as late:
        thread = threading.Thread(target=late.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{late.server_port}/", respond
        finally:
            respond.set()
            late.shutdown()
            thread.join()
