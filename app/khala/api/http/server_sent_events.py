"""Encodes server-sent events and wraps them in a response."""

from collections.abc import AsyncIterator

from litestar.response import Stream

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Keep caches and reverse proxies from buffering the stream."""
KEEP_ALIVE = ": ping\n\n"
"""A comment, which clients ignore."""


def encode_event(data: str, event_id: int | str | None = None, kind: str | None = None) -> str:
    """Return an event with one line of data, and with its type if it has one."""
    identifier = "" if event_id is None else f"id: {event_id}\n"
    identifier += "" if kind is None else f"event: {kind}\n"
    return f"{identifier}data: {data}\n\n"


def stream_response(events: AsyncIterator[str], headers: dict[str, str] | None = None) -> Stream:
    """Return a response that sends the encoded events. The client's socket exerts the backpressure."""
    return Stream(events, media_type=MEDIA_TYPE, headers=HEADERS | (headers or {}))
