"""Passages: the pieces of a text that a search finds and shows. Pure."""

from collections.abc import Iterator

from khala.domain.search_terms import is_unspaced

MAX_TOKENS = 400
"""Tokens of one passage, estimated: a token has four characters, or one of a script that is written without spaces."""
CHARACTERS_PER_TOKEN = 4
BREAKS = ("\n\n", "\n", ". ", "。", " ")
"""Where a passage may end, the best place first. It ends in its last third, or anywhere if there is no such place."""


def passages(text: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each passage. Joined, the passages are the text."""
    start = 0
    while start < len(text):
        end = _last_end(text, start)
        if end < len(text):
            end = _break(text, start + (end - start) * 2 // 3, end)
        yield start, end
        start = end


def _last_end(text: str, start: int) -> int:
    """The end of a passage that has as many tokens as it may have."""
    limit = min(len(text), start + MAX_TOKENS * CHARACTERS_PER_TOKEN)
    if text[start:limit].isascii():
        return limit
    quarters = 0
    for position in range(start, limit):
        quarters += CHARACTERS_PER_TOKEN if is_unspaced(text[position]) else 1
        if quarters > MAX_TOKENS * CHARACTERS_PER_TOKEN:
            return position
    return limit


def _break(text: str, first: int, last: int) -> int:
    for mark in BREAKS:
        at = text.rfind(mark, first, last)
        if at >= 0:
            return at + len(mark)
    return last
