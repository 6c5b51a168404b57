"""Matches: the words of a search that a text has, and where. Pure.

A text matches exactly if it has each word of the search as a whole word, whatever its case, accents or width. Of a
script without spaces, it must have the characters of the word beside each other.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from khala.domain import search_terms
from khala.domain.chat import WireStruct
from khala.domain.search_terms import MAX_WORD_CHARACTERS, STEM_CHARACTERS, STEM_WEIGHT

MatchKind: TypeAlias = Literal["exact", "similar"]
MAX_WORDS = 24
"""Words of a search that count: the first ones."""
MAX_HIGHLIGHTS = 32
"""Highlights of one text."""
_UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in search_terms.UNSPACED)
IN_WORD = rf"[^\W_{_UNSPACED}]"
"""A character of a word, in scripts that are written with spaces."""


class Highlight(WireStruct, frozen=True, kw_only=True):
    """A part of a text that matches: from `start` to before `end`, in UTF-16 code units."""

    start: int
    end: int


class SearchWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word of a search, and the patterns that find it, and other forms of it, in a folded text."""

    text: str
    weight: float
    exact: re.Pattern[str]
    similar: re.Pattern[str] | None
    terms: Sequence[str]
    """The terms of the index that a text with the word has."""
    stems: Sequence[str] = ()
    """The terms of a text that only has another form of it."""
    beginnings: Sequence[str]
    """A text without any of these has no form of the word."""


class TextMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The match of one text. `share` is the worth of the words that it has, from 0 to 1."""

    exact: bool
    share: float
    in_order: bool
    """Whether the text has the search as it was typed."""


class SearchText:
    """The text of a search."""

    def __init__(self, text: str) -> None:
        distinct = dict.fromkeys(search_terms.words(text))
        self.words = [_word(word, unspaced=unspaced) for word, unspaced in list(distinct)[:MAX_WORDS]]
        self._phrase = " ".join(search_terms.folded(text).split())

    def may_match(self, text: str) -> bool:
        """Whether the text may have a word of the search. Fast, for long texts."""
        folded = search_terms.folded(text)
        return any(beginning in folded for word in self.words for beginning in word.beginnings)

    def match(self, text: str, worths: Mapping[str, float]) -> TextMatch | None:
        """The match of a text, or None if it has no word of the search. `worths`: of each word."""
        folded = search_terms.folded(text)
        present = [word for word in self.words if any(beginning in folded for beginning in word.beginnings)]
        exact = [word for word in present if word.exact.search(folded)]
        exact_texts = {word.text for word in exact}
        rest = [word for word in self.words if word.text not in exact_texts]
        others = [word for word in present if word.text not in exact_texts]
        similar = [word for word in others if word.similar is not None and word.similar.search(folded)]
        if not exact and not similar:
            return None
        worth = sum(worths.get(word.text, 1.0) for word in exact)
        worth += STEM_WEIGHT * sum(worths.get(word.text, 1.0) for word in similar)
        return TextMatch(
            exact=not rest,
            share=worth / (sum(worths.get(word.text, 1.0) for word in self.words) or 1.0),
            in_order=not rest and self._phrase in " ".join(folded.split()),
        )

    def highlights(self, text: str) -> list[Highlight]:
        """The parts of the text that are words of the search. Other forms count only of words that it has not."""
        folded, origins = _folded_with_origins(text)
        patterns = [
            word.similar if word.similar is not None and not word.exact.search(folded) else word.exact
            for word in self.words
        ]
        spans = sorted(
            (origins[hit.start()], origins[hit.end() - 1] + 1)
            for pattern in patterns
            for hit in pattern.finditer(folded)
        )
        return _highlights(text, list(_merged(spans))[:MAX_HIGHLIGHTS])


def _highlights(text: str, found: Sequence[tuple[int, int]]) -> list[Highlight]:
    if not text.isascii():
        found = [(_utf16_length(text[:start]), _utf16_length(text[:end])) for start, end in found]
    return [Highlight(start=start, end=end) for start, end in found]


def _word(word: str, *, unspaced: bool) -> SearchWord:
    whole = word[:MAX_WORD_CHARACTERS]
    if unspaced:
        pairs = [word[at : at + 2] for at in range(len(word) - 1)]
        similar = re.compile("|".join(map(re.escape, pairs))) if len(pairs) > 1 else None
        exact = re.compile(re.escape(word))
        found = pairs or [word]
        return SearchWord(
            text=word, weight=1.0, exact=exact, similar=similar, terms=found, stems=pairs, beginnings=found
        )
    ends = "" if len(word) > MAX_WORD_CHARACTERS else f"(?!{IN_WORD})"
    exact = re.compile(f"(?<!{IN_WORD}){re.escape(whole)}{ends}")
    weight = search_terms.word_weight(word)
    if len(word) < STEM_CHARACTERS:
        return SearchWord(text=word, weight=weight, exact=exact, similar=None, terms=[whole], beginnings=[whole])
    stem = word[:STEM_CHARACTERS]
    similar = re.compile(f"(?<!{IN_WORD}){re.escape(stem)}{IN_WORD}*")
    terms = [whole, f"{stem}*"]
    return SearchWord(
        text=word, weight=weight, exact=exact, similar=similar, terms=terms, stems=terms[1:], beginnings=[stem]
    )


def _merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The spans in their order, merged where they touch."""
    start = end = -1
    for first, last in spans:
        if first > end:
            if end > 0:
                yield start, end
            start, end = first, last
        end = max(end, last)
    if end > 0:
        yield start, end


def _folded_with_origins(text: str) -> tuple[str, Sequence[int]]:
    """The folded text, and for each of its characters the index of the character that it comes from."""
    if text.isascii():
        return text.lower(), range(len(text))
    pieces = [search_terms.folded(character) for character in text]
    return "".join(pieces), [index for index, piece in enumerate(pieces) for _ in piece]


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
