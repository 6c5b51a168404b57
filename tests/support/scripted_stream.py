"""A server that answers every request of OpenAI's protocol with given bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext

from khala.models.port import LanguageModel
from khala.models.provider_registry import ProviderAccess
from khala.models.providers import ProviderConfig, Providers

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5000\r\n\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


def token(text: str, finish: str = "null") -> bytes:
    return b'data: {"choices":[{"delta":{"content":"%b"},"finish_reason":%b}]}\n\n' % (text.encode(), finish.encode())


class Script:
    """The bytes that a server writes, the requests that it received, and whether the client closed the connection."""

    def __init__(self, *pieces: bytes | asyncio.Event, close: bool, reads: bool) -> None:
        self._pieces = pieces
        self._close = close
        self._reads = reads
        self.request_heads: list[str] = []
        self.written = asyncio.Event()
        self.left = asyncio.Event()
        self.over = asyncio.Event()
        self.pieces_written = 0
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            ConnectionError, asyncio.IncompleteReadError
        ):  # a client that leaves with unread bytes resets the connection
            head = await reader.readuntil(b"\r\n\r\n")
            self.request_heads.append(head.decode())
            if self._reads:
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
            for piece in self._pieces:
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                else:
                    writer.write(piece)
                    await writer.drain()
                self.pieces_written += 1
            if self._close:
                writer.close()
                await writer.wait_closed()
            self.written.set()
            await (reader.read() if self._reads else self.over.wait())
        self.left.set()
        writer.close()


@asynccontextmanager
async def scripted(
    *pieces: bytes | asyncio.Event,
    close: bool = False,
    reads: bool = True,
    url: str = "http://127.0.0.1:{port}/v1",
    read_timeout: float = 5.0,
    tls: SSLContext | None = None,
) -> AsyncIterator[tuple[LanguageModel, Script]]:
    """A model whose server writes these bytes, and then closes the connection or waits until it is closed.

    The server waits for events among the bytes. `reads` is whether it reads the body. `url` may name another host, for
    a proxy.
    """
    script = Script(*pieces, close=close, reads=reads)
    server = await asyncio.start_server(script.answer, "127.0.0.1", 0, ssl=tls)
    script.port = server.sockets[0].getsockname()[1]
    access = ProviderAccess(key="sk-1", url=url.format(port=script.port))
    providers = Providers(ProviderConfig(access={"openai": access}, read_timeout=read_timeout, connect_timeout=2.0))
    try:
        yield providers.open("openai:local-model"), script
    finally:
        script.over.set()
        await providers.aclose()
        server.close()
        await server.wait_closed()
