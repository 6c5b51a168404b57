"""Results of a search: their order, and the cursor of its next page. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.errors import InvalidInput
from khala.domain.passages import passages
from khala.domain.search_matches import Highlight, MatchKind, SearchText

SearchKind: TypeAlias = Literal["message", "file", "memory"]
FoundBy: TypeAlias = Literal["words", "meaning"]

MIN_SHARE = 0.3
"""The worth of the words, of all words of the search, that a text has that is found by some of them."""
MAX_RESULTS = 200
"""Results of one search, on all its pages together."""


class SearchHit(WireStruct, frozen=True, kw_only=True):
    """A message, file or memory that a search has found: the passage that matches best.

    It has a `messageId`, a `path` or a `memoryId`. With a `blobId`, the passage is from a file of the message, whose
    `name` follows if it has one, or from a large input or output of its tools. `match` is `exact` if the text has each
    word of the search. `by` is `meaning` if its words alone would not have found it. `score` is from 0 to 1.
    """

    thread_id: UUID | None = None
    message_id: UUID | None = None
    blob_id: UUID | None = None
    name: str | None = None
    memory_id: UUID | None = None
    path: str | None = None
    text: str
    highlights: list[Highlight]
    match: MatchKind
    by: FoundBy
    score: float
    created_at: datetime

    @property
    def key(self) -> str:
        """Identifies the result within a search."""
        return str(self.message_id or self.memory_id or self.path)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A text that may match, and where it is from.

    `similarity`: to the search, from 0 to 1, if that is known. `by`: whether it follows from words or from meanings.
    `piece`: the number of the passage that it belongs to, None for the whole text.
    """

    text: str
    created_at: datetime
    thread_id: UUID | None = None
    message_id: UUID | None = None
    blob_id: UUID | None = None
    name: str | None = None
    memory_id: UUID | None = None
    path: str | None = None
    similarity: float = 0.0
    by: FoundBy = "words"
    piece: int | None = None


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The end of a page: time and digest of the search, and the rank and key of the page's last result."""

    until: Annotated[datetime, msgspec.Meta(tz=True)]
    rank: Annotated[int, msgspec.Meta(ge=0)]
    key: str
    search: str

    @classmethod
    def read(cls, value: str) -> "Cursor":
        """The cursor that a client sent. Raises `InvalidInput`."""
        try:
            cursor = msgspec.json.decode(bytes.fromhex(value), type=cls)
            return msgspec.structs.replace(cursor, until=cursor.until.astimezone(UTC))
        except (ValueError, msgspec.DecodeError, OverflowError, RecursionError) as error:
            raise InvalidInput("This cursor is not one of this search.", path="cursor") from error

    def check(self, search: str) -> None:
        """Check that the cursor is of the search with this digest. Raises `InvalidInput`."""
        if self.search != search:
            raise InvalidInput("This cursor is of another search, with another q or filter.", path="cursor")

    def __str__(self) -> str:
        return msgspec.json.encode(self).hex()


def search_digest(text: str, *, thread_id: UUID | None, kind: SearchKind | None, meaning: bool) -> str:
    """Identifies a search by its text and filters, in its cursors."""
    identity = f"{thread_id} {kind} {meaning} {text}".encode(errors="surrogatepass")
    return blake2b(identity, digest_size=8).hexdigest()


def results(asked: SearchText, found: Iterable[Found], worths: Mapping[str, float]) -> list[SearchHit]:
    """The texts that match, exact matches first: of these the ones with the search as it was typed, then the newest.

    A message and its files are one result, of the text that matches best.
    """
    matched = [result for one in found if (result := _result(asked, one, worths)) is not None]
    matched.sort(key=lambda one: one.key)
    matched.sort(key=lambda one: (one.match == "exact", one.score, one.created_at), reverse=True)
    best: dict[str, SearchHit] = {}
    for result in matched:
        best.setdefault(result.key, result)
    return list(best.values())[:MAX_RESULTS]


def page(
    ordered: list[SearchHit], cursor: Cursor | None, until: datetime, limit: int, search: str
) -> tuple[list[SearchHit], Cursor | None]:
    """The results after the cursor, and the cursor of the next page. `search` is the digest of the search.

    If the cursor's result is gone, the page begins at its rank.
    """
    start = 0
    if cursor is not None:
        ranks = {result.key: rank for rank, result in enumerate(ordered)}
        start = ranks[cursor.key] + 1 if cursor.key in ranks else cursor.rank
    chosen = ordered[start : start + limit]
    end = start + limit
    return chosen, Cursor(until, end - 1, chosen[-1].key, search) if chosen and end < len(ordered) else None


class _Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A passage of a text that matches, and the worth of its words that are words of the search."""

    exact: bool
    score: float
    share: float
    text: str


def _result(asked: SearchText, found: Found, worths: Mapping[str, float]) -> SearchHit | None:
    """The best passage of the text, or None if it does not match."""
    best = max(_passages(asked, found, worths), key=lambda one: (one.exact, one.score), default=None)
    if best is None:
        return None
    is_by_words = best.exact or best.share >= MIN_SHARE or found.by == "words"
    return SearchHit(
        thread_id=found.thread_id,
        message_id=found.message_id,
        blob_id=found.blob_id,
        name=found.name,
        memory_id=found.memory_id,
        path=found.path,
        text=best.text,
        highlights=asked.highlights(best.text),
        match="exact" if best.exact else "similar",
        by="words" if is_by_words else "meaning",
        score=round(best.score, 4),
        created_at=found.created_at,
    )


def _passages(asked: SearchText, found: Found, worths: Mapping[str, float]) -> Iterator[_Passage]:
    """The passages that match by their words, and the one that is near to the search."""
    may_match = asked.may_match(found.text)
    if not may_match and found.similarity <= 0:
        return
    for number, (start, end) in enumerate(passages(found.text)):
        text = found.text[start:end]
        match = asked.match(text, worths) if may_match else None
        similarity = found.similarity if number == (found.piece or 0) or (match and found.piece is None) else 0.0
        if match is not None and match.exact:
            yield _Passage(exact=True, score=1.0 if match.in_order else 0.95, share=match.share, text=text)
            continue
        share = 0.0 if match is None else match.share
        if share >= MIN_SHARE or similarity > 0:
            yield _Passage(exact=False, score=max(share, similarity), share=share, text=text)
