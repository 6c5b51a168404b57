"""A call's text, taken no further at a time than there is something reserved for."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from app.runs.tally import WIDE, Call


@given(st.text(), st.floats(min_value=0, max_value=50))
def test_no_more_is_taken_than_one_character_that_nothing_is_reserved_for(text: str, enough: float) -> None:
    call = Call(cast("Any", None))
    call.enough = enough
    while text and call.size <= enough:
        fitting = call.fitting(text)
        assert fitting > 0
        call.text(text[:fitting])
        text = text[fitting:]
    assert call.size <= enough + WIDE
    assert not text or call.size > enough


def test_all_is_taken_where_nothing_is_limited() -> None:
    assert Call(cast("Any", None)).fitting("word " * 1000) == 5000
