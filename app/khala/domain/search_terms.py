"""Terms: the words by which a text is found, in any language. Pure.

A text is split into words; their case, accents and width do not matter. Scripts that write without spaces, and Hangul,
are split into pairs of characters. A long word also counts, with a lower weight, by its beginning, so that other forms
of it are found.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from uuid import UUID

from khala.domain.function_words import FUNCTION_WORDS

MAX_TERMS = 256
"""Terms of one text. The words at its beginning count."""
MAX_WORD_CHARACTERS = 40
STEM_CHARACTERS = 5
"""Characters of a long word's beginning."""
WORD_WEIGHT = 1.0
SHORT_WORD_WEIGHTS = (0.1, 0.1, 0.3, 0.7)
"""Of words of one to four letters, which are mostly articles, pronouns and prepositions."""
STEM_WEIGHT = 0.4

_ASCII_WORD = re.compile("[a-z0-9]+")
_LATIN_MARKS = range(0x300, 0x370)
_HEBREW_POINTS = range(0x591, 0x5C8)
_ARABIC_MARKS = (*range(0x64B, 0x660), 0x670)
_DROPPED = frozenset((*_LATIN_MARKS, *_HEBREW_POINTS, *_ARABIC_MARKS))
"""Marks that a writer may leave out. Those of other scripts, as of Devanagari, belong to the word."""
UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3040, 0x31FF),  # Hiragana, Katakana, Bopomofo
    (0x3400, 0x9FFF),  # Han
    (0xA000, 0xA4CF),  # Yi
    (0xA980, 0xA9FF),  # Javanese, further Burmese
    (0xAA60, 0xAA7F),  # further Burmese
    (0xAC00, 0xD7AF),  # Hangul
    (0xF900, 0xFAFF),  # Han, for compatibility
    (0x20000, 0x3FFFF),  # Han, further planes
)
"""The scripts that are written without spaces, and Hangul: the first and last code points of each."""


def terms(text: str, *, limit: int = MAX_TERMS) -> dict[str, float]:
    """The terms of a text in the order of the text, at most `limit`, and the weight of each."""
    found: dict[str, float] = {}
    for word in _words(text):
        for term, weight in _word_terms(word):
            if len(found) == limit:
                return found
            found.setdefault(term, weight)
    return found


def stems(text: str, *, limit: int = MAX_TERMS) -> list[tuple[str, str]]:
    """The stems of a text's words, each with its word, in the order of the text and as often as there: at most `limit`.

    A stem is the beginning of a word without the plural's "s". Function words and single letters have none.
    """
    return list(islice((found for word in _words(text) for found in _word_stems(word)), limit))


def words(text: str) -> list[tuple[str, bool]]:
    """The words of a text, each with whether its script is written without spaces, in the order of the text."""
    return [run for word in _words(text) for run in _runs_by_script(word)]


def word_weight(word: str) -> float:
    """The weight of a word by its length."""
    short = len(word) <= len(SHORT_WORD_WEIGHTS) and word.isalpha()
    return SHORT_WORD_WEIGHTS[len(word) - 1] if short else WORD_WEIGHT


def folded(text: str) -> str:
    """The text without differences of case, width and accents, in which its words are found."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", "".join(mark for mark in plain if ord(mark) not in _DROPPED))


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


def _words(text: str) -> Iterable[str]:
    plain = folded(text)
    if plain.isascii():
        return _ASCII_WORD.findall(plain)
    return "".join(character if _belongs_to_word(character) else " " for character in plain).split(" ")


@lru_cache(maxsize=4096)
def _belongs_to_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def _word_terms(word: str) -> Iterator[tuple[str, float]]:
    for run, unspaced in _runs_by_script(word):
        if not unspaced:
            yield run[:MAX_WORD_CHARACTERS], word_weight(run)
            if len(run) > STEM_CHARACTERS:
                yield f"{run[:STEM_CHARACTERS]}*", STEM_WEIGHT
        else:
            yield from ((pair, WORD_WEIGHT) for pair in _pairs(run))


def _word_stems(word: str) -> Iterator[tuple[str, str]]:
    for run, unspaced in _runs_by_script(word):
        if unspaced:
            yield from ((pair, pair) for pair in _pairs(run))
        elif len(run) > 1 and run not in _FUNCTION_WORDS:
            singular = run[:-1] if len(run) > 3 and run.endswith("s") and not run.endswith("ss") else run
            yield singular[:STEM_CHARACTERS], run[:MAX_WORD_CHARACTERS]


def _pairs(run: str) -> Iterable[str]:
    """The pairs of adjacent characters, or the only character."""
    return (run[start : start + 2] for start in range(max(1, len(run) - 1)))


def _runs_by_script(word: str) -> Iterator[tuple[str, bool]]:
    """The word in pieces, each of which is in scripts without spaces or not."""
    if word.isascii():
        if word:
            yield word, False
        return
    start = 0
    for end in range(1, len(word) + 1):
        if end == len(word) or is_unspaced(word[end]) != is_unspaced(word[start]):
            yield word[start:end], is_unspaced(word[start])
            start = end


@lru_cache(maxsize=4096)
def is_unspaced(character: str) -> bool:
    """Whether the character's script is written without spaces."""
    code = ord(character)
    return any(first <= code <= last for first, last in UNSPACED)


_FUNCTION_WORDS = frozenset(map(folded, FUNCTION_WORDS))
