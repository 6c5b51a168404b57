"""Completes the OpenAPI document by what the server enforces and Litestar can't read from the types of requests.

What is valid by the document is accepted, unless what is stored speaks against it, or a rule that JSON Schema can't
express, which the descriptions name.
"""

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias

from khala.api.validation import MAX_MESSAGE_CHARACTERS
from khala.domain.access import SCOPES
from khala.domain.chat import BUDGET_BOUNDS
from khala.identity.passwords import MAX_EMAIL_CHARACTERS, MAX_PASSWORD_CHARACTERS, MIN_PASSWORD_CHARACTERS
from khala.tools.user_tools import LONGEST_DESCRIPTION, SECONDS

Schema: TypeAlias = dict[str, Any]

REF = "#/components/schemas/"
WITHOUT_NUL = r"^[^\u0000]*$"
SAYS_SOMETHING = r"^[^\u0000]*[^\s\u0000][^\u0000]*$"
"""Text that is more than white space."""
USD = r"^(?:10000(?:\.0{1,10})?|[1-9][0-9]{0,3}(?:\.[0-9]{1,10})?|0\.0{0,3}[1-9][0-9]{0,6})$"
"""Dollars from 0.0001 to 10,000, as they are usually written."""
SEVERAL_CHARACTERS = r"^([^\u0000])(?!\1*$)[^\u0000]*$"
"""Text that does not repeat one character."""


def _bounds(measure: str) -> Schema:
    least, most = BUDGET_BOUNDS[measure]
    return {"minimum": float(least) if least % 1 else int(least), "maximum": most}


PASSWORD: Schema = {
    "minLength": MIN_PASSWORD_CHARACTERS,
    "maxLength": MAX_PASSWORD_CHARACTERS,
    "pattern": SEVERAL_CHARACTERS,
}
EMAIL: Schema = {"format": "email", "maxLength": MAX_EMAIL_CHARACTERS}
FIELDS: dict[str, dict[str, Schema]] = {
    "SendRequest": {"text": {"maxLength": MAX_MESSAGE_CHARACTERS}},
    "Registration": {"email": EMAIL, "password": PASSWORD},
    "NewPassword": {"email": EMAIL, "new": PASSWORD},
    "Rule": {"pattern": {"minLength": 1, "maxLength": 200}},
    "NewTool": {
        "name": {"pattern": "^(?!.*__)[A-Za-z][A-Za-z0-9_-]{0,63}$"},
        "description": {"minLength": 1, "maxLength": LONGEST_DESCRIPTION},
        "parameters": {"description": "A JSON Schema (2020-12) of an object."},
        "code": {"minLength": 1, "pattern": SAYS_SOMETHING},
        "permissions": {"items": {"type": "string", "enum": ["code"]}},
        "timeout": {"minimum": SECONDS[0], "maximum": SECONDS[-1]},
    },
    "Function": {"parameters": {"description": "A JSON Schema (2020-12) of an object; `{}` has no fields."}},
    "NewLink": {"expiresAt": {"description": "In the future, within ten years."}},
    "NewToken": {
        "scopes": {"items": {"type": "string", "enum": [*SCOPES]}, "uniqueItems": True},
        "expiresAt": {"description": "In the future, within ten years."},
    },
    "RunBudget": {
        "usd": {
            "oneOf": [{"type": "string", "pattern": USD}, {"type": "number", **_bounds("usd")}, {"type": "null"}],
        },
        "tokens": _bounds("tokens"),
        "seconds": _bounds("seconds"),
        "toolCalls": _bounds("tool_calls"),
    },
}
"""What fields of requests are bound by, beside what their types say."""
OBJECTS: dict[str, Schema] = {
    "ThreadChanges": {"minProperties": 1},
    "SendRequest": {
        "anyOf": [
            {"properties": {"text": {"type": "string", "pattern": SAYS_SOMETHING}}},
            {"properties": {"attachments": {"type": "array", "minItems": 1}}, "required": ["attachments"]},
        ]
    },
}
PARAMETERS: dict[tuple[str, str], Schema] = {
    ("oidcLogin", "returnTo"): {"description": "A path of this server's to come back to; any other becomes `/`."},
    ("readBlobLines", "pattern"): {"description": "A regular expression in RE2's syntax; `mode=grep` needs one."},
}


def complete(document: Schema) -> Schema:
    """A document with what the server enforces beside it."""
    made = copy.deepcopy(document)
    components = made["components"]["schemas"]
    operations = [operation for verbs in made["paths"].values() for operation in verbs.values()]
    for operation in operations:
        for parameter in operation.get("parameters", []):
            _complete_parameter(operation["operationId"], parameter)
    for name in _sent(operations, components):
        _complete_object(name, components[name])
    return made


def _sent(operations: list[Schema], components: Schema) -> set[str]:
    """The components that requests are made of."""
    found: set[str] = set()
    ahead = [name for operation in operations for name in _references(operation.get("requestBody"))]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += _references(components[name])
    return found


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            if name == "$ref":
                yield str(one).removeprefix(REF)
            else:
                yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _complete_object(name: str, component: Schema) -> None:
    component["additionalProperties"] = False
    for field, schema in component.get("properties", {}).items():
        schema.update(copy.deepcopy(FIELDS.get(name, {}).get(field, {})))
        _forbid_nul(schema)
    component.update(copy.deepcopy(OBJECTS.get(name, {})))


def _complete_parameter(operation: str, parameter: Schema) -> None:
    """In an address nothing stands for null; what is absent is left out."""
    schema = parameter["schema"]
    kinds = [one for one in schema.pop("oneOf", []) if one != {"type": "null"}]
    schema.update(*kinds)
    parameter.update(PARAMETERS.get((operation, parameter["name"]), {}))
    if parameter["in"] != "header":
        _forbid_nul(schema)


def _forbid_nul(schema: Schema) -> None:
    """No text takes NUL; what has a form of its own has none anyway."""
    if {"pattern", "format", "enum", "const"} & set(schema):
        return
    for one in [*schema.get("oneOf", []), schema.get("items")]:
        if isinstance(one, dict):
            _forbid_nul(one)
    if schema.get("type") == "string":
        schema["pattern"] = WITHOUT_NUL
