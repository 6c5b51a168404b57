"""Forks: which stored chunks a stream inherits from the streams that it was forked from."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

MAX_FORK_DEPTH = 16
"""Streams of which one stream may inherit contents."""


class StreamSegment(msgspec.Struct, frozen=True):
    """Contents of one stream up to position `end`, from where the previous segment ends."""

    stream_id: UUID
    end: int


def inherited(source: Sequence[StreamSegment], source_id: UUID, position: int) -> list[StreamSegment]:
    """Return the segments that a fork at this position inherits, of a source that itself has inherited `source`."""
    segments: list[StreamSegment] = []
    for segment in (*source, StreamSegment(source_id, position)):
        if segment.end >= position:
            return [*segments, StreamSegment(segment.stream_id, position)]
        segments.append(segment)
    return segments
