"""Titles: what is read of a model's answer, and what of a conversation."""

import pytest

from khala.domain import titles


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Trip to Aiur", "Trip to Aiur"),
        ('  "Trip to Aiur."\n', "Trip to Aiur"),
        ("Title: **Trip to Aiur**\nHere is why: …", "Trip to Aiur"),
        ("# Trip\tto   Aiur", "Trip to Aiur"),
        ("Fahrt nach Köln", "Fahrt nach Köln"),
        ("Wait...", "Wait..."),
        ("A\x00B", "A B"),
        ("", None),
        ('""\n\n', None),
    ],
)
def test_a_title_is_the_first_line_without_marks(answer: str, title: str | None) -> None:
    assert titles.read_answer(answer) == title


def test_a_title_that_is_too_long_ends_at_a_word() -> None:
    title = titles.read_answer("word " * 100)
    assert title is not None
    assert len(title) <= titles.MAX_TITLE_CHARACTERS
    assert title.endswith("word…")


def test_the_prompt_is_bounded_however_long_the_conversation_is() -> None:
    assert len(titles.question("a" * 1_000_000, "b " * 1_000_000)) < 2 * titles.MAX_QUOTED_CHARACTERS + 200
