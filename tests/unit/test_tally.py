"""A call's text, taken no further at a time than there is something reserved for."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from khala.domain.parts import TokenUsage
from khala.models.port import Prompt
from khala.runs.model_turn import _estimated
from khala.runs.usage_tally import WIDE, ModelCall


@given(st.text(), st.floats(min_value=0, max_value=50))
def test_no_more_is_taken_than_one_character_that_nothing_is_reserved_for(text: str, enough: float) -> None:
    call = ModelCall(cast("Any", None))
    call.enough = enough
    while text and call.size <= enough:
        fitting = call.fitting(text)
        assert fitting > 0
        call.text(text[:fitting])
        text = text[fitting:]
    assert call.size <= enough + WIDE
    assert not text or call.size > enough


def test_all_is_taken_where_nothing_is_limited() -> None:
    assert ModelCall(cast("Any", None)).fitting("word " * 1000) == 5000


def test_what_fits_just_so_is_taken_whole() -> None:
    call = ModelCall(cast("Any", None))
    call.enough = 5
    assert [call.fitting("12345"), call.fitting("123456")] == [5, 6]
    call.text("12345")
    assert call.fitting("6") == 1


class Simple:
    """As much of a model as an estimate looks at."""

    reads_tools = False


def test_a_call_that_nobody_accounted_for_pays_for_what_it_said_and_thought() -> None:
    prompt = Prompt(system="Be brief, and say nothing that you do not know.", turns=())
    call = ModelCall(cast("Any", Simple()))
    assert _estimated(call, prompt).usage == TokenUsage(), "it was never made"
    call.asked = True
    silent = _estimated(call, prompt).usage.output_tokens
    call.thought("x" * 400)
    assert _estimated(call, prompt).usage.output_tokens == silent + 100
    call.text("word " * 100)
    assert _estimated(call, prompt).usage.output_tokens > silent + 100
