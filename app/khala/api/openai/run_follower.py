"""Follows one run: yields its parts in order, each once, when they are committed, until the run has ended."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from khala.api.context import Context
from khala.api.threads.feed_reader import read_frames
from khala.domain.access import Caller
from khala.domain.chat import SendResult
from khala.domain.errors import Forbidden
from khala.domain.parts import Part
from khala.live.observer import OutgoingFrame
from khala.store.runs import parts, runs

PAGE_SIZE = 1000
"""Parts that one query reads."""


class FollowedFrame(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a frame of the feed that a follower needs."""

    type: str
    parts: tuple[Part, ...] = ()
    code: str = ""


decoder = msgspec.json.Decoder(FollowedFrame)


async def follow_run(context: Context, sent: SendResult, caller: Caller) -> AsyncGenerator[Sequence[Part]]:
    """Yield the parts of the run that were committed together, and an empty sequence for a keep-alive.

    Raises `Forbidden` or `RunNotFound` if the caller may not see them.
    """
    authorization = await context.live.threads.authorize(context.db, sent.thread_id, caller)
    next_seq = 0
    async with aclosing(read_frames(context.live, sent.thread_id, sent.revision, authorization)) as frames:
        async for outgoing in frames:
            if outgoing is None:
                yield ()
                continue
            new_parts = await _new_parts(context, sent, caller, _decode(outgoing), next_seq)
            if new_parts:
                yield new_parts
                next_seq = new_parts[-1].seq + 1
                if new_parts[-1].kind == "finish":
                    return


def _decode(outgoing: OutgoingFrame) -> FollowedFrame:
    frame = decoder.decode(outgoing.body.data)
    if frame.type == "gone":
        raise Forbidden("You no longer have access to the thread of this answer.")
    return frame


async def _new_parts(
    context: Context, sent: SendResult, caller: Caller, frame: FollowedFrame, next_seq: int
) -> Sequence[Part]:
    """Return the run's parts from `next_seq` on: of this frame, or from the table if the frame does not continue."""
    new_parts = [part for part in frame.parts if part.run_id == sent.run_id and part.seq >= next_seq]
    if frame.type != "delta" or (new_parts and new_parts[0].seq != next_seq):
        # The feed has skipped frames for this slow reader, or the thread was reset.
        return await _stored_parts(context, sent, caller, next_seq)
    return new_parts


async def _stored_parts(context: Context, sent: SendResult, caller: Caller, next_seq: int) -> Sequence[Part]:
    stored: list[Part] = []
    async with context.db.snapshot() as driver:
        await runs.read_authorized(driver, sent.run_id, caller)
        while True:
            after = next_seq + len(stored) - 1
            page = await parts.of_run(driver, sent.thread_id, sent.run_id, after=after, limit=PAGE_SIZE)
            stored += page
            if len(page) < PAGE_SIZE:
                return stored
