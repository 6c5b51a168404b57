"""Reads the feed of one thread for a response that streams it."""

import asyncio
from collections.abc import AsyncGenerator
from uuid import UUID

from khala.domain.access import Authorization
from khala.live.observer import OutgoingFrame
from khala.live.service import LiveService

KEEP_ALIVE_INTERVAL_SECONDS = 15.0
"""After so long without a frame, the reader yields None, so that the response sends a keep-alive."""


async def read_frames(
    live: LiveService, thread_id: UUID, after: int | None, authorization: Authorization
) -> AsyncGenerator[OutgoingFrame | None]:
    """Yield the frames of the thread after a revision, in order, and None for a keep-alive.

    Use it with `aclosing`: closing it ends the subscription.
    """
    observer = live.create_observer()
    # One frame at a time leaves the observer's outbox, which bounds the memory that a slow reader takes.
    ready: asyncio.Queue[OutgoingFrame] = asyncio.Queue(1)
    live.threads.subscribe(observer, thread_id, after, authorization)
    pump = asyncio.create_task(observer.pump(ready.put))
    try:
        while True:
            yield await _next_frame(ready, pump)
    finally:
        live.close(observer)
        pump.cancel()
        await asyncio.wait({pump})


async def _next_frame(ready: asyncio.Queue[OutgoingFrame], pump: "asyncio.Task[None]") -> OutgoingFrame | None:
    """Return the next frame, or None if none arrives in time. Raises the pump's error if it has failed."""
    try:
        async with asyncio.timeout(KEEP_ALIVE_INTERVAL_SECONDS):
            return await ready.get()
    except TimeoutError:
        if pump.done():
            pump.result()
        return None
