"""Follows one run: its parts in order, each once, as they are committed, until it has ended."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from khala.api.context import Context
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import Forbidden
from khala.domain.parts import Part
from khala.live.observer import OutgoingFrame
from khala.store.runs import parts, runs

SILENCE = 15.0
"""Seconds after which somebody who waits is shown that all is well."""
PAGE = 1000
"""Parts that one read brings."""

News: TypeAlias = Sequence[Part]
"""Parts that belong together; none for a sign of life."""


class Frame(msgspec.Struct, frozen=True, rename="camel"):
    """What is needed of a frame of the feed."""

    type: str
    parts: tuple[Part, ...] = ()
    code: str = ""


decoder = msgspec.json.Decoder(Frame)


async def follow(context: Context, sent: SendResult, caller: Caller) -> AsyncGenerator[News]:
    """The run's parts, from the first to its finish. Raises `Forbidden` or `RunNotFound` where they can't be seen."""
    hub = context.live.threads
    authorization = await hub.authorize(context.db, sent.thread_id, caller)
    client = context.live.create_observer()
    # One frame at a time leaves the client's outbox, so what is held for a slow reader stays bounded there.
    ready: asyncio.Queue[OutgoingFrame] = asyncio.Queue(1)
    hub.subscribe(client, sent.thread_id, sent.revision, authorization)
    pump = asyncio.create_task(client.pump(ready.put))
    try:
        async with aclosing(_news(context, sent, caller, ready, pump)) as news:
            async for found in news:
                yield found
    finally:
        context.live.close(client)
        pump.cancel()
        await asyncio.wait({pump})


async def _news(
    context: Context, sent: SendResult, caller: Caller, ready: asyncio.Queue[OutgoingFrame], pump: "asyncio.Task[None]"
) -> AsyncGenerator[News]:
    seq = 0
    while True:
        frame = await _next(ready, pump)
        if frame is None:
            yield ()
            continue
        found: News = [part for part in frame.parts if part.run_id == sent.run_id and part.seq >= seq]
        if frame.type != "delta" or (found and found[0].seq != seq):
            # The feed has skipped what was too much for it, or the thread was emptied; the tables know.
            found = await _stored(context, sent, caller, seq)
        if found:
            yield found
            seq = found[-1].seq + 1
            if found[-1].kind == "finish":
                return


async def _stored(context: Context, sent: SendResult, caller: Caller, seq: int) -> News:
    """All parts from this one on."""
    found: list[Part] = []
    async with context.db.snapshot() as driver:
        await runs.admit(driver, sent.run_id, caller)
        while True:
            page = await parts.of_run(driver, sent.thread_id, sent.run_id, after=seq + len(found) - 1, limit=PAGE)
            found += page
            if len(page) < PAGE:
                return found


async def _next(ready: asyncio.Queue[OutgoingFrame], pump: "asyncio.Task[None]") -> Frame | None:
    """The next frame; None after a while without one."""
    try:
        async with asyncio.timeout(SILENCE):
            out = await ready.get()
    except TimeoutError:
        if pump.done():
            pump.result()
        return None
    frame = decoder.decode(out.body.data)
    if frame.type == "gone":
        raise Forbidden("The thread of this answer is not open to you any more.")
    return frame
