"""Durable streams: offsets sort like positions, appends are stored once, and any cut of a stream is the same stream."""

import base64
import json
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.streams import appends, content, cursors, forks, offsets, producers, stream_names
from khala.domain.streams.appends import Accepted, AlreadyStored, StreamAppend, StreamIsFull, StreamState
from khala.domain.streams.forks import StreamSegment
from khala.domain.streams.producers import ProducerClaim, ProducerState

TYPES = ("application/json", "text/plain; charset=utf-8", "image/png")
OPEN = StreamState(content_type="text/plain", tail=0, stored_bytes=0)


@given(st.lists(st.integers(0, offsets.MAX_POSITION), min_size=2))
def test_offsets_sort_like_their_positions(positions: list[int]) -> None:
    texts = [offsets.format_offset(position) for position in positions]
    assert sorted(texts) == [offsets.format_offset(position) for position in sorted(positions)]
    assert [offsets.parse_offset(text) for text in texts] == positions


@pytest.mark.parametrize("offset", ["", "5", "now", "-2", "0_5", "0" * 16 + "_" + "٣" * 16, "1" * 16 + "_" + "0" * 16])
def test_an_offset_that_no_server_has_returned_is_refused(offset: str) -> None:
    with pytest.raises(InvalidInput):
        offsets.parse_offset(offset)


@given(
    st.floats(1.8e9, 4e9),
    st.one_of(st.none(), st.text(max_size=40), st.integers(0, 10**9).map(str)),
    st.integers(1, 3600),
)
def test_a_cursor_is_never_the_one_that_was_sent_nor_a_smaller_one(now: float, sent: str | None, jitter: int) -> None:
    cursor = cursors.next_cursor(now, sent, jitter)
    assert int(cursor) >= (now - cursors.CURSOR_EPOCH_SECONDS) // cursors.CURSOR_INTERVAL_SECONDS
    if sent and sent.isascii() and sent.isdigit() and len(sent) < 16:
        assert int(cursor) > int(sent) or int(sent) < int(cursors.next_cursor(now, None, jitter))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40))
def test_the_accepted_appends_of_an_epoch_are_numbered_without_a_gap(claims: list[tuple[int, int]]) -> None:
    state, accepted = None, []
    for epoch, seq in claims:
        decided = producers.decide(state, ProducerClaim("p", epoch, seq))
        if isinstance(decided, producers.NewAppend):
            state = decided.state
            accepted.append((epoch, seq))
    assert accepted == sorted(set(accepted)), "each once, and in order"
    for epoch in {each[0] for each in accepted}:
        seqs = [seq for of, seq in accepted if of == epoch]
        assert seqs == list(range(len(seqs)))


@given(st.sampled_from(TYPES), st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8), st.data())
def test_a_stream_that_is_read_in_pieces_is_the_whole_stream(
    content_type: str, texts: list[str], data: st.DataObject
) -> None:
    is_json = content.is_json(content_type)
    body = json.dumps(texts).encode() if is_json else "".join(texts).encode()
    whole = content.encode_chunk(content_type, body, 7)
    cuts = [*sorted(data.draw(st.sets(st.integers(8, whole.end), max_size=4))), whole.end]
    pieces = [content.cut(content_type, whole, first, end) for first, end in zip([7, *cuts], cuts, strict=False)]
    read = content.response_body(content_type, [piece for piece in pieces if piece.length])
    assert json.loads(read) == texts if is_json else read == body


@given(st.text(), st.integers(0, 50))
def test_text_is_held_back_only_within_its_last_character(text: str, cut: int) -> None:
    data = text.encode(errors="replace")[:cut]
    held = content.incomplete_suffix("text/plain", data)
    assert held <= 3
    data[: len(data) - held].decode()


@given(st.text(st.sampled_from(" a\n\r:\u2028é")), st.sampled_from(TYPES))
def test_a_client_that_joins_the_lines_of_an_event_has_its_contents(text: str, content_type: str) -> None:
    lines = content.event_lines(content_type, text.encode()).split("\n")
    assert all(line.startswith("data:") for line in lines)
    joined = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines)
    normalized = text.replace("\r\n", "\n").replace("\r", "\n")
    assert (normalized if content.is_text(content_type) else text) == (
        joined if content.is_text(content_type) else base64.b64decode(joined).decode()
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_a_fork_inherits_each_position_from_the_stream_that_wrote_it(lengths: list[int], data: st.DataObject) -> None:
    segments: list[StreamSegment] = []
    owners: list[UUID] = []
    for number, length in enumerate(lengths):
        stream_id = UUID(int=number + 1)
        owners += [stream_id] * length
        at = data.draw(st.integers(0, len(owners)))
        segments, owners = forks.inherited(segments, stream_id, at), owners[:at]
        start, found = 0, []
        for segment in segments:
            found += [segment.stream_id] * (segment.end - start)
            start = segment.end
        assert found == owners


def test_a_closed_stream_takes_only_the_append_that_has_closed_it() -> None:
    claim = ProducerClaim("p", 0, 0)
    last = StreamAppend(body=b"!", content_type="text/plain", close=True, claim=claim)
    done = appends.decide(OPEN, last, None, max_bytes=10)
    assert isinstance(done, Accepted)
    again = appends.decide(done.state, last, done.producer, max_bytes=10)
    assert again == AlreadyStored(done.state, ProducerState(0, 0))
    other = msgspec.structs.replace(last, claim=None)
    assert appends.decide(done.state, other, None, max_bytes=10) == appends.StreamIsClosed(1)


def test_a_stream_never_has_more_bytes_than_it_may() -> None:
    append = StreamAppend(body=b"12345", content_type="text/plain")
    assert isinstance(appends.decide(OPEN, append, None, max_bytes=5), Accepted)
    assert appends.decide(OPEN, append, None, max_bytes=4) == StreamIsFull(4)


@pytest.mark.parametrize("body", [b"[]", b"{", b"[1,", b"nul", b"[" * 100_000, b'{"a":\x00}', b"[1] [2]", b"\xff"])
def test_a_body_that_is_no_json_message_is_refused(body: bytes) -> None:
    append = StreamAppend(body=body, content_type="application/json")
    with pytest.raises(InvalidInput):
        appends.decide(msgspec.structs.replace(OPEN, content_type="application/json"), append, None, max_bytes=10**6)


@pytest.mark.parametrize("body", [b"[1" + b",1" * 100_000 + b"]", b"[[[]" + b",[]" * 200_000 + b"]]"])
def test_a_body_that_takes_long_to_decode_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        content.encode_chunk("application/json", body)


@pytest.mark.parametrize("name", ["", "/", "a\nb", "a" * 1025, "\ud800"])
def test_a_name_that_no_stream_may_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        stream_names.validated_name(name)


@pytest.mark.parametrize(
    "source", ["", "a", "/v1/streams/a", "/v1/stream/", "http://[::1", "//[", "http://[x]/v1/stream/a"]
)
def test_a_source_that_is_no_path_of_a_stream_is_refused(source: str) -> None:
    with pytest.raises(InvalidInput):
        stream_names.source_name(source)
