"""The OpenAPI document of `/v1`: the supported part of OpenAI's protocol, and Khala's own headers."""

from collections.abc import Iterable, Sequence

import msgspec

from khala.api.openai.completion_options import (
    AGENT_HEADER,
    CONTEXT_HEADER,
    DEFAULT_MODEL_NAMES,
    INSTRUCTIONS_HEADER,
    MAX_EPHEMERAL_SECONDS,
    MIN_EPHEMERAL_SECONDS,
    PERSONAL_HEADER,
    STREAM_HEADER,
)
from khala.api.openai.embeddings import MAX_INPUTS
from khala.api.openai.request_body import MAX_MESSAGES
from khala.api.openai.types import (
    MAX_CHOICES,
    CompletionBody,
    EmbeddingBody,
    EmbeddingList,
    ErrorResponse,
    JsonObject,
    ListedModel,
    ListedModels,
)
from khala.domain.chat import MAX_AGENT_NAME_CHARACTERS
from khala.domain.idempotency import MAX_KEY_CHARACTERS
from khala.models.embeddings.embedder import MAX_CHARACTERS

REF = "#/components/schemas/{name}"
FLAG: JsonObject = {"type": "string", "enum": ["true", "false"]}
DECIMAL: JsonObject = {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,6})?$"}
COUNT: JsonObject = {"type": "integer", "minimum": 1, "maximum": 1000}
HEADERS: dict[str, tuple[str, JsonObject]] = {
    "Idempotency-Key": (
        "A retry with the same key and the same body joins the same run.",
        {"type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARACTERS, "pattern": "^[!-~]+$"},
    ),
    "x-thread-id": ("Continue this thread.", {"type": "string", "format": "uuid"}),
    "x-thread": (
        "Create an unlisted thread that is deleted after `x-thread-ttl`.",
        {"type": "string", "enum": ["ephemeral"]},
    ),
    "x-thread-ttl": (
        "The lifetime of an ephemeral thread, in seconds. Requires `x-thread: ephemeral`.",
        {"type": "integer", "minimum": MIN_EPHEMERAL_SECONDS, "maximum": MAX_EPHEMERAL_SECONDS},
    ),
    "x-autopilot": ("Let the run use the server's tools in several steps.", FLAG),
    "x-autopilot-events": ("Whether the stream of an autopilot run consists of Khala's events.", FLAG),
    "x-max-steps": (
        "The maximum number of steps of an autopilot run.",
        {"type": "integer", "minimum": 1, "maximum": 50},
    ),
    "x-khala-tools": (
        "Patterns of the server's tools to offer, separated by commas.",
        {"type": "string", "maxLength": 200},
    ),
    AGENT_HEADER: (
        "The name of the agent that answers, or the link of a shared agent.",
        {"type": "string", "maxLength": MAX_AGENT_NAME_CHARACTERS},
    ),
    STREAM_HEADER: (
        "Whether a stream of JSON has its text at once, or when it has been checked.",
        {"type": "string", "enum": ["live", "checked"]},
    ),
    INSTRUCTIONS_HEADER: (
        "Whether the server's own instructions come before those of the request: by default on autopilot only.",
        {"type": "string", "enum": ["prepend", "omit"]},
    ),
    CONTEXT_HEADER: (
        "Whether a conversation that is too long is shortened or refused. By default only autopilot shortens it.",
        {"type": "string", "enum": ["shorten", "error"]},
    ),
    PERSONAL_HEADER: ("Whether the account's own instructions and preferred model are used.", FLAG),
    "x-cancel-on-disconnect": ("Cancel the run when the client disconnects.", FLAG),
    "x-budget-usd": ("The maximum cost of the run, in US dollars.", DECIMAL),
    "x-budget-tokens": ("The maximum number of tokens of the run.", COUNT),
    "x-budget-seconds": ("The maximum duration of the run, in seconds.", COUNT),
    "x-budget-tool-calls": ("The maximum number of tool calls of the run.", COUNT),
}
"""The description and the schema of each header."""
QUESTION: JsonObject = {"model": "khala", "messages": [{"role": "user", "content": "What is a Khala?"}]}
EXAMPLES: JsonObject = {
    "A question": {"value": QUESTION},
    "A stream, with its usage": {"value": QUESTION | {"stream": True, "stream_options": {"include_usage": True}}},
}
EVENT: JsonObject = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
"""A server-sent event. Its data is a chunk, or `[DONE]`."""
ERRORS = (400, 401, 403, 404, 409, 413, 415, 422, 429, 500, 502, 503, 504)
KHALA: JsonObject = {
    "type": "object",
    "required": ["threadId", "runId", "ignored", "steps", "reason"],
    "properties": {
        "threadId": {"type": "string", "format": "uuid"},
        "runId": {"type": "string", "format": "uuid"},
        "ignored": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Paths of the request that had no effect.",
        },
        "runIds": {
            "type": "array",
            "items": {"type": "string", "format": "uuid"},
            "description": "The runs of all choices, if there are several.",
        },
        "steps": {"type": "integer"},
        "reason": {"type": "string"},
    },
}
COMPLETION: JsonObject = {
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
            "maxItems": MAX_CHOICES,
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


def build(structs: Sequence[type], schemas: JsonObject, paths: JsonObject) -> JsonObject:
    """Build the document with further paths. `structs` and `schemas` are what they refer to."""
    own = (CompletionBody, EmbeddingBody, EmbeddingList, ListedModels, ListedModel, ErrorResponse)
    _, components = msgspec.json.schema_components((*own, *structs), ref_template=REF)
    text: JsonObject = {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS}
    texts: JsonObject = {"type": "array", "items": text, "minItems": 1, "maxItems": MAX_INPUTS}
    components["EmbeddingBody"]["properties"]["input"] = {"anyOf": [text, texts]}
    fields = components["CompletionBody"]["properties"]
    fields["messages"] |= {"minItems": 1, "maxItems": MAX_MESSAGES}
    fields["model"] = {"anyOf": [{"enum": list(DEFAULT_MODEL_NAMES)}, {"type": "string"}]}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Khala, OpenAI-compatible", "version": "1"},
        "paths": {
            "/v1/chat/completions": {"post": _completion()},
            "/v1/embeddings": {"post": _embeddings()},
            "/v1/models": {
                "get": operation("listModels", "List models", {"application/json": reference("ListedModels")})
            },
            "/v1/models/{name}": {
                "get": operation("readModel", "Read a model", {"application/json": reference("ListedModel")}, [name])
            },
        }
        | paths,
        "components": {
            "schemas": components | {"ChatCompletion": COMPLETION} | schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _completion() -> JsonObject:
    headers = header_parameters(HEADERS)
    contents = {"application/json": reference("ChatCompletion"), "text/event-stream": EVENT}
    media = {"schema": reference("CompletionBody"), "examples": EXAMPLES}
    body = {"required": True, "content": {"application/json": media}}
    return operation("complete", "Answer a conversation", contents, headers) | {"requestBody": body}


def _embeddings() -> JsonObject:
    media = {
        "schema": reference("EmbeddingBody"),
        "examples": {"A text": {"value": {"model": "khala", "input": "A text"}}},
    }
    body = {"required": True, "content": {"application/json": media}}
    return operation("embed", "Embed texts", {"application/json": reference("EmbeddingList")}) | {"requestBody": body}


def header_parameters(names: Iterable[str]) -> list[JsonObject]:
    """Describe these headers of a request."""
    header = {"in": "header", "required": False}
    described = {name: HEADERS[name] for name in names}
    return [
        header | {"name": name, "description": description, "schema": schema}
        for name, (description, schema) in described.items()
    ]


def operation(
    name: str, summary: str, contents: dict[str, JsonObject], parameters: list[JsonObject] | None = None
) -> JsonObject:
    """Describe an operation with the errors of these routes. `contents` are the schemas of its result by media type."""
    failure = {"description": "An error.", "content": {"application/json": {"schema": reference("ErrorResponse")}}}
    success = {"description": summary, "content": {kind: {"schema": schema} for kind, schema in contents.items()}}
    responses = {"200": success} | {str(status): failure for status in ERRORS}
    return {"operationId": name, "summary": summary, "parameters": parameters or [], "responses": responses}


def reference(name: str) -> JsonObject:
    """Refer to a schema."""
    return {"$ref": REF.format(name=name)}
