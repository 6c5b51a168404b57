"""Results of tools: short output is a part of the result, long output goes to the sink."""

from typing import Any

import msgspec

from khala.tools.port import CallResult, Sink

MAX_INLINE_BYTES = 2048
"""Bytes of output that a result itself holds. Longer output goes to the sink, and becomes a blob if necessary."""
CHUNK_BYTES = 64 * 1024


async def text_result(
    sink: Sink, text: str, summary: str | None = None, *, max_inline_bytes: int = MAX_INLINE_BYTES
) -> CallResult:
    """A result whose output is this text."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_inline_bytes:
        return CallResult(output=text, summary=summary)
    return await bytes_result(sink, encoded, "text/plain; charset=utf-8", summary)


async def json_result(
    sink: Sink, value: Any, summary: str | None = None, *, max_inline_bytes: int = MAX_INLINE_BYTES
) -> CallResult:
    """A result whose output is this JSON value."""
    encoded = msgspec.json.encode(value)
    if len(encoded) <= max_inline_bytes:
        return CallResult(output=msgspec.to_builtins(value), media_type="application/json", summary=summary)
    return await bytes_result(sink, encoded, "application/json", summary)


async def bytes_result(sink: Sink, content: bytes, media_type: str, summary: str | None = None) -> CallResult:
    """A result whose output is these bytes. They go to the sink, whatever their number."""
    for start in range(0, len(content), CHUNK_BYTES):
        await sink.write(content[start : start + CHUNK_BYTES])
    return CallResult(media_type=media_type, summary=summary)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """The number and the noun, as in `1 line` and `2 lines`. `plural`: that of a noun which takes more than an `s`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"
