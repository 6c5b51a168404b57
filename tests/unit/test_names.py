"""The names of people that identity providers give."""

import pytest

from khala.domain.names import MAX_CLAIMED_CHARACTERS, claimed_name


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        (" Zeratul\x1b[31m ", "Zeratul[31m"),
        ("\u202eluteraZ", "luteraZ"),
        ("نیک", "نیک"),
        ("x" * 300, "x" * MAX_CLAIMED_CHARACTERS),
        ("\u3164\u2800", None),
        (" ", None),
        (7, None),
    ],
)
def test_a_claimed_name_is_visible_and_reads_in_one_direction(claim: object, name: str | None) -> None:
    assert claimed_name(claim) == name
