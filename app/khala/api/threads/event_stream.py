"""The feed as server-sent events: `id:` is the revision, and `Last-Event-ID` resumes."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.domain.access import Authorization, Caller
from khala.domain.frames import MAX_REVISION
from khala.live.observer import OutgoingFrame
from khala.live.service import LiveService
from khala.signals.metrics import EVENT_STREAMS

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
SILENCE = 15.0
"""Seconds after which a comment shows that the stream is alive."""

After = Annotated[
    int | None,
    QueryParameter(
        ge=0,
        le=MAX_REVISION,
        schema_extra={"minimum": 0},  # Litestar takes a bound of 0 for none
        description="The revision that you have. `Last-Event-ID` goes before it.",
    ),
]
LastEventId = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        description="The revision that you have, as browsers send it on their own. Anything else gets a snapshot.",
    ),
]
EVENTS = ResponseSpec(
    data_container=str,
    media_type="text/event-stream",
    generate_examples=False,
    description="Frames as events: `data` is a `snapshot`, `delta` or `gone` frame, `id` the revision after it.",
)


@get(
    "/threads/{thread_id:uuid}/events",
    tags=["Feed"],
    operation_id="followThread",
    summary="Follow a thread",
    security=BY_KEY,
    responses=documented_errors(*DENIED) | {200: EVENTS},
)
async def events(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    thread_id: ThreadId,
    after: After = None,
    last_event_id: LastEventId = None,
) -> Stream:
    """The thread's snapshot, or what changed after a revision, and then every change as it is committed."""
    authorization = await context.live.threads.authorize(context.db, thread_id, caller)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    resumed = _revision(last_event_id) if last_event_id else after
    return Stream(
        _follow(context.live, thread_id, resumed, authorization), media_type="text/event-stream", headers=headers
    )


def _revision(last_event_id: str) -> int | None:
    """The revision; None for anything else, because a browser can't mend what it sends and gives up at an error."""
    known = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= len(str(MAX_REVISION))
    return min(int(last_event_id), MAX_REVISION) if known else None


async def _follow(
    live: LiveService, thread_id: UUID, after: int | None, authorization: Authorization
) -> AsyncIterator[str]:
    client = live.create_observer()
    # One frame at a time leaves the client's outbox, so what is held for a slow reader stays bounded there.
    ready: asyncio.Queue[OutgoingFrame] = asyncio.Queue(1)
    live.threads.subscribe(client, thread_id, after, authorization)
    pump = asyncio.create_task(client.pump(ready.put))
    EVENT_STREAMS.inc()
    try:
        async for out in _frames(ready, pump):
            yield out
    finally:
        EVENT_STREAMS.dec()
        live.close(client)
        pump.cancel()
        await asyncio.wait({pump})


async def _frames(ready: asyncio.Queue[OutgoingFrame], pump: "asyncio.Task[None]") -> AsyncIterator[str]:
    """Events and signs of life, until the thread is gone: the one frame here that has no revision."""
    last = False
    while not last:
        try:
            async with asyncio.timeout(SILENCE):
                out = await ready.get()
        except TimeoutError:
            if pump.done():
                pump.result()
            yield ": ping\n\n"
        else:
            last = out.revision is None
            yield _event(out)


def _event(out: OutgoingFrame) -> str:
    number = "" if out.revision is None else f"id: {out.revision}\n"
    return f"{number}data: {out.body.text}\n\n"
