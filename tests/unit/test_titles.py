"""Titles: what is read of a model's answer, and what of a conversation."""

import time

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
        ("The method `__init__`", "The method __init__"),
        ("__init__ fails", "__init__ fails"),
        ("__\n_Trip to Aiur_", "Trip to Aiur"),
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


@pytest.mark.parametrize(
    ("markdown", "text"),
    [  # `title-text.test.ts` has the same texts for the page.
        ("## Leases **lease**", "Leases lease"),
        ("# A\n\n> quoted\n- one\n- [x] two\n---", "A quoted one two"),
        ("**Use _this_ now**, ~~not that~~", "Use this now, not that"),
        ("***both***", "both"),
        ("Read [the docs](https://example.com/a_b) and ![a cat](cat.png)", "Read the docs and a cat"),
        ("See <https://example.com>", "See https://example.com"),
        ("Fix `__init__` and **the `x * y` part**", "Fix __init__ and the x * y part"),
        ("Why does __init__ fail?", "Why does __init__ fail?"),
        ("**See __main__.py**, (__dict__) and obj.__class__", "See __main__.py, (__dict__) and obj.__class__"),
        ("__Use it__ and __this!__", "Use it and this!"),
        ("Why does this fail?\n```python\nprint(1)\n```\nThanks", "Why does this fail? Thanks"),
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 2", "SELECT 2"),
        (
            "What is 2 * 3 * 4, x**2 + y**2, snake_case_name and C#?",
            "What is 2 * 3 * 4, x**2 + y**2, snake_case_name and C#?",
        ),
        ("这是**重点**内容", "这是重点内容"),
        ("#1 in line", "#1 in line"),
        ("***", "***"),
        ("", ""),
    ],
)
def test_the_plain_text_of_markdown_has_no_marks_addresses_and_blocks_of_code(markdown: str, text: str) -> None:
    assert titles.plain_text(markdown) == text


@pytest.mark.parametrize("part", ["*a ", "`", "_", "[a](", "> ", "```\n", "**_~~", "__a", " __a__"])
def test_no_title_takes_long(part: str) -> None:
    begin = time.process_time()
    titles.read_answer(part * 20_000)
    titles.plain_text(part * 20_000)
    assert time.process_time() - begin < 2
