"""The feed as server-sent events: `id:` is the revision, and `Last-Event-ID` resumes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import Parameter
from litestar.response import Stream

from app.api.context import Context
from app.api.problems import documented
from app.domain.access import Caller
from app.domain.errors import InvalidInput
from app.domain.frames import MOST_REVISION
from app.live.observer import Out
from app.store import threads

SILENCE = 15.0
"""Seconds after which a comment shows that the stream is alive."""

After = Annotated[int | None, Parameter(ge=0, le=MOST_REVISION, description="The revision that you have; the same as Last-Event-ID.")]
LastEventId = Annotated[str | None, Parameter(header="Last-Event-ID", description="The revision that you have.")]


@get(
    "/threads/{thread_id:uuid}/events",
    tags=["Feed"],
    summary="Follow a thread",
    responses=documented("invalid_input", "forbidden", "thread_not_found", "unavailable")
    | {200: ResponseSpec(data_container=str, media_type="text/event-stream", description="Frames, as events.")},
)
async def events(
    context: Context, caller: Caller, thread_id: UUID, after: After = None, last_event_id: LastEventId = None
) -> Stream:
    """The thread's snapshot, or what changed after a revision, and then every change as it is committed."""
    async with context.db.driver() as driver:
        await threads.authorize(driver, thread_id, caller)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    resumed = _revision(last_event_id) if last_event_id else after
    return Stream(_follow(context, thread_id, resumed), media_type="text/event-stream", headers=headers)


def _revision(last_event_id: str) -> int:
    if last_event_id.isascii() and last_event_id.isdigit() and int(last_event_id[:20]) <= MOST_REVISION:
        return int(last_event_id)
    raise InvalidInput("Last-Event-ID is not a revision.", path="Last-Event-ID")


async def _follow(context: Context, thread_id: UUID, after: int | None) -> AsyncIterator[str]:
    client = context.hub.client()
    # One frame at a time leaves the client's outbox, so what is held for a slow reader stays bounded there.
    ready: asyncio.Queue[Out] = asyncio.Queue(1)
    context.hub.join(client, thread_id, after)
    pump = asyncio.create_task(client.pump(ready.put))
    try:
        while client.subscriptions or not ready.empty():
            yield await _next(ready, pump)
    finally:
        context.hub.close(client)
        pump.cancel()


async def _next(ready: asyncio.Queue[Out], pump: "asyncio.Task[None]") -> str:
    try:
        async with asyncio.timeout(SILENCE):
            out = await ready.get()
    except TimeoutError:
        if pump.done():
            pump.result()
        return ": ping\n\n"
    return _event(out)


def _event(out: Out) -> str:
    number = "" if out.revision is None else f"id: {out.revision}\n"
    return f"{number}data: {out.body}\n\n"


