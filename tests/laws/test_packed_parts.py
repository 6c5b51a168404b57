"""Laws of packed parts: what was packed is unpacked again, and a change of anything that it needs is detected."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain import packed_parts
from khala.domain.fold import Content, TextBlock, fold, text_of
from khala.domain.packed_parts import COMPRESSED, PackedParts, check_layout, digest, pack, plain_layout, unpack
from khala.domain.parts import Finish, Part, PartData, ReasoningDelta, Step, TextDelta, TokenUsage, encode, json_text
from tests.laws.test_fold import parts as part_data

RUN, MESSAGE = UUID(int=1), UUID(int=2)
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
sequences = st.lists(part_data.filter(lambda data: data is not None), max_size=30)
waits = st.integers(-5_000, 100_000_000)


def stored(data: list[PartData], waited: list[int] | None = None) -> list[Part]:
    """These parts as rows, the nth so many microseconds after the one before."""
    found, at = [], START
    for seq, one in enumerate(data):
        at += timedelta(microseconds=waited[seq] if waited else 350_123)
        kind, text = encode(one)
        raw = msgspec.Raw(text.encode())
        found.append(Part(run_id=RUN, message_id=MESSAGE, seq=seq, kind=kind, data=raw, created_at=at))
    return found


def finish_of(data: list[PartData]) -> str | None:
    """The finish as its message stores it: that of the last part."""
    return json_text(data[-1]) if data and isinstance(data[-1], Finish) else None


def unpacked(packed: PackedParts, content: Content, finish: str | None) -> list[Part]:
    return unpack(packed, run_id=RUN, message_id=MESSAGE, content=content, finish=finish)


def facts(parts: list[Part]) -> list[tuple[int, str, bytes]]:
    return [(part.seq, part.kind, bytes(part.data)) for part in parts]


@given(sequences, st.data())
def test_unpacked_parts_are_those_that_were_packed(data: list[PartData], draw: st.DataObject) -> None:
    waited = draw.draw(st.lists(waits, min_size=len(data), max_size=len(data)))
    before, content, finish = stored(data, waited), fold((), data), finish_of(data)
    packed = pack(before, content, finish)
    check_layout(packed.layout)
    after = unpacked(packed, content, finish)
    assert facts(after) == facts(before)
    assert fold((), [part.read() for part in after]) == content
    assert packed.digest == digest(after)
    for one, other in zip(before, after, strict=True):
        assert abs(one.created_at - other.created_at) <= timedelta(milliseconds=0.5)


@given(sequences, st.lists(st.builds(TextBlock, text=st.text(max_size=20)), max_size=3))
def test_parts_whose_text_is_not_that_of_the_content_keep_it(data: list[PartData], other: list[TextBlock]) -> None:
    before = stored(data)
    packed = pack(before, tuple(other), None)
    assert facts(unpacked(packed, tuple(other), None)) == facts(before)


@given(sequences, st.data())
def test_a_changed_character_of_the_content_changes_the_digest(data: list[PartData], draw: st.DataObject) -> None:
    content = fold((), data)
    packed = pack(stored(data), content, None)
    texts = [(place, block) for place, block in enumerate(content) if isinstance(block, TextBlock)]
    if not texts:
        return
    place, block = draw.draw(st.sampled_from(texts))
    at = draw.draw(st.integers(0, len(block.text) - 1))
    changed = block.text[:at] + ("a" if block.text[at] != "a" else "b") + block.text[at + 1 :]
    damaged = (*content[:place], TextBlock(text=changed), *content[place + 1 :])
    assert digest(unpacked(packed, damaged, None)) != packed.digest


@given(sequences, st.data())
def test_a_lost_exchanged_or_repeated_part_changes_the_digest(data: list[PartData], draw: st.DataObject) -> None:
    before = stored(data)
    chosen = draw.draw(st.lists(st.sampled_from(before), max_size=len(before))) if before else []
    assert (digest(chosen) == digest(before)) == (facts(chosen) == facts(before))


def test_text_is_stored_as_lengths_and_the_finish_as_a_reference() -> None:
    finish = Finish(reason="stop", usage=TokenUsage(input_tokens=7))
    data: list[PartData] = [*(TextDelta(text=f"word{n} and some more words of the answer ") for n in range(25)), finish]
    packed = pack(stored(data), fold((), data), json_text(finish))
    assert b"word" not in plain_layout(packed.layout)
    assert b"stop" not in plain_layout(packed.layout)
    assert len(plain_layout(packed.layout)) < 6 * len(data)


def test_a_layout_is_compressed_and_an_uncompressed_one_is_read() -> None:
    data: list[PartData] = [
        Step(step=1, max_steps=20, tool_count=4),
        *(TextDelta(text="Some text. ") for _ in range(14)),
    ]
    before, content = stored(data), fold((), data)
    packed = pack(before, content, None)
    plain = msgspec.structs.replace(packed, layout=plain_layout(packed.layout))
    assert packed.layout.startswith(COMPRESSED)
    assert len(packed.layout) < 0.6 * len(plain.layout)
    assert not plain.layout.startswith(COMPRESSED)
    assert facts(unpacked(plain, content, None)) == facts(before)


def test_a_compressed_layout_that_would_expand_without_a_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data: list[PartData] = [TextDelta(text="Some text. ") for _ in range(50)]
    layout = pack(stored(data), fold((), data), None).layout
    monkeypatch.setattr(packed_parts, "MAX_COMPRESSED_BYTES", len(plain_layout(layout)) - 1)
    with pytest.raises(msgspec.DecodeError):
        check_layout(layout)
    assert not pack(stored(data), fold((), data), None).layout.startswith(COMPRESSED), "a large one is stored as it is"


def test_reasoning_is_stored_because_no_content_has_it() -> None:
    data: list[PartData] = [ReasoningDelta(text="Perhaps."), TextDelta(text="Yes.")]
    packed = pack(stored(data), fold((), data), None)
    assert b"Perhaps." in plain_layout(packed.layout)
    assert b"Yes." not in plain_layout(packed.layout)


def test_data_of_a_later_version_is_stored_as_it_is() -> None:
    part = stored([TextDelta(text="Yes.")])[0]
    later = msgspec.structs.replace(part, data=msgspec.Raw(b'{"text": "Yes.", "language": "en"}'))
    packed = pack([later], fold((), [later.read()]), None)
    assert facts(unpacked(packed, (TextBlock(text="Yes."),), None)) == facts([later])


@pytest.mark.parametrize(
    "layout",
    [
        b"",
        b"nothing",
        COMPRESSED,
        COMPRESSED + b"nothing",
        msgspec.msgpack.encode([[1, 2], [1]]),
        msgspec.msgpack.encode([[-1], [1]]),
        msgspec.msgpack.encode([[1], [1 << 62]]),
        msgspec.msgpack.encode([[1], [-1]]),
        msgspec.msgpack.encode([[["text-delta"]], [1]]),
    ],
)
def test_an_impossible_layout_is_refused(layout: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ValueError)):
        check_layout(layout)


def test_a_content_that_has_lost_its_text_unpacks_to_less_text() -> None:
    data: list[PartData] = [TextDelta(text="Some "), TextDelta(text="text.")]
    packed = pack(stored(data), fold((), data), None)
    after = unpacked(packed, (TextBlock(text="Some"),), None)
    assert text_of(fold((), [part.read() for part in after])) == "Some"
    assert digest(after) != packed.digest
