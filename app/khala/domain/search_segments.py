"""Segments: consecutive messages of a thread with one signature, the unit in which searches skip messages. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from khala.domain import search_terms
from khala.domain.passages import passages
from khala.domain.search_signatures import signature

MAX_MESSAGES = 16
"""Messages of one segment."""
MAX_CHARACTERS = 8_000
"""Characters of one segment. The segment that exceeds them ends there."""
MAX_MESSAGE_CHARACTERS = 32_000
"""Characters of a message that are searched: those at its beginning."""


class MessageText(msgspec.Struct, frozen=True):
    """The text of a message, and the message's position in its thread."""

    position: int
    text: str


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The messages from `first_position` to `last_position`, or a piece of one long message.

    `piece` counts the segments that begin in the same message.
    """

    first_position: int
    last_position: int
    piece: int
    signature: bytes


def cut(messages: Iterable[MessageText]) -> Iterator[Segment]:
    """The segments of messages in the order of their positions. A message without text is in no segment."""
    pieces: dict[int, int] = {}
    open_texts: list[MessageText] = []
    for passage in _passages(messages):
        if open_texts and _is_full(open_texts, passage.position):
            yield _segment(open_texts, pieces)
            open_texts.clear()
        open_texts.append(passage)
    if open_texts:
        yield _segment(open_texts, pieces)


def _passages(messages: Iterable[MessageText]) -> Iterator[MessageText]:
    for message in messages:
        text = message.text[:MAX_MESSAGE_CHARACTERS]
        for start, end in passages(text):
            yield MessageText(message.position, text[start:end])


def _is_full(texts: Sequence[MessageText], position: int) -> bool:
    if sum(len(text.text) for text in texts) >= MAX_CHARACTERS:
        return True
    positions = {text.position for text in texts}
    return position not in positions and len(positions) == MAX_MESSAGES


def _segment(texts: Sequence[MessageText], pieces: dict[int, int]) -> Segment:
    first = texts[0].position
    pieces[first] = pieces.get(first, -1) + 1
    terms = {term for text in texts for term in search_terms.terms(text.text, limit=len(text.text))}
    return Segment(
        first_position=first, last_position=texts[-1].position, piece=pieces[first], signature=signature(terms)
    )
