"""What a tool of ours says: briefly in the result itself, at length through the sink."""

from typing import Any

import msgspec

from khala.tools.port import CallContext, CallResult

SHORT = 2048
"""Bytes that a result holds itself; what is longer goes to the sink, and becomes a blob where it has to."""
CHUNK = 64 * 1024


async def text(call: CallContext, said: str, summary: str) -> CallResult:
    """The result that says this text."""
    encoded = said.encode("utf-8", "replace")
    if len(encoded) <= SHORT:
        return CallResult(output=said, summary=summary)
    return await _at_length(call, encoded, "text/plain; charset=utf-8", summary)


async def json(call: CallContext, value: Any, summary: str) -> CallResult:
    """The result that is this JSON."""
    encoded = msgspec.json.encode(value)
    if len(encoded) <= SHORT:
        return CallResult(output=msgspec.to_builtins(value), media_type="application/json", summary=summary)
    return await _at_length(call, encoded, "application/json", summary)


async def _at_length(call: CallContext, encoded: bytes, media_type: str, summary: str) -> CallResult:
    for start in range(0, len(encoded), CHUNK):
        await call.sink.write(encoded[start : start + CHUNK])
    return CallResult(media_type=media_type, summary=summary)


def counted(number: int, thing: str) -> str:
    """The number and the thing, as in `1 line` and `2 lines`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
