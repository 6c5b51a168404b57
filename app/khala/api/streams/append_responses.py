"""Responses to appends."""

from typing import Any, assert_never

from litestar import Response

from khala.api.http.problem_details import limit_response, problem_response
from khala.api.streams import stream_headers as names
from khala.domain.errors import RateLimited, ReachedLimit
from khala.domain.streams import offsets
from khala.domain.streams.appends import (
    Accepted,
    AlreadyStored,
    AppendConflict,
    StreamIsClosed,
    StreamIsFull,
    StreamState,
)
from khala.domain.streams.producers import ProducerState, SequenceGap, StaleEpoch, WrongFirstSequence
from khala.store.streams.append_transaction import StreamAppendResult, TooManyProducers


def append_response(result: StreamAppendResult) -> Response[Any]:
    """Return the response to an append that was decided like this."""
    match result:
        case Accepted():
            status = 204 if result.producer is None or result.chunk is None else 200
            return Response(b"", status_code=status, headers=_headers(result.state, result.producer))
        case AlreadyStored():
            return Response(b"", status_code=204, headers=_headers(result.state, result.producer))
        case StreamIsClosed():
            headers = {names.CLOSED: "true", names.NEXT_OFFSET: offsets.format_offset(result.tail)}
            return problem_response("conflict", "The stream is closed.", headers=headers)
        case _:
            return _refusal(result)


def _refusal(
    result: AppendConflict | StreamIsFull | TooManyProducers | StaleEpoch | SequenceGap | WrongFirstSequence,
) -> Response[Any]:
    match result:
        case AppendConflict():
            return problem_response("conflict", result.message)
        case StreamIsFull():
            return problem_response("payload_too_large", f"A stream has at most {result.max_bytes:,} bytes.")
        case TooManyProducers():
            limit = ReachedLimit("producers", "stream", result.max_producers)
            message = f"A stream has at most {result.max_producers:,} producers."
            return limit_response(RateLimited(message, limit=limit))
        case StaleEpoch():
            headers = {names.PRODUCER_EPOCH: str(result.epoch)}
            return problem_response("forbidden", "The producer has a later epoch.", headers=headers)
        case SequenceGap():
            headers = {names.EXPECTED_SEQ: str(result.expected), names.RECEIVED_SEQ: str(result.received)}
            return problem_response("conflict", "An earlier append of the producer is missing.", headers=headers)
        case WrongFirstSequence():
            return problem_response("invalid_input", f"A new epoch begins with {names.PRODUCER_SEQ} 0.")
        case _:
            assert_never(result)


def _headers(state: StreamState, producer: ProducerState | None) -> dict[str, str]:
    headers = {names.NEXT_OFFSET: offsets.format_offset(state.tail)}
    if state.closed:
        headers[names.CLOSED] = "true"
    if producer is not None:
        headers |= {names.PRODUCER_EPOCH: str(producer.epoch), names.PRODUCER_SEQ: str(producer.seq)}
    return headers
