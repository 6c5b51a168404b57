"""Packed parts: the parts of an ended run in one value, without the text, which the answer's content has already.

Invariant: `unpack` returns the parts that `pack` was given, with the same seqs, kinds and data. Text is stored as the
lengths of its deltas, and the finish as a reference to the message's own. All other parts are stored as they are. The
digest is a hash chain over all parts, so a later change of the content, the finish or the layout is detected. The
layout is compressed: Postgres compresses no row as small as this.

Times are rounded to milliseconds.
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

import msgspec

from khala.domain.fold import Content, text_of
from khala.domain.parts import KIND_OF, Finish, Part, ReasoningDelta, TextDelta, json_text

TEXT = KIND_OF[TextDelta]
REASONING = KIND_OF[ReasoningDelta]
FINISH = KIND_OF[Finish]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MAX_MILLISECONDS = (datetime(9000, 1, 1, tzinfo=UTC) - EPOCH) // MILLISECOND

MAX_COMPRESSED_BYTES = 16 << 20
"""Bytes of a layout that is compressed. A larger one is stored as it is, so that no layout expands without a bound."""
COMPRESSED = b"\x01"
"""The first byte of a compressed layout. A layout in MessagePack begins with another one."""
WINDOW_BITS = -15
"""Deflate without a header and a checksum: the digest covers the parts."""
DICTIONARY = (
    b'"preview":"","name":"","blob":{"blobId":"","size":,"sha256":"","mediaType":"text/plain"},"reason":"expired",'
    b'"digest":"","expiresAt":"2026-queuedblockedcancelled{"summary":"","messageId":""{"memories":[{"id":"","text":"",'
    b'"score":0.{"code":"","message":"errornoticememorycompaction{"toolCallId":"call_","state":"running"}tool-status'
    b'{"toolCallId":"call_","ok":false,"summary":"","durationMs":1,"output":{"status":200,"text":"tool-result'
    b'{"toolCallId":"call_","ok":true,"summary":"tool-call{"toolCallId":"call_","step":1,"tool":"fetch_url","args":{'
    b'"url":"https://{"path":"{"query":"step{"step":2,"maxSteps":20,"toolCount":,"usage":{"inputTokens":,'
    b'"outputTokens":},"costUsd":"0.00step{"step":1,"maxSteps":20,"toolCount":'
)
"""Text that layouts often contain. It must never change: stored layouts refer to it."""

_Entry: TypeAlias = int | str | tuple[str, str] | None
"""The characters of a text delta, the text of a reasoning delta, the kind and data of another part, or the finish."""


class PackedParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one run: their digest and their layout."""

    digest: bytes
    layout: bytes


class _Layout(msgspec.Struct, frozen=True, array_like=True):
    """The entries of all parts, and the milliseconds from 1970 to the first part, then from each part to the next."""

    entries: tuple[_Entry, ...]
    intervals: tuple[int, ...]


class _Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data that contains a text and nothing else."""

    text: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Layout)
_text_decoder = msgspec.json.Decoder(_Text)


def pack(parts: Sequence[Part], content: Content, finish: str | None) -> PackedParts:
    """Pack these parts of a run from the first on. `content` and `finish` (JSON) are those of its message.

    If the text of the parts is not the text of the content, it is stored once more, so that nothing is lost.
    """
    texts = [_plain_text(part) if part.kind == TEXT else None for part in parts]
    is_whole = "".join(text for text in texts if text is not None) == text_of(content)
    entries = tuple(
        len(text) if is_whole and text is not None else _entry(part, finish)
        for part, text in zip(parts, texts, strict=True)
    )
    return PackedParts(
        digest=digest(parts),
        layout=_compressed(_encoder.encode(_Layout(entries, _intervals([part.created_at for part in parts])))),
    )


def unpack(packed: PackedParts, *, run_id: UUID, message_id: UUID, content: Content, finish: str | None) -> list[Part]:
    """The parts, in order. `content` and `finish` (JSON) are those of the message.

    Raises `msgspec.DecodeError` for a layout that is not readable. If the content is not what it was when the parts
    were packed, their texts differ, and so does their digest.
    """
    layout = _decoder.decode(plain_layout(packed.layout))
    whole, position, time = text_of(content), 0, EPOCH
    parts: list[Part] = []
    for seq, (entry, interval) in enumerate(zip(layout.entries, layout.intervals, strict=False)):
        length = entry if isinstance(entry, int) else 0
        kind, data = _kind_and_data(entry, whole[position : position + length], finish)
        position, time = position + length, time + interval * MILLISECOND
        raw = msgspec.Raw(data.encode())
        parts.append(Part(run_id=run_id, message_id=message_id, seq=seq, kind=kind, data=raw, created_at=time))
    return parts


def check_layout(layout: bytes) -> None:
    """Raise `msgspec.DecodeError` for a layout that is not readable, `ValueError` for impossible values."""
    decoded = _decoder.decode(plain_layout(layout))
    if len(decoded.entries) != len(decoded.intervals):
        raise ValueError("Packed parts need a time each.")
    if any(isinstance(entry, int) and entry < 0 for entry in decoded.entries):
        raise ValueError("A text cannot have a negative length.")
    total = 0
    for interval in decoded.intervals:
        total += interval
        if not 0 <= total < MAX_MILLISECONDS:
            raise ValueError("The time of a packed part is out of range.")


def plain_layout(layout: bytes) -> bytes:
    """The layout in MessagePack. Raises `msgspec.DecodeError` for compressed data that is damaged or too large."""
    if not layout.startswith(COMPRESSED):
        return layout
    decompressor = zlib.decompressobj(WINDOW_BITS, DICTIONARY)
    try:
        plain = decompressor.decompress(layout[len(COMPRESSED) :], MAX_COMPRESSED_BYTES)
    except zlib.error as error:
        raise msgspec.DecodeError("The layout is damaged.") from error
    if not decompressor.eof:
        raise msgspec.DecodeError("The layout is cut off or too large.")
    return plain


def digest(parts: Iterable[Part]) -> bytes:
    """The last hash (SHA-256) of the parts' chain. Each covers a part's seq, kind and data, and the hash before."""
    last = b""
    for part in parts:
        text = _plain_text(part) if part.kind in (TEXT, REASONING) else None
        data = bytes(part.data) if text is None else text.encode()
        last = hashlib.sha256(last + b"%d %s %d " % (part.seq, part.kind.encode(), text is None) + data).digest()
    return last


def _compressed(plain: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=WINDOW_BITS, zdict=DICTIONARY)
    compressed = COMPRESSED + compressor.compress(plain) + compressor.flush()
    return compressed if len(compressed) < len(plain) <= MAX_COMPRESSED_BYTES else plain


def _plain_text(part: Part) -> str | None:
    """The text of a part that has nothing else; None for other data, such as that of a later version."""
    try:
        return _text_decoder.decode(part.data).text
    except msgspec.DecodeError:
        return None


def _entry(part: Part, finish: str | None) -> _Entry:
    data = bytes(part.data).decode()
    if part.kind == FINISH and data == finish:
        return None
    text = _plain_text(part) if part.kind == REASONING else None
    return (part.kind, data) if text is None else text


def _kind_and_data(entry: _Entry, text: str, finish: str | None) -> tuple[str, str]:
    match entry:
        case int():
            return TEXT, json_text(TextDelta(text=text))
        case str():
            return REASONING, json_text(ReasoningDelta(text=entry))
        case None:
            return FINISH, finish or "null"
        case kind, data:
            return kind, data


def _intervals(times: Sequence[datetime]) -> tuple[int, ...]:
    rounded = [(time - EPOCH + MILLISECOND / 2) // MILLISECOND for time in times]
    return tuple(later - earlier for earlier, later in zip([0, *rounded], rounded, strict=False))
