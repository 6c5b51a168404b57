"""Unknown fields are found at any depth, with a path and the name that was likely meant."""

from typing import Any

import msgspec
import pytest

from khala.api.accounts.types import Registration
from khala.api.openai.types import CompletionBody
from khala.api.threads.types import NewMessage
from khala.domain import frames, unknown_fields
from khala.domain.chat import RunOptions
from khala.domain.errors import PayloadTooLarge
from khala.domain.json_bodies import MAX_JSON_FIELDS, check_containers
from khala.domain.unknown_fields import MAX_NAME_CHARACTERS, find, nearest_name

USER = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "detail": "low"}}], "name": "V"}
DETAIL = "messages[0].content[0].image_url.detail"


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (NewMessage, {"text": "", "messageId": "x", "options": {"model": "m", "budget": {"usd": 1}}}, []),
        (NewMessage, {"text": "", "mesageId": "x"}, [("mesageId", "messageId")]),
        (NewMessage | None, {"options": {"autoPilot": True}}, [("options.autoPilot", "autopilot")]),
        (
            NewMessage,
            {"options": {"budget": {"usdd": 1}, "zz": 1}},
            [("options.budget.usdd", "usd"), ("options.zz", None)],
        ),
        (NewMessage, {"options": {"functions": [{}, {"nam": "x"}]}}, [("options.functions[1].nam", "name")]),
        (NewMessage, {"options": {"functions": [{"parameters": {"anything": {"goes": 1}}}]}}, []),
        (NewMessage, {"options": 7, "text": []}, []),
        (NewMessage, [1], []),
        (Registration, {"claim": [{"threadid": 1}]}, [("claim[0].threadid", "threadId")]),
        (frames.ClientFrame, {"type": "subscribe", "aftr": 3}, [("aftr", "after")]),
        (frames.ClientFrame, {"type": "presence", "state": {"free": True}}, []),
        (frames.ClientFrame, {"type": "nonsense", "aftr": 3}, []),
        (frames.ClientFrame, {"type": ["subscribe"], "aftr": 3}, []),
        (CompletionBody, {"messages": [USER]}, [(DETAIL, None), ("messages[0].name", None)]),
    ],
)  # fmt: skip
def test_fields_that_a_type_does_not_have_are_found_where_they_are(
    kind: Any, value: Any, found: list[tuple[str, str | None]]
) -> None:
    assert [(field.path, field.hint) for field in find(value, kind)] == found


def test_a_message_suggests_the_likely_field() -> None:
    (field,) = find({"options": {"max_steps": 3}}, NewMessage)
    assert field.message == "There is no field max_steps here. Did you mean maxSteps?"
    (other,) = find({"xyz": 3}, NewMessage)
    assert other.message == "There is no field xyz here."


def test_a_long_name_is_shortened_and_gets_no_suggestion() -> None:
    (field,) = find({"text" * 10_000: 1}, NewMessage)
    assert (field.path, field.hint) == (("text" * 10_000)[:MAX_NAME_CHARACTERS], None)
    assert nearest_name("x" * (MAX_NAME_CHARACTERS + 1), {"x" * MAX_NAME_CHARACTERS: None}) is None


def test_fields_that_are_only_named_get_no_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte has 80,000 fields, and the names that are like one of them take longer than all else."""
    monkeypatch.setattr(unknown_fields, "get_close_matches", None)
    found = [field.path for field in find({"messages": [], "strem": None, "tols": None}, CompletionBody)]
    assert found == ["strem", "tols"]


def test_json_has_a_limit_of_fields_as_of_objects() -> None:
    check_containers(b"{" + b'"a":1,' * MAX_JSON_FIELDS)
    with pytest.raises(PayloadTooLarge, match="fields"):
        check_containers("{" + '"a":1,' * (MAX_JSON_FIELDS + 1))


def test_options_that_an_earlier_version_stored_are_still_read() -> None:
    stored = b'{"model":"m","gone":1,"budget":{"euro":"1","usd":"0.5"},"functions":[{"name":"f","strict":true}]}'
    options = msgspec.json.decode(stored, type=RunOptions)
    assert (options.model, str(options.budget and options.budget.usd), options.functions[0].name) == ("m", "0.5", "f")
