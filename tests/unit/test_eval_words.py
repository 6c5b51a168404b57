"""The words and trigrams by which texts of all scripts are compared in the evaluation."""

import pytest

from tests.eval.text_indexes import Bm25Index
from tests.eval.words import segments, shared_share, trigrams, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where do I rehearse the violas?", ["rehea", "viola"]),
        ("ＦＵＬＬ width, 42 km", ["full", "width"]),
        ("Wo ist die Straßenbahn?", ["straß"]),
        ("妻子是护士", ["妻子", "子是", "是护", "护士"]),
        ("猫を飼っている", ["猫を", "を飼", "飼っ"]),
        ("كم طفلًا في المدرسة", ["طفلًا", "مدرسة"[:5]]),
        ("मेरी बच्ची का सपना", ["बच्ची"[:5], "सपना"]),
        ("", []),
    ],
)
def test_words_are_stemmed_and_have_no_stop_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_a_hindi_word_with_its_vowel_signs_is_one_word() -> None:
    assert words("दवा") == ["दवा"]


@pytest.mark.parametrize("text", ["Tea-time: 5 o'clock_sharp", "x1y2", "--", "A  B\tC\n"])
def test_ascii_text_is_cut_as_any_other_text(text: str) -> None:
    assert [*segments(text), "é"] == [*segments(f"{text} é")]


def test_trigrams_mark_the_borders_of_words() -> None:
    assert trigrams("Oak!") == [" oa", "oak", "ak "]


def test_the_shared_share_counts_distinct_content_words_of_the_question() -> None:
    assert shared_share("Which instrument do I play?", "Plays the violas") == 0.5
    assert shared_share("Which viola is my viola?", "Plays the viola") == 1
    assert shared_share("Who am I?", "Plays the viola") == 0


async def test_bm25_prefers_rare_words_and_short_texts() -> None:
    index = Bm25Index(words)
    await index.build(
        {
            "short": "oak table",
            "long": "oak table beside many other wooden pieces and furniture",
            "common": "table lamp",
            "other": "glass bottle",
        }
    )
    ranking = await index.search("oak table", 10)
    assert [name for name, _ in ranking] == ["short", "long", "common"]
    assert all(0 < score < 1.2 for _, score in ranking)
    assert [name for name, _ in await index.search("oak", 1)] == ["short"]
    assert await index.search("violin", 10) == []
    await index.build({"new": "violin"})
    assert [name for name, _ in await index.search("violin table", 10)] == ["new"]
