"""What a run says about an answer that does not fit its format."""

from typing import Any

import msgspec
import pytest

from khala.domain.fold import NoticeBlock, TextBlock, ToolBlock, text_of, without_replaced_text
from khala.domain.generation import FORMAT_REPAIR_NOTICE, ResponseFormat
from khala.runs.answer_format import MAX_REPORT_CHARACTERS, mismatches
from khala.tools.validation.arguments import MAX_ARGS_DEPTH

OBJECT = ResponseFormat(type="json_object")
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": False}


def of_schema(schema: dict[str, Any]) -> ResponseFormat:
    return ResponseFormat(type="json_schema", schema=schema)


@pytest.mark.parametrize(
    ("requested", "text", "report"),
    [
        (None, "anything", ""),
        (OBJECT, ' {"a": 1}\n', ""),
        (OBJECT, "[1]", "answer: not a JSON object"),
        (OBJECT, '```json\n{"a": 1}\n```', "answer: not JSON"),
        (OBJECT, '{"a": 1} and so on', "answer: not JSON"),
        (of_schema(AGE), '{"age": 7}', ""),
        (of_schema(AGE), '{"age": "7"}', 'age: "7" is not of type "integer"'),
        (of_schema(AGE), '{"years": 7}', "years: unknown field"),
        (of_schema(AGE), "7", 'answer: 7 is not of type "object"'),
        (of_schema({"type": "array", "items": {"minimum": 2}}), "[2, 1]", "1: 1 is less than"),
        (of_schema({}), "[" * (MAX_ARGS_DEPTH + 2) + "]" * (MAX_ARGS_DEPTH + 2), "answer: it could not be checked"),
        (OBJECT, "[" * 100_000, "answer: nested too deeply"),
    ],
)
async def test_a_report_names_the_places(requested: ResponseFormat | None, text: str, report: str) -> None:
    found = await mismatches(requested, text)
    assert found.startswith(report)
    assert bool(found) == bool(report)


async def test_a_report_is_short() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    text = msgspec.json.encode(["x" * 1000] * 100).decode()
    assert 0 < len(await mismatches(of_schema(schema), text)) <= MAX_REPORT_CHARACTERS


@pytest.mark.parametrize("fields", [{"type": "json_schema"}, {"type": "json_object", "schema": {}}, {"type": "xml"}])
def test_an_incomplete_format_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, ResponseFormat)


def test_only_text_since_the_last_call_is_replaced() -> None:
    call = ToolBlock(tool_call_id="c", tool="look", state="completed", step=1)
    told, repair = NoticeBlock(code="resumed", message=""), NoticeBlock(code=FORMAT_REPAIR_NOTICE, message="")
    one, two, three, four = (TextBlock(text=text) for text in ("Let me see.", "{", '"', "{}"))
    content = (one, call, two, told, three, repair, four)
    assert text_of(without_replaced_text(content)) == "Let me see.{}"
    assert without_replaced_text(content[:5]) == content[:5]
