"""The feed of a thread as server-sent events: `id:` is the revision, and `Last-Event-ID` resumes."""

from collections.abc import AsyncIterator
from contextlib import aclosing
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
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event, stream_response
from khala.api.threads.feed_reader import read_frames
from khala.domain.access import Authorization, Caller
from khala.domain.frames import MAX_REVISION
from khala.live.service import LiveService
from khala.signals.metrics import EVENT_STREAMS

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")

After = Annotated[
    int | None,
    QueryParameter(
        ge=0,
        le=MAX_REVISION,
        schema_extra={"minimum": 0},  # Litestar omits a bound of 0
        description="The revision that you have. `Last-Event-ID` takes precedence.",
    ),
]
LastEventId = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        description="The revision that you have. Browsers send it on reconnect. Any other value gets a snapshot.",
    ),
]
EVENTS = ResponseSpec(
    data_container=str,
    media_type="text/event-stream",
    generate_examples=False,
    description="Frames as events. `data` is a `snapshot`, `delta` or `gone` frame, and `id` is the revision after it.",
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
    """Send the thread's snapshot, or the changes after a revision, and then each change when it is committed."""
    authorization = await context.live.threads.authorize(context.db, thread_id, caller)
    revision = _revision(last_event_id) if last_event_id else after
    return stream_response(_events(context.live, thread_id, revision, authorization))


def _revision(last_event_id: str) -> int | None:
    """Return the revision; None if the header is not one.

    An error would not help: the browser cannot correct the header, and would stop reconnecting.
    """
    valid = last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= len(str(MAX_REVISION))
    return min(int(last_event_id), MAX_REVISION) if valid else None


async def _events(
    live: LiveService, thread_id: UUID, after: int | None, authorization: Authorization
) -> AsyncIterator[str]:
    """Encode frames and keep-alives, up to the `gone` frame: the only frame without a revision."""
    EVENT_STREAMS.inc()
    try:
        async with aclosing(read_frames(live, thread_id, after, authorization)) as frames:
            async for frame in frames:
                if frame is None:
                    yield KEEP_ALIVE
                    continue
                yield encode_event(frame.body.text, frame.revision)
                if frame.revision is None:
                    return
    finally:
        EVENT_STREAMS.dec()
