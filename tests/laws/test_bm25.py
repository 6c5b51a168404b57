"""Laws of BM25: rare words and short documents count more, and only shared words count at all."""

from hypothesis import given
from hypothesis import strategies as st

from khala.domain import bm25
from khala.domain.bm25 import Document

WORDS = ("parser", "invoice", "travel", "poem", "outage", "kitchen")
texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
documents = st.lists(texts.map(lambda text: bm25.document([(text, 1.0)])), max_size=6)


def scores(query: str, found: list[Document]) -> list[float]:
    stems = [word[:5] for word in query.split()]
    return bm25.scores(bm25.rarities(stems, found), found)


@given(texts, documents)
def test_a_document_has_a_score_exactly_if_it_shares_a_word(query: str, found: list[Document]) -> None:
    shares = [any(word[:5] in one.counts for word in query.split()) for one in found]
    assert [score > 0 for score in scores(query, found)] == shares


@given(texts, documents)
def test_the_scores_do_not_depend_on_the_order(query: str, found: list[Document]) -> None:
    backwards = " ".join(reversed(query.split()))
    assert [round(score, 9) for score in scores(backwards, found[::-1])] == [
        round(score, 9) for score in scores(query, found)[::-1]
    ]


@given(texts, documents)
def test_a_rarity_is_1_for_one_document_and_less_for_more(query: str, found: list[Document]) -> None:
    rarity = bm25.rarities([word[:5] for word in query.split()], found)
    having = {stem: sum(stem in one.counts for one in found) for stem in rarity}
    assert all((rarity[stem] == 1) == (having[stem] == 1) and 0 < rarity[stem] <= 1 for stem in rarity)
    ranked = sorted(rarity, key=lambda stem: having[stem])
    assert ranked == sorted(ranked, key=lambda stem: -rarity[stem])


def test_a_shorter_document_a_repeated_word_and_a_weightier_field_count_more() -> None:
    short, long = bm25.document([("poem", 1.0)]), bm25.document([("poem travel kitchen", 1.0)])
    repeated, light = bm25.document([("poem poem kitchen", 1.0)]), bm25.document([("poem", 0.5), ("kitchen", 2.5)])
    by_short, by_long, by_repeated, by_light = scores("poem", [short, long, repeated, light])
    assert by_short > by_long > by_light
    assert by_repeated > by_long


def test_words_after_the_limit_do_not_count() -> None:
    texts = [(" ".join(["poem"] * 200), 1.0)] * 6
    assert bm25.document([*texts, ("outage", 1.0)]).counts == {"poem": bm25.MAX_DOCUMENT_WORDS}
