"""The text of a model call is cut where the reserved budget ends."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from khala.domain.parts import TokenUsage
from khala.models.port import Prompt
from khala.runs.model_turn import _estimated
from khala.runs.usage_tally import BYTES_PER_WIDE_CHARACTER, ModelCall


@given(st.text(), st.floats(min_value=0, max_value=50))
def test_at_most_one_character_beyond_the_reservation_is_taken(text: str, enough: float) -> None:
    call = ModelCall(cast("Any", None))
    call.covered_size = enough
    while text and call.size <= enough:
        covered = call.covered_length(text)
        assert covered > 0
        call.add_text(text[:covered])
        text = text[covered:]
    assert call.size <= enough + BYTES_PER_WIDE_CHARACTER
    assert not text or call.size > enough


def test_without_a_limit_all_text_is_taken() -> None:
    assert ModelCall(cast("Any", None)).covered_length("word " * 1000) == 5000


def test_text_that_exactly_fits_is_taken_whole() -> None:
    call = ModelCall(cast("Any", None))
    call.covered_size = 5
    assert [call.covered_length("12345"), call.covered_length("123456")] == [5, 6]
    call.add_text("12345")
    assert call.covered_length("6") == 1


class SimpleModel:
    """The part of a model that an estimate uses."""

    reads_tools = False


def test_a_call_without_reported_usage_is_charged_for_its_text_and_reasoning() -> None:
    prompt = Prompt(system="Be brief, and say nothing that you do not know.", turns=())
    call = ModelCall(cast("Any", SimpleModel()))
    assert _estimated(call, prompt).usage == TokenUsage(), "the call was never sent"
    call.started = True
    silent = _estimated(call, prompt).usage.output_tokens
    call.add_reasoning("x" * 400)
    assert _estimated(call, prompt).usage.output_tokens == silent + 100
    call.add_text("word " * 100)
    assert _estimated(call, prompt).usage.output_tokens > silent + 100
