"""Terms: the words by which a text is found, in any language. Pure.

A text is split into words; their case, accents and width do not matter. Scripts that write without spaces, and Hangul,
are split into pairs of characters. A long word also counts, with a lower weight, by its beginning, so that other forms
of it are found.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from uuid import UUID

MAX_TERMS = 256
"""Terms of one text. The words at its beginning count."""
MAX_WORD_CHARACTERS = 40
STEM_CHARACTERS = 5
"""Characters of a long word's beginning."""
WORD_WEIGHT = 1.0
SHORT_WORD_WEIGHTS = (0.1, 0.1, 0.3, 0.7)
"""Of words of one to four letters, which are mostly articles, pronouns and prepositions."""
STEM_WEIGHT = 0.4

_LATIN_MARKS = range(0x300, 0x370)
_HEBREW_POINTS = range(0x591, 0x5C8)
_ARABIC_MARKS = (*range(0x64B, 0x660), 0x670)
_DROPPED = frozenset((*_LATIN_MARKS, *_HEBREW_POINTS, *_ARABIC_MARKS))
"""Marks that a writer may leave out. Those of other scripts, as of Devanagari, belong to the word."""
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x9FFF),  # Han
    (0xAC00, 0xD7AF),  # Hangul
    (0xF900, 0xFAFF),  # Han, for compatibility
    (0x20000, 0x3FFFF),  # Han, further planes
)


def terms(text: str) -> dict[str, float]:
    """The terms of a text in the order of the text, at most `MAX_TERMS`, and the weight of each."""
    found: dict[str, float] = {}
    for word in _words(text):
        for term, weight in _word_terms(word):
            if len(found) == MAX_TERMS:
                return found
            found.setdefault(term, weight)
    return found


def term_keys(space_id: UUID, found: Iterable[str]) -> list[int]:
    """The terms as 32-bit integers that are different for each space.

    So an index of all texts has the texts of one space with a term beside each other. Two terms of a space have the
    same key with a probability of 1 in 4 billion.
    """
    salt = space_id.bytes
    return [
        int.from_bytes(hashlib.blake2b(term.encode(errors="replace"), digest_size=4, key=salt).digest(), signed=True)
        for term in found
    ]


def _words(text: str) -> Iterator[str]:
    folded = unicodedata.normalize("NFKD", text.casefold())
    plain = unicodedata.normalize("NFC", "".join(mark for mark in folded if ord(mark) not in _DROPPED))
    word: list[str] = []
    for character in plain:
        if unicodedata.category(character)[0] in "LMN":
            word.append(character)
        elif word:
            yield "".join(word)
            word.clear()
    if word:
        yield "".join(word)


def _word_terms(word: str) -> Iterator[tuple[str, float]]:
    for run, unspaced in _runs_by_script(word):
        if not unspaced:
            yield run[:MAX_WORD_CHARACTERS], _word_weight(run)
            if len(run) > STEM_CHARACTERS:
                yield f"{run[:STEM_CHARACTERS]}*", STEM_WEIGHT
        elif len(run) == 1:
            yield run, WORD_WEIGHT
        else:
            for start in range(len(run) - 1):
                yield run[start : start + 2], WORD_WEIGHT


def _word_weight(word: str) -> float:
    short = len(word) <= len(SHORT_WORD_WEIGHTS) and word.isalpha()
    return SHORT_WORD_WEIGHTS[len(word) - 1] if short else WORD_WEIGHT


def _runs_by_script(word: str) -> Iterator[tuple[str, bool]]:
    """The word in pieces, each of which is in scripts without spaces or not."""
    start = 0
    for end in range(1, len(word) + 1):
        if end == len(word) or _is_unspaced(word[end]) != _is_unspaced(word[start]):
            yield word[start:end], _is_unspaced(word[start])
            start = end


def _is_unspaced(character: str) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in _UNSPACED)
