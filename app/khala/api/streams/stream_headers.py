"""Headers of the Durable Streams protocol: their names, and what requests say in them."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from khala.domain.errors import InvalidInput
from khala.domain.stored_times import is_storable
from khala.domain.streams import offsets, stream_names
from khala.domain.streams.content import media_type
from khala.domain.streams.producers import MAX_PRODUCER_NUMBER, ProducerClaim
from khala.store.streams.creation import ForkSource, NewStream

NEXT_OFFSET = "Stream-Next-Offset"
UP_TO_DATE = "Stream-Up-To-Date"
CLOSED = "Stream-Closed"
CURSOR = "Stream-Cursor"
TTL = "Stream-TTL"
EXPIRES_AT = "Stream-Expires-At"
WRITER_SEQ = "Stream-Seq"
FORKED_FROM = "Stream-Forked-From"
FORK_OFFSET = "Stream-Fork-Offset"
FORK_SUB_OFFSET = "Stream-Fork-Sub-Offset"
PRODUCER_ID = "Producer-Id"
PRODUCER_EPOCH = "Producer-Epoch"
PRODUCER_SEQ = "Producer-Seq"
EXPECTED_SEQ = "Producer-Expected-Seq"
RECEIVED_SEQ = "Producer-Received-Seq"
EVENT_ENCODING = "stream-sse-data-encoding"

REQUEST_HEADERS = (
    "If-None-Match", CLOSED, TTL, EXPIRES_AT, WRITER_SEQ, FORKED_FROM, FORK_OFFSET, FORK_SUB_OFFSET,
    PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ,
)  # fmt: skip
"""Headers that pages of other origins may send."""
RESPONSE_HEADERS = (
    "ETag", "Location", NEXT_OFFSET, UP_TO_DATE, CLOSED, CURSOR, TTL, EXPIRES_AT, PRODUCER_EPOCH, PRODUCER_SEQ,
    EXPECTED_SEQ, RECEIVED_SEQ, EVENT_ENCODING,
)  # fmt: skip
"""Headers that pages of other origins may read."""
MAX_TTL_SECONDS = 10 * 366 * 86_400
MAX_HEADER_CHARACTERS = 256
"""Characters of a producer's id and of `Stream-Seq`."""
_WHOLE = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)

Headers = Mapping[str, str]


def closes(headers: Headers) -> bool:
    """Whether the request closes the stream. Any other value than `true` counts as none."""
    return headers.get(CLOSED, "").lower() == "true"


def new_stream(headers: Headers, name: str, body: bytes) -> NewStream:
    """Return the stream that the request creates. Raises `InvalidInput`."""
    ttl, expires_at = _ttl(headers), _expires_at(headers)
    if ttl is not None and expires_at is not None:
        raise InvalidInput(f"Send {TTL} or {EXPIRES_AT}, not both.", path=TTL)
    content_type = headers.get("content-type") or None
    if content_type is not None:
        media_type(content_type)
    return NewStream(
        name=name,
        content_type=content_type,
        body=body,
        ttl_seconds=ttl,
        expires_at=expires_at,
        closed=closes(headers),
        source=_source(headers),
    )


def claim(headers: Headers) -> ProducerClaim | None:
    """Return the append's producer, epoch and sequence number, if it has them. Raises `InvalidInput`."""
    names = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)
    sent = [name for name in names if name in headers]
    if not sent:
        return None
    if len(sent) != len(names):
        raise InvalidInput(f"Send {', '.join(names)} together.", path=sent[0])
    producer = headers[PRODUCER_ID]
    if not producer or len(producer) > MAX_HEADER_CHARACTERS:
        raise InvalidInput(f"{PRODUCER_ID} has 1 to {MAX_HEADER_CHARACTERS} characters.", path=PRODUCER_ID)
    return ProducerClaim(
        producer,
        _whole(headers, PRODUCER_EPOCH, MAX_PRODUCER_NUMBER),
        _whole(headers, PRODUCER_SEQ, MAX_PRODUCER_NUMBER),
    )


def writer_seq(headers: Headers) -> bytes | None:
    """Return the request's `Stream-Seq`, if it has one. Raises `InvalidInput`."""
    value = headers.get(WRITER_SEQ)
    if value is not None and len(value) > MAX_HEADER_CHARACTERS:
        raise InvalidInput(f"{WRITER_SEQ} has at most {MAX_HEADER_CHARACTERS} characters.", path=WRITER_SEQ)
    return None if value is None else value.encode("latin-1", errors="replace")


def format_time(moment: datetime) -> str:
    """Return the time as in `Stream-Expires-At`."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _ttl(headers: Headers) -> int | None:
    return _whole(headers, TTL, MAX_TTL_SECONDS) if TTL in headers else None


def _expires_at(headers: Headers) -> datetime | None:
    value = headers.get(EXPIRES_AT)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if not is_storable(moment) or "T" not in value.upper():
            raise ValueError("no time zone, or out of range")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{EXPIRES_AT} must be like 2030-01-31T12:00:00Z.", path=EXPIRES_AT) from error


def _source(headers: Headers) -> ForkSource | None:
    source = headers.get(FORKED_FROM)
    if source is None:
        alone = next((name for name in (FORK_OFFSET, FORK_SUB_OFFSET) if name in headers), None)
        if alone is not None:
            raise InvalidInput(f"{alone} needs {FORKED_FROM}.", path=alone)
        return None
    offset = offsets.parse_offset(headers[FORK_OFFSET]) if FORK_OFFSET in headers else None
    sub_offset = _whole(headers, FORK_SUB_OFFSET, offsets.MAX_POSITION) if FORK_SUB_OFFSET in headers else None
    if sub_offset and offset is None:
        raise InvalidInput(f"{FORK_SUB_OFFSET} needs {FORK_OFFSET}.", path=FORK_SUB_OFFSET)
    return ForkSource(stream_names.source_name(source), offset, sub_offset)


def _whole(headers: Headers, name: str, maximum: int) -> int:
    value = headers[name]
    if not _WHOLE.fullmatch(value) or int(value) > maximum:
        raise InvalidInput(f"{name} must be a whole number from 0 to {maximum}.", path=name)
    return int(value)
