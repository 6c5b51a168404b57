"""Records the HTTP responses of SDKs so that they can be closed, and escapes bytes that Google's SDK misreads."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2

_recording: ContextVar[list[httpx2.Response] | None] = ContextVar("recording", default=None)

_ESCAPES = {"\u0085".encode(): b"\\u0085", "\u2028".encode(): b"\\u2028", "\u2029".encode(): b"\\u2029"}
_PREFIXES = (b"\xe2\x80", b"\xe2", b"\xc2")


@contextmanager
def recorded() -> Iterator[list[httpx2.Response]]:
    """The list of responses that arrive inside the context, in the same task.

    Code that leaves a stream early closes these responses. Otherwise the nested generators of Google's SDK keep the
    connection open until they are garbage-collected.
    """
    responses: list[httpx2.Response] = []
    token = _recording.set(responses)
    try:
        yield responses
    finally:
        _recording.reset(token)


async def record(response: httpx2.Response) -> None:
    """A response hook of the HTTP client, for `recorded`."""
    if (responses := _recording.get()) is not None:
        responses.append(response)


async def escape_separators(response: httpx2.Response) -> None:
    """A response hook of Google's client, which escapes line separators such as U+2028 in JSON.

    Google sends them raw if a model writes them. JSON allows that inside strings, but Google's SDK splits lines there.
    """
    if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Escaped(response.stream)


class _Escaped(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        incomplete = b""
        async for chunk in self._inner:
            escaped, incomplete = escape(incomplete + chunk)
            yield escaped
        if incomplete:
            yield incomplete

    async def aclose(self) -> None:
        await self._inner.aclose()


def escape(text: bytes) -> tuple[bytes, bytes]:
    """Escape line separators in UTF-8 JSON. The second value is the end of the text that may begin a separator."""
    incomplete = next((prefix for prefix in _PREFIXES if text.endswith(prefix)), b"")
    complete = text[: len(text) - len(incomplete)]
    for separator, escaped in _ESCAPES.items():
        complete = complete.replace(separator, escaped)
    return complete, incomplete
