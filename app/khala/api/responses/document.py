"""The OpenAPI document of `/v1`, with responses and conversations."""

from functools import lru_cache

from litestar import Response, get

from khala.api.openai.document import (
    EVENT,
    FLAG,
    HEADERS,
    KHALA,
    build,
    header_parameters,
    operation,
    reference,
)
from khala.api.openai.types import JsonObject
from khala.api.responses.types import ConversationChanges, NewConversation, NewItems, ResponseBody

OF_COMPLETIONS = ("x-autopilot-events", "x-khala-stream", "x-cancel-on-disconnect")
"""Headers without an effect on responses."""
STATUSES = ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
ITEM: JsonObject = {
    "type": "object",
    "required": ["id", "type"],
    "properties": {"id": {"type": "string"}, "type": {"type": "string"}, "status": {"type": "string"}},
    "description": "An item, as in OpenAI's protocol. An item of a call has its `call_id`.",
}
RESPONSE: JsonObject = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "error", "usage", "khala"],
    "properties": {
        "id": {"type": "string", "pattern": "^resp_[0-9a-f]{32}$"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": STATUSES},
        "model": {"type": "string"},
        "output": {"type": "array", "items": reference("Item")},
        "error": {"type": ["object", "null"]},
        "usage": {"type": ["object", "null"]},
        "khala": {
            "type": "object",
            "required": ["threadId", "runId", "ignored"],
            "properties": {name: KHALA["properties"][name] for name in ("threadId", "runId", "ignored")}
            | {"errorCode": {"type": "string"}},
        },
    },
}
CONVERSATION: JsonObject = {
    "type": "object",
    "required": ["id", "object", "created_at", "metadata", "khala"],
    "properties": {
        "id": {"type": "string", "pattern": "^conv_[0-9a-f]{32}$"},
        "object": {"const": "conversation"},
        "created_at": {"type": "integer"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "khala": {
            "type": "object",
            "required": ["threadId"],
            "properties": {"threadId": KHALA["properties"]["threadId"]},
        },
    },
}
ITEMS: JsonObject = {
    "type": "object",
    "required": ["object", "data", "first_id", "last_id", "has_more"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": reference("Item")},
        "first_id": {"type": ["string", "null"]},
        "last_id": {"type": ["string", "null"]},
        "has_more": {"type": "boolean"},
    },
}
DELETED: JsonObject = {
    "type": "object",
    "required": ["id", "object", "deleted"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["response", "conversation.deleted"]},
        "deleted": {"const": True},
    },
}
SCHEMAS = {
    "Item": ITEM, "Response": RESPONSE, "Conversation": CONVERSATION, "ItemList": ITEMS, "Deleted": DELETED,
}  # fmt: skip
QUESTION: JsonObject = {"role": "user", "content": "What is a Khala?"}
PAGE: list[JsonObject] = [
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}, "description": "The order of the items."},
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100},
     "description": "The maximum number of items."},
    {"name": "after", "in": "query", "schema": {"type": "string", "maxLength": 200},
     "description": "The id of the last item that you have."},
]  # fmt: skip


@get("/openapi.json", include_in_schema=False, lenient=True, sync_to_thread=False)
def read_document() -> Response[JsonObject]:
    """Return the OpenAPI document of these routes."""
    return Response(document(), media_type="application/json")


@lru_cache(maxsize=1)
def document() -> JsonObject:
    """Build the document, once."""
    structs = (ResponseBody, NewConversation, ConversationChanges, NewItems)
    return build(structs, SCHEMAS, _responses() | _conversations())


def _responses() -> JsonObject:
    response = _path("response_id", "The response's id.")
    resume = [
        {"name": "stream", "in": "query", "schema": FLAG, "description": "Whether to send events."},
        {"name": "starting_after", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
         "description": "The number of the last event that you have. Requires `stream=true`."},
    ]  # fmt: skip
    answer = {"application/json": reference("Response"), "text/event-stream": EVENT}
    headers = header_parameters(name for name in HEADERS if name not in OF_COMPLETIONS)
    examples: JsonObject = {
        "A question": {"model": "khala", "input": "What is a Khala?"},
        "A stream in the background": {"model": "khala", "input": [QUESTION], "stream": True, "background": True},
    }
    create = operation("createResponse", "Create a response", answer, headers)
    return {
        "/v1/responses": {"post": create | _body("ResponseBody", examples)},
        "/v1/responses/{response_id}": {
            "get": operation("readResponse", "Read a response, or its events", answer, [response, *resume]),
            "delete": operation("deleteResponse", "Delete a response", _json("Deleted"), [response]),
        },
        "/v1/responses/{response_id}/cancel": {
            "post": operation("cancelResponse", "Cancel a response", _json("Response"), [response])
        },
        "/v1/responses/{response_id}/input_items": {
            "get": operation("listInputItems", "List the input of a response", _json("ItemList"), [response, *PAGE])
        },
    }


def _conversations() -> JsonObject:
    conversation = _path("conversation_id", "The conversation's id.")
    item = [conversation, _path("item_id", "The item's id.")]
    metadata: JsonObject = {"metadata": {"topic": "khala"}}
    result = _json("Conversation")
    create = operation("createConversation", "Create a conversation", result)
    change = operation("changeConversation", "Replace the metadata of a conversation", result, [conversation])
    add = operation("addItems", "Add items to a conversation", _json("ItemList"), [conversation])
    return {
        "/v1/conversations": {
            "post": create | _body("NewConversation", {"With a message": metadata | {"items": [QUESTION]}})
        },
        "/v1/conversations/{conversation_id}": {
            "get": operation("readConversation", "Read a conversation", result, [conversation]),
            "post": change | _body("ConversationChanges", {"Metadata": metadata}),
            "delete": operation("deleteConversation", "Delete a conversation", _json("Deleted"), [conversation]),
        },
        "/v1/conversations/{conversation_id}/items": {
            "post": add | _body("NewItems", {"A message": {"items": [QUESTION]}}),
            "get": operation("listItems", "List the items of a conversation", _json("ItemList"), [conversation, *PAGE]),
        },
        "/v1/conversations/{conversation_id}/items/{item_id}": {
            "get": operation("readItem", "Read an item", _json("Item"), item),
            "delete": operation("deleteItem", "Delete the last item of a conversation", result, item),
        },
    }


def _json(name: str) -> dict[str, JsonObject]:
    return {"application/json": reference(name)}


def _path(name: str, description: str) -> JsonObject:
    schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[^/]+$"}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": description}


def _body(name: str, examples: JsonObject) -> JsonObject:
    media = {"schema": reference(name), "examples": {title: {"value": value} for title, value in examples.items()}}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}
