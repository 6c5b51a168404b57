"""Arguments of tool calls, however a model wrote them."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.models import tool_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_an_object_is_read_from_text_or_used_unchanged(args: dict[str, Any]) -> None:
    assert tool_arguments.decode(msgspec.json.encode(args).decode()) == (args, None)
    assert tool_arguments.decode_any(args) == (args, None)


@given(st.text())
def test_any_text_is_arguments_or_a_problem_and_can_be_written(text: str) -> None:
    args, problem = tool_arguments.decode(text)
    assert problem is None or args == {}
    msgspec.json.encode([args, problem])


@pytest.mark.parametrize("nothing", ["", "  \n", "null", None, {}])
def test_empty_text_means_no_arguments(nothing: object) -> None:
    assert tool_arguments.decode_any(nothing) == ({}, None)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('{"a": 1', "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ('{"a": 1e999}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ('{"a": "\ud800"}', "not valid JSON"),
        ({"a": "\ud800"}, "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"a": ' + "[" * 9000 + "]" * 9000 + "}", "too deeply"),
        ("[1]", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("0", "must be a JSON object"),
    ],
)
def test_arguments_that_are_no_object_have_a_problem(written: object, problem: str) -> None:
    args, found_problem = tool_arguments.decode_any(written)
    assert args == {}
    assert problem in (found_problem or "")
    msgspec.json.encode(found_problem)
