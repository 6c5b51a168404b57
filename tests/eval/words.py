"""Words, stems and trigrams of texts in any script, for the baselines and the checks of the sets."""

import re
import unicodedata
from collections.abc import Iterator

from tests.eval.stop_words import STOP_WORDS

STEM_CHARACTERS = 5
"""Words with the same beginning of this length count as forms of one word: `rehearse` and `rehearsal`."""
MIN_LATIN_CHARACTERS = 3
ASCII_SEGMENT = re.compile(r"[a-z0-9]+")
UNSPACED = (("\u3040", "\u30ff"), ("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"))
"""Kana and Han: scripts that put no spaces between words."""
HIRAGANA = ("\u3040", "\u309f")


def segments(text: str) -> Iterator[str]:
    """Runs of letters, digits and marks of one kind of script, in lower case."""
    normal = unicodedata.normalize("NFKC", text).lower()
    if normal.isascii():
        yield from ASCII_SEGMENT.findall(normal)  # the same as below, and many times faster for long texts
        return
    run = ""
    for character in normal:
        joins = unicodedata.category(character)[0] in "LNM"
        if run and (not joins or _is_unspaced(character) != _is_unspaced(run[-1])):
            yield run
            run = ""
        if joins:
            run += character
    if run:
        yield run


def words(text: str) -> list[str]:
    """The words of a text, stemmed, without stop words. Unspaced scripts give pairs of characters instead of words."""
    found: list[str] = []
    for segment in segments(text):
        if _is_unspaced(segment[0]):
            found += _pairs(segment)
        elif segment not in STOP_WORDS and (len(segment) >= MIN_LATIN_CHARACTERS or not segment.isascii()):
            found.append(_stem(segment))
    return found


def trigrams(text: str) -> list[str]:
    """Three adjacent characters each, of every segment with a space before and after it."""
    found: list[str] = []
    for segment in segments(text):
        padded = f" {segment} "
        found += [padded[at : at + 3] for at in range(len(padded) - 2)]
    return found


def shared_share(question: str, memory: str) -> float:
    """The share of the question's distinct content words that the memory has, too; 0 without content words."""
    asked = set(words(question))
    return len(asked & set(words(memory))) / len(asked) if asked else 0.0


def _pairs(segment: str) -> list[str]:
    """Adjacent characters, without pairs that are only Hiragana, which are mostly grammar."""
    pairs = [segment[at : at + 2] for at in range(len(segment) - 1)] or [segment]
    return [pair for pair in pairs if not all(HIRAGANA[0] <= character <= HIRAGANA[1] for character in pair)]


def _stem(word: str) -> str:
    bare = word.removeprefix("ال") if len(word) > STEM_CHARACTERS else word
    if bare.isascii() and bare.endswith("s") and not bare.endswith("ss"):
        bare = bare[:-1]
    return bare[:STEM_CHARACTERS]


def _is_unspaced(character: str) -> bool:
    return any(first <= character <= last for first, last in UNSPACED)
