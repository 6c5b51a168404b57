"""Laws of a response's events: they do not depend on the commits of the parts, and an accumulator gets the response."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from khala.api.responses import response_header
from khala.api.responses.response_encoder import ResponseEncoder
from khala.api.responses.response_header import ResponseHeader, header
from khala.domain.chat import ClientFunction, ResponseRequest, StoredRunOptions
from khala.domain.errors import NotFound
from khala.domain.generation import FORMAT_REPAIR_NOTICE, ResponseFormat
from khala.domain.parts import Finish, Notice, Part, PartData, TextDelta, TokenUsage
from tests.laws.test_ai_sdk import CLIENTS_TOOL, CUTS, RUN, answers, as_parts, divided

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def header_of(response_format: ResponseFormat | None = None) -> ResponseHeader:
    options = StoredRunOptions(
        functions=(ClientFunction(name=CLIENTS_TOOL),),
        response_format=response_format,
        response=ResponseRequest(model="khala"),
    )
    return header(RUN.thread_id, RUN.run_id, options)


def encoded(parts: list[Part], cuts: list[int], head: ResponseHeader) -> tuple[list[dict[str, Any]], bytes]:
    encoder = ResponseEncoder(head)
    events = encoder.start()
    for batch in divided(parts, cuts):
        events += encoder.add(batch, {})
    return events, msgspec.json.encode([events, encoder.response()])


@given(answers(), CUTS)
def test_events_are_numbered_and_equal_however_the_parts_were_committed(data: list[PartData], cuts: list[int]) -> None:
    parts = as_parts(data)
    events, text = encoded(parts, cuts, header_of())
    assert text == encoded(parts, [], header_of())[1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@settings(max_examples=12)  # OpenAI's types are slow to validate.
@given(answers())
def test_openais_own_types_and_accumulator_take_the_events(data: list[PartData]) -> None:
    events, _ = encoded(as_parts(data), [], header_of())
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        typed = EVENT.validate_json(msgspec.json.encode(event))
        if event["type"] != "response.failed":
            state.handle_event(typed)
    final = events[-1]["response"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = {event["output_index"]: event["item"] for event in events if event["type"] == "response.output_item.done"}
    assert added == list(range(len(final["output"])))
    assert [done[index] for index in added] == final["output"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == Response.model_validate_json(msgspec.json.encode(final)).output_text


def test_text_that_does_not_fit_the_format_is_never_sent() -> None:
    data: list[PartData] = [
        TextDelta(text="no JSON"),
        Notice(code=FORMAT_REPAIR_NOTICE, message="answer: not JSON"),
        TextDelta(text='{"a"'),
        TextDelta(text=": 1}"),
        Finish(reason="stop", usage=TokenUsage()),
    ]
    parts = as_parts(data)
    for cuts in ([], [1, 2, 3, 4]):
        events, _ = encoded(parts, cuts, header_of(ResponseFormat(type="json_object")))
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert deltas == ['{"a"', ": 1}"]


def test_an_id_that_this_server_never_makes_is_not_found() -> None:
    for text in ("resp_", "resp_1", RUN.run_id.hex, f"resp_{RUN.run_id}", f"conv_{RUN.run_id.hex}"):
        with pytest.raises(NotFound):
            response_header.parse_id(text, response_header.RESPONSE_PREFIX)
    assert response_header.parse_id(response_header.response_id(RUN.run_id), "resp_") == RUN.run_id
