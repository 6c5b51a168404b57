"""The OpenAPI document of `/v1`: the part of OpenAI's protocol that Khala speaks, and its own headers."""

from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
from litestar import Response, get

from khala.api.openai.completion_options import DEFAULTS, MAX_EPHEMERAL_SECONDS, MIN_EPHEMERAL_SECONDS
from khala.api.openai.errors import Failure
from khala.api.openai.model_list import Model, Models
from khala.api.openai.request_body import MAX_MESSAGES, Completion
from khala.domain.idempotency import MAX_KEY_CHARACTERS

Json: TypeAlias = dict[str, Any]

REF = "#/components/schemas/{name}"
FLAG: Json = {"type": "string", "enum": ["true", "false"]}
DECIMAL: Json = {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,6})?$"}
COUNT: Json = {"type": "integer", "minimum": 1, "maximum": 1000}
HEADERS: dict[str, tuple[str, Json]] = {
    "Idempotency-Key": (
        "The same request again, with the same key, joins the same run.",
        {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS, "pattern": "^[!-~]+$"},
    ),
    "x-thread-id": ("Go on with this thread.", {"type": "string", "format": "uuid"}),
    "x-thread": ("The new thread is on no list, and ends by itself.", {"type": "string", "enum": ["ephemeral"]}),
    "x-thread-ttl": (
        "After so many seconds; with `x-thread: ephemeral` only.",
        {"type": "integer", "minimum": MIN_EPHEMERAL_SECONDS, "maximum": MAX_EPHEMERAL_SECONDS},
    ),
    "x-autopilot": ("The run goes on in rounds of Khala's tools.", FLAG),
    "x-autopilot-events": ("Whether a stream on autopilot is told as events.", FLAG),
    "x-max-steps": ("Rounds on autopilot.", {"type": "integer", "minimum": 1, "maximum": 50}),
    "x-khala-tools": ("Patterns of Khala's tools that are offered, by commas.", {"type": "string", "maxLength": 200}),
    "x-cancel-on-disconnect": ("The run is canceled when the client hangs up.", FLAG),
    "x-budget-usd": ("The most that the run may cost.", DECIMAL),
    "x-budget-tokens": ("The most tokens of the run.", COUNT),
    "x-budget-seconds": ("The most seconds of the run.", COUNT),
    "x-budget-tool-calls": ("The most tool calls of the run.", COUNT),
}
"""Each header's meaning and form."""
QUESTION: Json = {"model": "khala", "messages": [{"role": "user", "content": "What is a Khala?"}]}
EXAMPLES: Json = {
    "A question": {"value": QUESTION},
    "A stream, with its usage": {"value": QUESTION | {"stream": True, "stream_options": {"include_usage": True}}},
}
EVENT: Json = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
"""A server-sent event, each with a chunk, or `[DONE]`, as its data."""
ERRORS = (400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 502, 503, 504)
KHALA: Json = {
    "type": "object",
    "required": ["threadId", "runId", "ignored", "steps", "reason"],
    "properties": {
        "threadId": {"type": "string", "format": "uuid"},
        "runId": {"type": "string", "format": "uuid"},
        "ignored": {"type": "array", "items": {"type": "string"}, "description": "What changed nothing."},
        "steps": {"type": "integer"},
        "reason": {"type": "string"},
    },
}
COMPLETION: Json = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "khala"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "message", "finish_reason"],
                "properties": {
                    "message": {"type": "object", "required": ["role", "content"]},
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                },
            },
        },
        "usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
        "khala": KHALA,
    },
}


@get("/openapi.json", include_in_schema=False, lenient=True, sync_to_thread=False)
def read_document() -> Response[Json]:
    """The OpenAPI document of these routes."""
    return Response(document(), media_type="application/json")


@lru_cache(maxsize=1)
def document() -> Json:
    """The document."""
    _, components = msgspec.json.schema_components((Completion, Models, Model, Failure), ref_template=REF)
    fields = components["Completion"]["properties"]
    fields["messages"] |= {"minItems": 1, "maxItems": MAX_MESSAGES}
    fields["model"] = {"anyOf": [{"enum": list(DEFAULTS)}, {"type": "string"}]}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Khala, OpenAI-compatible", "version": "1"},
        "paths": {
            "/v1/chat/completions": {"post": _completion()},
            "/v1/models": {"get": _operation("listModels", "List models", {"application/json": _ref("Models")})},
            "/v1/models/{name}": {
                "get": _operation("readModel", "Read a model", {"application/json": _ref("Model")}, [name])
            },
        },
        "components": {
            "schemas": components | {"ChatCompletion": COMPLETION},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _completion() -> Json:
    header = {"in": "header", "required": False}
    headers = [header | {"name": name, "description": what, "schema": form} for name, (what, form) in HEADERS.items()]
    answers = {"application/json": _ref("ChatCompletion"), "text/event-stream": EVENT}
    said = {"schema": _ref("Completion"), "examples": EXAMPLES}
    body = {"required": True, "content": {"application/json": said}}
    return _operation("complete", "Answer a conversation", answers, headers) | {"requestBody": body}


def _operation(name: str, summary: str, answers: dict[str, Json], parameters: list[Json] | None = None) -> Json:
    failure = {"description": "An error.", "content": {"application/json": {"schema": _ref("Failure")}}}
    good = {"description": summary, "content": {kind: {"schema": schema} for kind, schema in answers.items()}}
    responses = {"200": good} | {str(status): failure for status in ERRORS}
    return {"operationId": name, "summary": summary, "parameters": parameters or [], "responses": responses}


def _ref(name: str) -> Json:
    return {"$ref": REF.format(name=name)}
