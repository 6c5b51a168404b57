"""The parser of server-sent events: the result does not depend on the chunk boundaries, and its memory is bounded."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from khala.models.streaming.sse_parser import EventTooLongError, SseParser

NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.text(alphabet=st.sampled_from('a:"{} \u2028\u0085é👩'), max_size=8)


def read(stream: bytes, places: list[int]) -> list[bytes]:
    """The events of a stream that arrives in chunks, split at these places."""
    events = SseParser()
    cuts = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [event for start, end in pairwise(cuts) for event in events.feed(stream[start:end])]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the events in it: with comments, other fields, several lines of data and all line endings."""
    stream, expected = draw(st.sampled_from(["", "\ufeff"])), []
    for lines in draw(st.lists(st.lists(TEXTS, min_size=1, max_size=3), max_size=5)):
        end = draw(NEWLINES)
        for line in lines:
            stream += draw(st.sampled_from(["", f": keep-alive{end}", f"event: x{end}", f"retry{end}", f"{end}"][:4]))
            space = " " if line.startswith(" ") else draw(st.sampled_from(["", " "]))
            stream += f"data:{space}{line}{end}"
        stream += end * draw(st.integers(1, 3))
        expected.append("\n".join(lines).encode())
    return stream.encode(), expected


@given(streams(), st.lists(st.integers(0, 300), max_size=12))
@example((b"data: a\r\n\r\ndata: b\r\r", [b"a", b"b"]), [8, 9, 10, 11])
def test_the_events_do_not_depend_on_chunk_boundaries(made: tuple[bytes, list[bytes]], places: list[int]) -> None:
    stream, expected = made
    assert read(stream, places) == expected
    assert read(stream, list(range(len(stream)))) == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_any_bytes_give_the_same_events_for_all_chunk_boundaries(stream: bytes, places: list[int]) -> None:
    assert read(stream, places) == read(stream, [])


def test_an_event_ends_with_its_blank_line_and_not_with_the_next_byte() -> None:
    events = SseParser()
    assert list(events.feed(b"data: a\r\r")) == [b"a"]
    assert list(events.feed(b"\ndata: b\n")) == []
    assert list(events.feed(b"\n")) == [b"b"]


def test_an_incomplete_event_at_the_end_is_no_event_but_can_be_inspected() -> None:
    events = SseParser()
    assert list(events.feed(b"data: a\n\ndata: [DO")) == [b"a"]
    assert list(events.feed(b"NE]")) == []
    assert events.rest() == b"[DONE]"
    assert SseParser().rest() == b""


@pytest.mark.parametrize(
    "filler", [b"data: " + b"x" * 7, b"data: xxxxxxx\n", b"data\n", b"x" * 9], ids=["line", "lines", "empty", "unknown"]
)
def test_an_endless_event_is_rejected(filler: bytes) -> None:
    events = SseParser(max_event_bytes=100)
    assert list(events.feed(b"data: before\n\n")) == [b"before"]
    endless = (event for _ in range(101) for event in events.feed(filler))
    with pytest.raises(EventTooLongError, match="100 bytes"):
        next(endless)


def test_events_before_one_that_is_too_long_are_read() -> None:
    read: list[bytes] = []
    with pytest.raises(EventTooLongError):
        read.extend(SseParser(max_event_bytes=20).feed(b"data: a\n\ndata: " + b"x" * 30))
    assert read == [b"a"]


def test_the_limit_applies_to_one_event_and_not_to_the_stream() -> None:
    events = SseParser(max_event_bytes=40)
    for cut in range(1, 30):
        pieces = (b"data: " + b"x" * 20 + b"\r\n", b": and a comm", b"ent\r\n\r\n"[:7], b"\n")
        assert [found for piece in pieces for found in events.feed(piece)] == [b"x" * 20], cut
