"""Decides about one append: whether it is stored, was stored before, or conflicts with the stream's state."""

from typing import TypeAlias, assert_never

import msgspec

from khala.domain.errors import InvalidInput
from khala.domain.streams import content, producers
from khala.domain.streams.content import StreamChunk
from khala.domain.streams.producers import (
    DuplicateAppend,
    NewAppend,
    ProducerClaim,
    ProducerState,
    SequenceGap,
    StaleEpoch,
    WrongFirstSequence,
)


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a stream that appends depend on."""

    content_type: str
    tail: int
    """The position after the last content."""
    stored_bytes: int
    """The bytes of the stream's own chunks."""
    closed: bool = False
    closed_by: ProducerClaim | None = None
    """The append that has closed the stream, if it had a producer."""
    writer_seq: bytes | None = None
    """The `Stream-Seq` of the last append that had one."""


class StreamAppend(msgspec.Struct, frozen=True, kw_only=True):
    """An append. Without a body it only closes the stream."""

    body: bytes
    content_type: str | None
    close: bool = False
    writer_seq: bytes | None = None
    claim: ProducerClaim | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The append is stored. `chunk` is None if it only closes the stream."""

    state: StreamState
    chunk: StreamChunk | None
    producer: ProducerState | None = None


class AlreadyStored(msgspec.Struct, frozen=True):
    """The append was stored before, or the stream was closed before."""

    state: StreamState
    producer: ProducerState | None = None


class StreamIsClosed(msgspec.Struct, frozen=True):
    """The stream takes no more appends."""

    tail: int


class AppendConflict(msgspec.Struct, frozen=True):
    """The append conflicts with the state of the stream."""

    message: str


class StreamIsFull(msgspec.Struct, frozen=True):
    """The stream has as many bytes as one may have."""

    max_bytes: int


AppendDecision: TypeAlias = (
    Accepted
    | AlreadyStored
    | StreamIsClosed
    | AppendConflict
    | StreamIsFull
    | StaleEpoch
    | SequenceGap
    | WrongFirstSequence
)


def decide(
    state: StreamState, append: StreamAppend, producer: ProducerState | None, *, max_bytes: int
) -> AppendDecision:
    """Decide about an append to a stream with this state. `producer` is the state of the append's producer.

    Raises `InvalidInput` for a body that is not valid JSON, and `PayloadTooLarge` for one with too many messages, in a
    stream of JSON.
    """
    known = None if append.claim is None else producers.decide(producer, append.claim)
    match known:
        case DuplicateAppend(state=accepted):
            return _duplicate(state, append, accepted)
        case StaleEpoch():
            return known
        case _ if state.closed:
            return _closed(state, append)
        case SequenceGap() | WrongFirstSequence():
            return known
        case NewAppend(state=accepted):
            return _store(state, append, accepted, max_bytes)
        case None:
            return _store(state, append, None, max_bytes)
        case _:
            assert_never(known)


def _duplicate(state: StreamState, append: StreamAppend, producer: ProducerState) -> AppendDecision:
    """A closed stream accepts only the repetition of the append that has closed it."""
    if state.closed and append.claim != state.closed_by:
        return StreamIsClosed(state.tail)
    return AlreadyStored(state, producer)


def _closed(state: StreamState, append: StreamAppend) -> AppendDecision:
    if append.close and not append.body and append.claim is None:
        return AlreadyStored(state)
    return StreamIsClosed(state.tail)


def _store(state: StreamState, append: StreamAppend, producer: ProducerState | None, max_bytes: int) -> AppendDecision:
    if append.body and content.media_type(append.content_type or "") != content.media_type(state.content_type):
        return AppendConflict(f"The stream has the content type {state.content_type}.")
    if append.writer_seq is not None and state.writer_seq is not None and append.writer_seq <= state.writer_seq:
        return AppendConflict("Stream-Seq must be larger than that of the last append.")
    chunk = content.encode_chunk(state.content_type, append.body, state.tail) if append.body else None
    if chunk is not None and chunk.length == 0:
        raise InvalidInput("An append has at least one message.")
    size = 0 if chunk is None else len(chunk.data)
    if state.stored_bytes + size > max_bytes:
        return StreamIsFull(max_bytes)
    after = msgspec.structs.replace(
        state,
        tail=state.tail if chunk is None else chunk.end,
        stored_bytes=state.stored_bytes + size,
        closed=append.close,
        closed_by=append.claim if append.close else None,
        writer_seq=state.writer_seq if append.writer_seq is None else append.writer_seq,
    )
    return Accepted(after, chunk, producer)
