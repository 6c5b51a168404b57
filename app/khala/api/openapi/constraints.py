"""Adds the constraints to the OpenAPI document that Litestar cannot read from the types of requests.

The server accepts a request that is valid by the document, unless the stored state or a rule that JSON Schema cannot
express forbids it. The descriptions name these rules.
"""

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias

from khala.api.accounts.types import NewPassword, NewToken, Registration
from khala.api.agents.types import AgentChanges, NewAgent, RouteRequest
from khala.api.memories.types import MemoryBody, MemoryChanges
from khala.api.plans.types import ImportedPlan, NewPlan, PlanDetailChanges, PlanEdit
from khala.api.schedules.types import NewSchedule, ScheduleEdit
from khala.api.sharing.types import InvitationByAddress, NewLink
from khala.api.threads.types import AppendedMessage, AppendedText, NewMessage, ThreadChanges
from khala.api.tools.types import NewTool
from khala.api.validation import MAX_MESSAGE_CHARACTERS
from khala.api.webhooks.types import NewReplay
from khala.domain.access import SCOPES
from khala.domain.agents import (
    MAX_EXAMPLE_CHARACTERS,
    MAX_EXAMPLES,
    MAX_FALLBACKS,
    MAX_MODEL_CHARACTERS,
    MAX_PATTERN_CHARACTERS,
)
from khala.domain.chat import (
    BUDGET_BOUNDS,
    MAX_AGENT_NAME_CHARACTERS,
    MAX_TOOL_PATTERNS,
    ClientFunction,
    RunBudget,
    RunOptions,
)
from khala.domain.executor_protocol import MAX_CALL_ID_CHARACTERS, ReleaseRequest, RunClaimRequest
from khala.domain.generation import MAX_STOP_CHARACTERS, MAX_TOOL_NAME_CHARACTERS, ResponseFormat, ToolChoice
from khala.domain.plans.config_changes import PlanConfigChanges
from khala.domain.plans.plan import MAX_CRITERION_CHARACTERS, MAX_USD, MIN_USD, PlanBudget, PlannedStep
from khala.domain.plans.step_limits import MAX_ID_CHARACTERS, STEP_ID
from khala.domain.tools import ToolRule
from khala.identity.passwords import MAX_EMAIL_CHARACTERS, MAX_PASSWORD_CHARACTERS, MIN_PASSWORD_CHARACTERS
from khala.tools.user_tools import MAX_DESCRIPTION_CHARACTERS, TIMEOUT_SECONDS

Schema: TypeAlias = dict[str, Any]

REF = "#/components/schemas/"
WITHOUT_NUL = r"^[^\u0000]*$"
NOT_BLANK = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"
"""Text with at least one character that is not white space."""
USD = r"^(?:10000(?:\.0{1,10})?|[1-9][0-9]{0,3}(?:\.[0-9]{1,10})?|0\.0{0,3}[1-9][0-9]{0,6})$"
"""Dollars from 0.0001 to 10,000, in decimal notation."""
NOT_REPEATED = r"^([^\u0000])(?!\1*$)[^\u0000]*$"
"""Text that is not one repeated character."""


def _bounds(measure: str) -> Schema:
    minimum, maximum = BUDGET_BOUNDS[measure]
    return {"minimum": float(minimum) if minimum % 1 else int(minimum), "maximum": maximum}


PASSWORD: Schema = {
    "minLength": MIN_PASSWORD_CHARACTERS,
    "maxLength": MAX_PASSWORD_CHARACTERS,
    "pattern": NOT_REPEATED,
}
EMAIL: Schema = {"format": "email", "maxLength": MAX_EMAIL_CHARACTERS}


def _texts(most: int, most_characters: int) -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": most_characters, "pattern": WITHOUT_NUL}
    return {"oneOf": [{"type": "array", "items": text, "maxItems": most}]}


def _items(most_characters: int, pattern: str = WITHOUT_NUL) -> Schema:
    return {"items": {"type": "string", "minLength": 1, "maxLength": most_characters, "pattern": pattern}}


STEP_IDS = _items(MAX_ID_CHARACTERS, f"^{STEP_ID.pattern}$")
AGENT_LISTS: dict[str, Schema] = {
    "tools": _texts(MAX_TOOL_PATTERNS, MAX_PATTERN_CHARACTERS),
    "fallbacks": _texts(MAX_FALLBACKS, MAX_MODEL_CHARACTERS),
    "examples": _texts(MAX_EXAMPLES, MAX_EXAMPLE_CHARACTERS),
}
AGENT_NAMES = _items(MAX_AGENT_NAME_CHARACTERS, "^[a-z][a-z0-9-]{0,62}$")
FIELDS: dict[type, dict[str, Schema]] = {
    RunClaimRequest: {
        "agents": {"oneOf": [{"type": "array", "minItems": 1, "maxItems": 100, **AGENT_NAMES}, {"type": "null"}]}
    },
    ReleaseRequest: {"awaits": _items(MAX_CALL_ID_CHARACTERS)},
    NewMessage: {"text": {"maxLength": MAX_MESSAGE_CHARACTERS}, "after": {"minimum": 0}},
    NewReplay: {"afterRevision": {"minimum": 0}},
    NewSchedule: {"name": {"pattern": WITHOUT_NUL}, "text": {"pattern": NOT_BLANK}},
    ScheduleEdit: {"name": {"pattern": WITHOUT_NUL}, "text": {"pattern": NOT_BLANK}},
    AppendedText: {"text": {"pattern": WITHOUT_NUL}},
    AppendedMessage: {"author": {"pattern": WITHOUT_NUL}},
    Registration: {"email": EMAIL, "password": PASSWORD},
    NewPassword: {"email": EMAIL, "new": PASSWORD},
    InvitationByAddress: {"email": EMAIL},
    ToolRule: {"pattern": {"minLength": 1, "maxLength": 200}},
    NewTool: {
        "name": {"pattern": "^(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,63}$"},
        "description": {"minLength": 1, "maxLength": MAX_DESCRIPTION_CHARACTERS},
        "parameters": {"description": "A JSON Schema (2020-12) of an object."},
        "code": {"minLength": 1, "pattern": NOT_BLANK},
        "permissions": {"items": {"type": "string", "enum": ["code"]}},
        "timeout": {"minimum": TIMEOUT_SECONDS[0], "maximum": TIMEOUT_SECONDS[-1]},
    },
    ClientFunction: {"parameters": {"description": "A JSON Schema (2020-12) of an object. `{}` has no fields."}},
    NewLink: {"expiresAt": {"description": "In the future, within ten years."}},
    NewToken: {
        "scopes": {"items": {"type": "string", "enum": [*SCOPES]}, "uniqueItems": True},
        "agents": AGENT_NAMES | {"uniqueItems": True},
        "expiresAt": {"description": "In the future, within ten years."},
    },
    NewAgent: AGENT_LISTS,
    RouteRequest: {"text": {"maxLength": MAX_MESSAGE_CHARACTERS, "pattern": NOT_BLANK}},
    AgentChanges: AGENT_LISTS,
    MemoryBody: {"text": {"pattern": NOT_BLANK}, "expiresAt": {"description": "In the future, within ten years."}},
    MemoryChanges: {"text": {"pattern": NOT_BLANK}, "expiresAt": {"description": "In the future, within ten years."}},
    PlannedStep: {
        "id": {"pattern": f"^{STEP_ID.pattern}$"},
        "title": {"pattern": NOT_BLANK},
        "acceptance": _items(MAX_CRITERION_CHARACTERS),
        "dependsOn": STEP_IDS | {"description": "The ids of other steps. No step may depend on itself."},
    },
    NewPlan: {"title": {"pattern": NOT_BLANK}},
    ImportedPlan: {"title": {"oneOf": [{"type": "string", "pattern": NOT_BLANK}, {"type": "null"}]}},
    # The pattern is beside the bound, and not within `oneOf`: otherwise schemathesis needs minutes for a text over it.
    PlanDetailChanges: {"title": {"pattern": NOT_BLANK}, "goal": {"type": "string", "pattern": WITHOUT_NUL}},
    PlanConfigChanges: {
        "agents": {"oneOf": [{"type": "array", "uniqueItems": True, **_items(MAX_AGENT_NAME_CHARACTERS)}]},
        "maxRetries": {"minimum": 0},
        "retryBaseMs": {"minimum": 0},
        "rateLimitRetries": {"minimum": 0},
        "stepDelayMs": {"minimum": 0},
    },
    PlanBudget: {
        "usd": {
            "oneOf": [
                {"type": "string", "pattern": USD},
                {"type": "number", "minimum": float(MIN_USD), "maximum": MAX_USD},
                {"type": "null"},
            ]
        },
        "tokens": {"exclusiveMinimum": 0},
        "seconds": {"exclusiveMinimum": 0},
    },
    PlanEdit: {"remove": STEP_IDS, "order": STEP_IDS, "ifEventSeq": {"minimum": 0}},
    RunOptions: {
        "stop": _items(MAX_STOP_CHARACTERS),
        # Litestar leaves out a bound of 0 beside null.
        "temperature": {"minimum": 0},
        "topP": {"minimum": 0},
    },
    ToolChoice: {"tools": _items(MAX_TOOL_NAME_CHARACTERS)},
    RunBudget: {
        "usd": {
            "oneOf": [{"type": "string", "pattern": USD}, {"type": "number", **_bounds("usd")}, {"type": "null"}],
        },
        "tokens": _bounds("tokens"),
        "seconds": _bounds("seconds"),
        "toolCalls": _bounds("tool_calls"),
    },
}
"""Constraints of single fields."""
OBJECTS: dict[type, Schema] = {
    NewToken: {
        "anyOf": [
            {
                "properties": {
                    "scopes": {"items": {"enum": [scope for scope in SCOPES if scope != "execute"]}},
                    "agents": {"maxItems": 0},
                }
            },
            {
                "properties": {"scopes": {"items": {"const": "execute"}}, "agents": {"minItems": 1}},
                "required": ["scopes", "agents"],
            },
        ]
    },
    MemoryBody: {
        "anyOf": [
            {"properties": {"scope": {"enum": ["user", None]}, "agent": {"type": "null"}}},
            {
                "properties": {"scope": {"const": "thread"}, "agent": {"type": "null"}, "threadId": {"type": "string"}},
                "required": ["scope", "threadId"],
            },
            {
                "properties": {"scope": {"const": "agent"}, "agent": {"type": "string"}},
                "required": ["scope", "agent"],
            },
        ]
    },
    ResponseFormat: {
        "anyOf": [
            {"properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}}, "required": ["schema"]},
            {"properties": {"type": {"enum": ["text", "json_object"]}, "schema": {"type": "null"}}},
        ]
    },
    ThreadChanges: {"minProperties": 1},
    PlanDetailChanges: {"minProperties": 1},
    NewMessage: {
        "anyOf": [
            {"properties": {"text": {"type": "string", "pattern": NOT_BLANK}}},
            {"properties": {"attachments": {"type": "array", "minItems": 1}}, "required": ["attachments"]},
        ]
    },
}
"""Constraints of whole objects."""
_FIELDS_BY_NAME = {struct.__name__: fields for struct, fields in FIELDS.items()}
_OBJECTS_BY_NAME = {struct.__name__: schema for struct, schema in OBJECTS.items()}
PARAMETERS: dict[tuple[str, str], Schema] = {
    ("oidcLogin", "returnTo"): {
        "description": "The path on this server to return to. Anything else is replaced by `/`."
    },
    ("readBlobLines", "pattern"): {"description": "A regular expression in RE2 syntax. Required for `mode=grep`."},
}
"""Constraints of query parameters, by operation and name."""


def complete(document: Schema) -> Schema:
    """Return a copy of the document with the constraints that the server enforces."""
    completed = copy.deepcopy(document)
    components = completed["components"]["schemas"]
    _correct_tuples(components)
    operations = [operation for methods in completed["paths"].values() for operation in methods.values()]
    for operation in operations:
        for parameter in operation.get("parameters", []):
            _complete_parameter(operation["operationId"], parameter)
    for name in _request_components(operations, components):
        _complete_component(name, components[name])
    return completed


def _correct_tuples(schema: Any) -> None:
    """Let the items of `tuple[X, ...]` be X. Litestar documents them as either X or anything."""
    for nested in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _correct_tuples(nested)
    items = schema.get("items") if isinstance(schema, dict) else None
    if isinstance(items, dict) and len(items.get("oneOf", ())) == 2 and items["oneOf"][1] == {}:
        schema["items"] = items["oneOf"][0]


def _request_components(operations: list[Schema], components: Schema) -> set[str]:
    """Return the names of all components that request bodies refer to, directly or not."""
    names: set[str] = set()
    pending = [name for operation in operations for name in _references(operation.get("requestBody"))]
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending += _references(components[name])
    return names


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "$ref":
                yield str(value).removeprefix(REF)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def _complete_component(name: str, component: Schema) -> None:
    component["additionalProperties"] = False
    for field, schema in component.get("properties", {}).items():
        schema.update(copy.deepcopy(_FIELDS_BY_NAME.get(name, {}).get(field, {})))
        _forbid_nul(schema)
    component.update(copy.deepcopy(_OBJECTS_BY_NAME.get(name, {})))


def _complete_parameter(operation: str, parameter: Schema) -> None:
    """Remove null from the schema: a URL cannot contain it. Clients omit an absent parameter."""
    schema = parameter["schema"]
    types = [option for option in schema.pop("oneOf", []) if option != {"type": "null"}]
    schema.update(*types)
    parameter.update(PARAMETERS.get((operation, parameter["name"]), {}))
    if parameter["in"] != "header":
        _forbid_nul(schema)


def _forbid_nul(schema: Schema) -> None:
    """Forbid NUL in strings. Strings with a pattern, format or enum cannot contain it anyway."""
    if {"pattern", "format", "enum", "const"} & set(schema):
        return
    for nested in [*schema.get("oneOf", []), schema.get("items")]:
        if isinstance(nested, dict):
            _forbid_nul(nested)
    if schema.get("type") == "string":
        schema["pattern"] = WITHOUT_NUL
