"""Contents of streams: JSON messages and bytes, how a chunk of them is cut, and how they are sent as events."""

import re
from base64 import b64encode
from collections.abc import Sequence

import msgspec

from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.json_bodies import check_containers

DEFAULT_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
MAX_TYPE_CHARACTERS = 200
MAX_MESSAGES = 100_000
"""JSON messages of one append. A read that begins within the append has to find them all again."""
_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+", re.ASCII)
_LINE_END = re.compile(r"\r\n|\r|\n")


class StreamChunk(msgspec.Struct, frozen=True):
    """Consecutive contents of a stream from `position` on. JSON messages are joined by commas."""

    position: int
    length: int
    data: bytes

    @property
    def end(self) -> int:
        """The position after the chunk."""
        return self.position + self.length


def media_type(content_type: str) -> str:
    """Return the media type in lower case, without parameters. Raises `InvalidInput`."""
    bare = content_type.partition(";")[0].strip().lower()
    if len(content_type) > MAX_TYPE_CHARACTERS or not _TYPE.fullmatch(bare):
        raise InvalidInput("Content-Type must be a media type, such as application/json.", path="Content-Type")
    return bare


def is_json(content_type: str) -> bool:
    """Whether a stream of this type has messages, and not bytes."""
    return media_type(content_type) == JSON_TYPE


def is_text(content_type: str) -> bool:
    """Whether contents of this type are sent as text in events. Others are sent in Base64."""
    return is_json(content_type) or media_type(content_type).startswith("text/")


def encode_chunk(content_type: str, body: bytes, position: int = 0) -> StreamChunk:
    """Return the body as a chunk at this position; an empty JSON array makes an empty chunk.

    Raises `InvalidInput` for a body that is not valid JSON, and `PayloadTooLarge` for one that takes long to decode.
    """
    if not is_json(content_type):
        return StreamChunk(position, len(body), body)
    messages = _messages(body)
    return StreamChunk(position, len(messages), b",".join(messages))


def _messages(body: bytes) -> list[bytes]:
    """Return the messages of a JSON body: the items of an array, or else the one value."""
    check_containers(body)
    try:
        msgspec.json.decode(body)
        raw = msgspec.json.decode(body, type=list[msgspec.Raw]) if body.lstrip()[:1] == b"[" else [body]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The body is not valid JSON: {error}.") from error
    if len(raw) > MAX_MESSAGES:
        raise PayloadTooLarge(f"An append has at most {MAX_MESSAGES:,} messages.")
    return [bytes(message).strip() for message in raw]


def cut(content_type: str, chunk: StreamChunk, first: int, end: int) -> StreamChunk:
    """Return the part of the chunk from position `first` to `end`, as far as the chunk has it."""
    start, stop = max(first, chunk.position), min(end, chunk.end)
    if (start, stop) == (chunk.position, chunk.end):
        return chunk
    within = slice(start - chunk.position, stop - chunk.position)
    if is_json(content_type):
        messages = msgspec.json.decode(b"[%b]" % chunk.data, type=list[msgspec.Raw])
        data = b",".join(map(bytes, messages[within]))
    else:
        data = chunk.data[within]
    return StreamChunk(start, max(0, stop - start), data)


def response_body(content_type: str, chunks: Sequence[StreamChunk]) -> bytes:
    """Return the chunks as a response body: a JSON array of the messages, or the bytes."""
    if is_json(content_type):
        return b"[%b]" % b",".join(chunk.data for chunk in chunks)
    return b"".join(chunk.data for chunk in chunks)


def incomplete_suffix(content_type: str, data: bytes) -> int:
    """Return how many bytes at the end of the text begin a character that has not arrived whole."""
    if is_json(content_type) or not is_text(content_type):
        return 0
    for length in range(1, min(4, len(data) + 1)):
        byte = data[-length]
        if byte >= 0b1100_0000:
            needed = 2 if byte < 0b1110_0000 else 3 if byte < 0b1111_0000 else 4
            return length if needed > length else 0
        if byte < 0b1000_0000:
            return 0
    return 0


def event_lines(content_type: str, body: bytes) -> str:
    """Return the `data:` lines of a response body in an event. Line ends of the text separate the lines."""
    text = body.decode(errors="replace") if is_text(content_type) else b64encode(body).decode()
    # Clients remove one space after the colon.
    return "\n".join(f"data: {line}" if line.startswith(" ") else f"data:{line}" for line in _LINE_END.split(text))
