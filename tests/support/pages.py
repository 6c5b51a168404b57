"""An HTTP server with scripted responses, which records the requests."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import msgspec


class Pages(msgspec.Struct):
    """Responses by path; other paths get 404. `requests` has the heads of all requests."""

    port: int = 0
    answers: dict[str, bytes] = {}
    requests: list[str] = []

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        """The URL of a path."""
        return f"http://{host}:{self.port}{path}"

    def respond(self, path: str, body: bytes, status: str = "200 OK", **headers: str) -> None:
        """Set the response of a path."""
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        if "Content_Length" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        self.answers[path] = "\r\n".join([*lines, "", ""]).encode() + body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            writer.write(self.answers.get(head.split(" ")[1], missing))
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def pages(context: ssl.SSLContext | None = None) -> AsyncIterator[Pages]:
    """Serve on a free port of this machine."""
    made = Pages()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made
