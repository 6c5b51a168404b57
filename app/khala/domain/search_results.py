"""Results of a search: their order, and the cursor of its next page. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.errors import InvalidInput
from khala.domain.passages import passages
from khala.domain.search_matches import Highlight, MatchKind, SearchText

SearchKind: TypeAlias = Literal["message", "file", "memory"]

MIN_SHARE = 0.3
"""The worth of the words, of all words of the search, that a text has that is found by some of them."""
MAX_RESULTS = 200
"""Results of one search, on all its pages together."""


class SearchHit(WireStruct, frozen=True, kw_only=True):
    """A message, file or memory that a search has found: the passage that matches best.

    It has a `messageId`, a `path` or a `memoryId`. `match` is `exact` if the text has each word of the search.
    `highlights` are empty for a text that is found by its meaning only. `score` is from 0 to 1.
    """

    thread_id: UUID | None = None
    message_id: UUID | None = None
    memory_id: UUID | None = None
    path: str | None = None
    text: str
    highlights: list[Highlight]
    match: MatchKind
    score: float
    created_at: datetime

    @property
    def key(self) -> str:
        """Identifies the result within a search."""
        return str(self.message_id or self.memory_id or self.path)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A text that may match, and where it is from. `similarity`: by its meaning, if that is known."""

    text: str
    created_at: datetime
    thread_id: UUID | None = None
    message_id: UUID | None = None
    memory_id: UUID | None = None
    path: str | None = None
    similarity: float = 0.0


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page: the time of the search, and the rank and key of the page's last result."""

    until: Annotated[datetime, msgspec.Meta(tz=True)]
    rank: Annotated[int, msgspec.Meta(ge=0)]
    key: str

    @classmethod
    def read(cls, value: str) -> "Cursor":
        """The cursor that a client sent. Raises `InvalidInput`."""
        try:
            cursor = msgspec.json.decode(bytes.fromhex(value), type=cls)
            return msgspec.structs.replace(cursor, until=cursor.until.astimezone(UTC))
        except (ValueError, msgspec.DecodeError, OverflowError, RecursionError) as error:
            raise InvalidInput("This cursor is not one of this search.", path="cursor") from error

    def __str__(self) -> str:
        return msgspec.json.encode(self).hex()


def results(asked: SearchText, found: Iterable[Found], worths: Mapping[str, float]) -> list[SearchHit]:
    """The texts that match, exact matches first: of these the ones with the search as it was typed, then the newest."""
    matched = [result for one in found if (result := _result(asked, one, worths)) is not None]
    matched.sort(key=lambda one: one.key)
    matched.sort(key=lambda one: (one.match == "exact", one.score, one.created_at), reverse=True)
    return matched[:MAX_RESULTS]


def page(
    ordered: list[SearchHit], cursor: Cursor | None, until: datetime, limit: int
) -> tuple[list[SearchHit], Cursor | None]:
    """The results after the cursor, and the cursor of the next page.

    If the cursor's result is gone, the page begins at its rank.
    """
    start = 0
    if cursor is not None:
        ranks = {result.key: rank for rank, result in enumerate(ordered)}
        start = ranks[cursor.key] + 1 if cursor.key in ranks else cursor.rank
    chosen = ordered[start : start + limit]
    end = start + limit
    return chosen, Cursor(until, end - 1, chosen[-1].key) if chosen and end < len(ordered) else None


def _result(asked: SearchText, found: Found, worths: Mapping[str, float]) -> SearchHit | None:
    """The best passage of the text, or None if it does not match."""
    best: tuple[bool, float, str] | None = None
    for start, end in passages(found.text) if asked.may_match(found.text) else ():
        text = found.text[start:end]
        match = asked.match(text, worths)
        if match is None:
            continue
        score = max(match.share, found.similarity) if not match.exact else 1.0 if match.in_order else 0.95
        if (match.exact or score >= MIN_SHARE) and (best is None or (match.exact, score) > best[:2]):
            best = match.exact, score, text
    if best is None and found.similarity > 0:
        best = False, found.similarity, found.text[: next(passages(found.text), (0, 0))[1]]
    if best is None:
        return None
    exact, score, text = best
    return SearchHit(
        thread_id=found.thread_id,
        message_id=found.message_id,
        memory_id=found.memory_id,
        path=found.path,
        text=text,
        highlights=asked.highlights(text),
        match="exact" if exact else "similar",
        score=round(score, 4),
        created_at=found.created_at,
    )
