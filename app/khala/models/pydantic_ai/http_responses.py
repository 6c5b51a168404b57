"""The HTTP responses beneath provider calls: kept at hand to be closed, and mended where an SDK misreads them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpx2

_opening: ContextVar[list[httpx2.Response] | None] = ContextVar("opening", default=None)

_ESCAPES = {"\u0085".encode(): b"\\u0085", "\u2028".encode(): b"\\u2028", "\u2029".encode(): b"\\u2029"}
_BEGINNINGS = (b"\xe2\x80", b"\xe2", b"\xc2")


@contextmanager
def noted() -> Iterator[list[httpx2.Response]]:
    """The list of responses that arrive inside the context, in the same task.

    Who leaves a stream early closes them first: the Google SDK's nested generators otherwise leave that to the garbage
    collector, and the connection open.
    """
    responses: list[httpx2.Response] = []
    token = _opening.set(responses)
    try:
        yield responses
    finally:
        _opening.reset(token)


async def note(response: httpx2.Response) -> None:
    """The HTTP client's hook behind `noted`."""
    if (responses := _opening.get()) is not None:
        responses.append(response)


async def mend(response: httpx2.Response) -> None:
    """The Google client's hook: its SDK splits lines at separators that JSON allows raw inside of strings.

    Google sends them raw when a model writes them. Escaped they mean the same to JSON, and nothing to line splitting.
    """
    if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Escaped(response.stream)


class _Escaped(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = b""
        async for chunk in self._inner:
            whole, held = escape(held + chunk)
            yield whole
        if held:
            yield held

    async def aclose(self) -> None:
        await self._inner.aclose()


def escape(text: bytes) -> tuple[bytes, bytes]:
    """Escape line separators in UTF-8 JSON; the second value is the end that may be the beginning of one."""
    held = next((start for start in _BEGINNINGS if text.endswith(start)), b"")
    whole = text[: len(text) - len(held)]
    for separator, escaped in _ESCAPES.items():
        whole = whole.replace(separator, escaped)
    return whole, held
