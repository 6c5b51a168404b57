"""Signatures of the texts in blobs are bounded, and have each word of the text that is searched."""

import pytest

from khala.domain.blob_signatures import MAX_TERMS, MAX_TEXT_BYTES, NOTHING, blob_signature, text_of
from khala.domain.search_signatures import may_have


@pytest.mark.parametrize("data", [b"", b"\0text", b"\xff\xfetext", b"text \xe2\x28\xa1", b" \n"])
def test_what_has_no_words_has_no_signature(data: bytes) -> None:
    assert blob_signature(data) == NOTHING


def test_a_character_at_the_limit_may_be_incomplete() -> None:
    text = "a" * (MAX_TEXT_BYTES - 1) + "é and more"
    assert text_of(text.encode()) == "a" * (MAX_TEXT_BYTES - 1)


def test_a_signature_is_bounded_and_has_the_first_words() -> None:
    words = [f"{number:05x}"[::-1] for number in range(20_000)]
    bits = blob_signature(" ".join(words).encode())
    assert len(bits) <= 2 * MAX_TERMS
    assert all(may_have(bits, word) for word in words[:4_000])
