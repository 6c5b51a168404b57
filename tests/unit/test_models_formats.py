"""The format of an answer and the choice of tools in the requests of each provider, and in the demo model's answer."""

from typing import Any

import msgspec
import pytest

from khala.domain.generation import GenerationOptions, ResponseFormat, ToolChoice, ToolMode
from khala.domain.parts import MAX_INLINE_BYTES, LikelyToken, TokenLogprob, encode
from khala.domain.tools import ToolSpec
from khala.models import model_names, option_support
from khala.models.anthropic import request_body as anthropic_body
from khala.models.anthropic import schemas as anthropic_schemas
from khala.models.anthropic.message_reader import MessageReader
from khala.models.demo.examples import example_text
from khala.models.demo.script import script_of, stopped
from khala.models.google import request_body as google_body
from khala.models.google.content_reader import ContentReader
from khala.models.openai import request_body as openai_body
from khala.models.openai.answer_reader import AnswerReader
from khala.models.port import Prompt, PromptTurn, TextChunk
from khala.runs import logprob_parts
from khala.tools.validation.arguments import check_answer

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
CITY_FORMAT = ResponseFormat(type="json_schema", name="city", description="A city.", schema=CITY, strict=True)
ANY_OBJECT = ResponseFormat(type="json_object")
ECHO = ToolSpec(name="echo", description="Says it again.", parameters={"type": "object", "properties": {}})


def prompt(requested: ResponseFormat, **more: Any) -> Prompt:
    turns = (PromptTurn(role="user", text="Where?"),)
    return Prompt(system="", turns=turns, generation=GenerationOptions(response_format=requested), **more)


def openai(requested: ResponseFormat, **more: Any) -> Any:
    return msgspec.json.decode(openai_body.encode(prompt(requested, **more), "m-1")).get("response_format")


def anthropic(requested: ResponseFormat, model: str = "claude-sonnet-5-5") -> Any:
    return msgspec.json.decode(anthropic_body.encode(prompt(requested), model)).get("output_config")


def google(requested: ResponseFormat, model: str = "gemini-3.8-flash", **more: Any) -> Any:
    return msgspec.json.decode(google_body.encode(prompt(requested, **more), model))["generationConfig"]


def test_openai_gets_the_format_as_it_was_requested() -> None:
    definition = {"name": "city", "schema": CITY, "strict": True, "description": "A city."}
    assert openai(CITY_FORMAT) == {"type": "json_schema", "json_schema": definition}
    assert openai(ANY_OBJECT) == {"type": "json_object"}
    assert openai(ResponseFormat(type="text")) is None


def test_the_rest_of_an_interrupted_answer_has_no_format() -> None:
    assert openai(CITY_FORMAT, partial_answer='{"name": "Sh') is None


def test_anthropic_gets_the_part_of_the_schema_that_it_enforces() -> None:
    fields = {"name": {"type": "string"}, "people": {"type": "integer"}}
    schema = {"type": "object", "properties": fields, "required": ["name"], "additionalProperties": False}
    assert anthropic(CITY_FORMAT) == {"format": {"type": "json_schema", "schema": schema}}
    assert anthropic(CITY_FORMAT, "claude-3-haiku") is None
    assert anthropic(ANY_OBJECT) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"x": {}}},
        {"type": "object", "properties": {"a": {}}},
        {"type": "array"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}},
    ],
)
def test_a_schema_that_anthropic_would_narrow_too_far_is_left_to_the_prompt(schema: dict[str, Any]) -> None:
    assert anthropic_schemas.enforceable(schema) is None


def test_anthropic_enforces_choices_constants_and_definitions() -> None:
    schema = {
        "$defs": {"kind": {"enum": ["a", "b"]}},
        "oneOf": [{"$ref": "#/$defs/kind"}, {"type": ["integer", "null"], "maximum": 3}, {"const": 7}],
    }
    assert anthropic_schemas.enforceable(schema) == {
        "$defs": {"kind": {"enum": ["a", "b"]}},
        "anyOf": [{"$ref": "#/$defs/kind"}, {"type": ["integer", "null"]}, {"const": 7}],
    }


def test_google_gets_the_keywords_that_it_knows() -> None:
    config = google(CITY_FORMAT)
    fields = {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 0}}
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"] == {"type": "object", "properties": fields, "required": ["name"]}
    assert "responseJsonSchema" not in google(ANY_OBJECT)
    assert "responseMimeType" in google(CITY_FORMAT, tools=(ECHO,))
    assert "responseMimeType" not in google(CITY_FORMAT, "gemini-2.5-pro", tools=(ECHO,))


EXAMPLES: list[dict[str, Any]] = [
    CITY,
    {"type": "array", "items": CITY, "minItems": 3},
    {"type": "string", "minLength": 40}, {"type": "string", "maxLength": 2}, {"type": "string", "format": "date"},
    {"type": "integer", "minimum": 7, "multipleOf": 5}, {"type": "number", "exclusiveMaximum": -3},
    {"type": "integer", "exclusiveMinimum": 1}, {"type": ["null", "string"]}, {"enum": ["a", 1]}, {"const": None},
    {"anyOf": [{"type": "null"}, CITY]}, {"allOf": [CITY, {"properties": {"x": {"type": "boolean"}}}]},
    {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                    "list": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                },
                "required": ["next", "list"],
            },
        },
    },
    {"type": "object", "required": ["a"], "properties": {}, "additionalProperties": {"type": "string"}},
    {"type": "string", "maxLength": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("schema", EXAMPLES)
async def test_the_demo_models_example_fits_the_schema(schema: dict[str, Any]) -> None:
    example = msgspec.json.decode(example_text(ResponseFormat(type="json_schema", schema=schema)))
    assert await check_answer(schema, example) == []


@pytest.mark.parametrize("bound", [{"minimum": 10**400}, {"maximum": -(10**400)}, {"multipleOf": 1e-320, "minimum": 1}])
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_the_demo_models_example_of_a_number_that_no_float_can_express(kind: str, bound: dict[str, Any]) -> None:
    schema = {"type": kind, **bound}
    assert msgspec.json.decode(example_text(ResponseFormat(type="json_schema", schema=schema))) is not None


def test_the_demo_models_example_is_small_even_if_a_schema_requires_millions_of_values() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5):
        schema = {"type": "array", "items": schema, "minItems": 100}
    assert len(example_text(ResponseFormat(type="json_schema", schema=schema))) < 100_000


def test_the_demo_models_example_of_an_object() -> None:
    assert isinstance(msgspec.json.decode(example_text(ANY_OBJECT)), dict)


STRICT = ToolSpec(name="city", description="Finds it.", parameters=CITY, strict=True)


def choosing(mode: ToolMode, *tools: ToolSpec, parallel: bool = True) -> Prompt:
    generation = GenerationOptions(tool_choice=ToolChoice(mode=mode), parallel_tool_calls=parallel)
    return Prompt(system="", turns=(PromptTurn(role="user", text="Where?"),), tools=tools, generation=generation)


def bodies(given: Prompt) -> tuple[Any, Any, Any]:
    """The bodies for OpenAI, Anthropic and Google."""
    return (
        msgspec.json.decode(openai_body.encode(given, "m-1")),
        msgspec.json.decode(anthropic_body.encode(given, "claude-opus-5")),
        msgspec.json.decode(google_body.encode(given, "gemini-3.8-flash")),
    )


@pytest.mark.parametrize(
    ("mode", "tools", "openai_choice", "anthropic_choice", "google_mode"),
    [
        ("auto", (ECHO,), "auto", "auto", "AUTO"),
        ("required", (ECHO,), "required", "any", "ANY"),
        ("auto", (STRICT,), "auto", "auto", "VALIDATED"),
    ],
)
def test_each_provider_gets_the_choice_of_tools(
    mode: ToolMode, tools: tuple[ToolSpec, ...], openai_choice: str, anthropic_choice: str, google_mode: str
) -> None:
    openai, anthropic, google = bodies(choosing(mode, *tools))
    assert openai["tool_choice"] == openai_choice
    assert anthropic["tool_choice"] == {"type": anthropic_choice}
    assert google["toolConfig"]["functionCallingConfig"]["mode"] == google_mode
    assert "parallel_tool_calls" not in openai


def test_strict_tools_and_single_calls_go_to_the_providers_that_have_them() -> None:
    openai, anthropic, _ = bodies(choosing("auto", STRICT, ECHO, parallel=False))
    assert [tool["function"].get("strict") for tool in openai["tools"]] == [True, None]
    assert openai["parallel_tool_calls"] is False
    assert [tool.get("strict") for tool in anthropic["tools"]] == [True, None]
    assert anthropic["tools"][0]["input_schema"]["additionalProperties"] is False
    assert anthropic["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_a_reply_that_has_to_call_a_tool_has_no_format() -> None:
    assert openai(CITY_FORMAT, tools=(ECHO,)) is not None
    generation = GenerationOptions(response_format=CITY_FORMAT, tool_choice=ToolChoice(mode="required"))
    assert Prompt(system="", turns=(), tools=(ECHO,), generation=generation).native_format is None


SAMPLING = GenerationOptions(
    temperature=1.5,
    top_p=0.5,
    seed=-1,
    presence_penalty=0.5,
    frequency_penalty=-0.5,
    stop=("END", " "),
    reasoning_effort="xhigh",
    user="u-1",
    metadata={"a": "b"},
)


def sampled(options: GenerationOptions = SAMPLING) -> Prompt:
    return Prompt(system="", turns=(PromptTurn(role="user", text="Where?"),), generation=options)


def test_openai_gets_all_options_of_sampling() -> None:
    body = msgspec.json.decode(openai_body.encode(sampled(), "m-1"))
    options = {
        "temperature": 1.5, "top_p": 0.5, "seed": -1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "stop": ["END", " "], "reasoning_effort": "xhigh", "user": "u-1",
    }  # fmt: skip
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == {
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }


def test_anthropic_gets_the_options_that_each_model_has() -> None:
    old = msgspec.json.decode(anthropic_body.encode(sampled(), "claude-sonnet-4-5"))
    assert (old["stop_sequences"], old["metadata"]) == (["END"], {"user_id": "u-1"})
    assert not {"thinking", "output_config", "seed", "presence_penalty", "temperature", "top_p"} & old.keys()
    new = msgspec.json.decode(anthropic_body.encode(sampled(), "claude-opus-5"))
    assert (new["thinking"], new["output_config"]) == ({"type": "adaptive"}, {"effort": "xhigh"})
    assert not {"temperature", "top_p"} & new.keys()


def test_anthropic_is_not_asked_to_think_where_a_tool_is_required() -> None:
    required = sampled(GenerationOptions(reasoning_effort="high", tool_choice=ToolChoice(mode="required")))
    offers = [(), (ECHO,)]
    bodies = [
        msgspec.json.decode(anthropic_body.encode(msgspec.structs.replace(required, tools=tools), "claude-opus-5"))
        for tools in offers
    ]
    assert ["thinking" in body for body in bodies] == [True, False]
    assert [body["output_config"] for body in bodies] == [{"effort": "high"}] * 2


@pytest.mark.parametrize(
    ("model", "requested", "effort"),
    [
        ("claude-opus-4-5", "max", "high"),
        ("claude-opus-4-6", "xhigh", "max"),
        ("claude-haiku-5-5", "minimal", "low"),
        ("claude-opus-5", "medium", "medium"),
    ],
)
def test_anthropic_gets_its_own_word_for_the_effort(model: str, requested: Any, effort: str) -> None:
    body = msgspec.json.decode(anthropic_body.encode(sampled(GenerationOptions(reasoning_effort=requested)), model))
    assert body["output_config"] == {"effort": effort}


def test_google_gets_its_names_of_the_options() -> None:
    config = msgspec.json.decode(google_body.encode(sampled(), "gemini-3.8-flash"))["generationConfig"]
    assert config == {
        "responseModalities": ["TEXT"], "temperature": 1.5, "topP": 0.5, "seed": 2**31 - 1, "presencePenalty": 0.5,
        "frequencyPenalty": -0.5, "stopSequences": ["END", " "], "thinkingConfig": {"thinkingLevel": "HIGH"},
    }  # fmt: skip
    quiet = sampled(GenerationOptions(reasoning_effort="none"))
    budgets = [
        msgspec.json.decode(google_body.encode(quiet, model))["generationConfig"]["thinkingConfig"]
        for model in ("gemini-2.5-flash", "gemini-2.5-pro")
    ]
    assert budgets == [{"thinkingBudget": 0}, {"thinkingBudget": 128}]
    for name in ("gemini-2.0-flash", "models/gemini-1.5-pro", "gemma-3-27b-it"):
        body = msgspec.json.decode(google_body.encode(quiet, name))
        assert "thinkingConfig" not in body["generationConfig"]
        ref = model_names.parse(f"google:{name}")
        assert option_support.without_effect(ref, quiet.generation) == ["reasoning_effort"]


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        ("demo", {"logprobs": True}, "logprobs"),
        ("demo", {"temperature": 2, "stop": (" ",)}, None),
        ("openai:gpt-5", {"logprobs": True, "temperature": 2, "stop": (" ",)}, None),
        ("google:gemini-3", {"logprobs": True, "temperature": 2}, None),
        ("anthropic:claude-sonnet-4-5", {"logprobs": True}, "logprobs"),
        ("anthropic:claude-opus-5", {"temperature": 1, "top_p": 1, "frequency_penalty": 1}, None),
        ("anthropic:claude-opus-5", {"stop": ("\n",)}, "stop"),
    ],
)
def test_an_option_that_a_model_lacks_is_named(model: str, options: dict[str, Any], field: str | None) -> None:
    found = option_support.unsupported(model_names.parse(model), GenerationOptions(**options))
    assert (found.field if found else None) == field


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("openai:gpt-5", []),
        ("google:gemini-3", ["user"]),
        ("anthropic:claude-opus-5", ["seed", "presence_penalty", "frequency_penalty", "temperature", "top_p"]),
        (
            "anthropic:claude-3-haiku",
            ["seed", "presence_penalty", "frequency_penalty", "reasoning_effort", "temperature", "top_p"],
        ),
    ],
)
def test_options_without_effect_are_named(model: str, fields: list[str]) -> None:
    assert option_support.without_effect(model_names.parse(model), SAMPLING) == fields


def test_the_demo_model_stops_before_a_stop_text() -> None:
    script = stopped(script_of(("one ", "two E", "ND three"), ""), ("three", "END"))
    assert ("".join(script.tokens), script.finish) == ("one two ", "stop")
    assert stopped(script, ("no",)) == script


def test_providers_report_cached_tokens_and_reasoning() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 7}}
    usage["completion_tokens_details"] = {"reasoning_tokens": 6}
    openai, anthropic, google = AnswerReader(), MessageReader(), ContentReader()
    assert not list(openai.read([msgspec.json.encode({"choices": [], "usage": usage})]))
    started = {"type": "message_start", "message": {"usage": {"input_tokens": 2, "cache_read_input_tokens": 7}}}
    assert not list(anthropic.read([msgspec.json.encode(started)]))
    counts = {"promptTokenCount": 9, "cachedContentTokenCount": 7, "thoughtsTokenCount": 6}
    assert not list(google.read([msgspec.json.encode({"usageMetadata": counts})]))
    assert [reader.token_details for reader in (openai, anthropic, google)] == [(7, 6), (7, 0), (7, 6)]


LIKELY = (LikelyToken(token="a", logprob=-0.5), LikelyToken(token="b", logprob=-1.5))


def test_providers_probabilities_are_read() -> None:
    top = [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.5}]
    content = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}]
    openai, google = AnswerReader(), ContentReader()
    chunk = {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": content}}]}
    assert list(openai.read([msgspec.json.encode(chunk)])) == [TextChunk("a")]
    chosen = [{"token": "a", "tokenId": 1, "logProbability": -0.5}]
    likely = [{"candidates": [*chosen, {"token": "b", "logProbability": -1.5}]}]
    result = {"chosenCandidates": chosen, "topCandidates": likely}
    candidate = {"content": {"parts": [{"text": "a"}]}, "logprobsResult": result}
    assert list(google.read([msgspec.json.encode({"candidates": [candidate]})])) == [TextChunk("a")]
    assert openai.logprobs == [TokenLogprob(token="a", logprob=-0.5, bytes=(97,), top=LIKELY)]
    assert google.logprobs == [TokenLogprob(token="a", logprob=-0.5, top=LIKELY)]


def test_probabilities_are_divided_into_small_parts() -> None:
    tokens = [TokenLogprob(token=f"word{number}", logprob=-number, top=LIKELY * 10) for number in range(30)]
    parts = list(logprob_parts.split(tokens))
    assert [token for part in parts for token in part.tokens] == tokens
    assert len(parts) > 2
    assert all(len(encode(part)[1]) <= MAX_INLINE_BYTES for part in parts)
    many = logprob_parts.split(tokens * 100)
    assert sum(len(encode(part)[1]) for part in many) <= logprob_parts.MAX_TOTAL_BYTES * 1.1
