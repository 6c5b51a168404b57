"""Rewrites a JSON Schema in the part of JSON Schema that Anthropic enforces.

https://docs.claude.com/en/docs/build-with-claude/structured-outputs
"""

from collections.abc import Iterator, Mapping
from typing import Any

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)  # fmt: skip
PRIMITIVES = (str, int, float, bool, type(None))
LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
"""Keywords with lists of schemas, and those that take their place."""
DEFINITIONS = "#/$defs/"


class NotEnforceableError(ValueError):
    """Anthropic can't enforce this schema without refusing answers that fit it."""


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema for the request, None if there is none.

    Objects get no additional properties, and conditions such as `minimum` are left out: Khala checks the whole schema
    when the answer is complete. Objects with any names, and recursive schemas, cannot be enforced.
    """
    try:
        _require_no_recursion(schema)
        return _rewrite(schema)
    except NotEnforceableError:
        return None


def _rewrite(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise NotEnforceableError
    new = {key: schema[key] for key in ("title", "description") if isinstance(schema.get(key), str)}
    if isinstance(schema.get("$defs"), dict):
        new["$defs"] = {name: _rewrite(definition) for name, definition in schema["$defs"].items()}
    if "$ref" in schema:
        if not str(schema["$ref"]).startswith(DEFINITIONS):
            raise NotEnforceableError
        return new | {"$ref": schema["$ref"]}
    if _is_list_of_primitives(schema.get("enum")):
        return new | {"enum": schema["enum"]}
    if "const" in schema and isinstance(schema["const"], PRIMITIVES):
        return new | {"const": schema["const"]}
    for key, name in LISTS.items():
        if isinstance(schema.get(key), list) and "properties" not in schema:
            return new | {name: list(map(_rewrite, schema[key]))}
    return new | _typed(schema)


def _typed(schema: Mapping[str, Any]) -> dict[str, Any]:
    kinds = schema.get("type")
    types = kinds if isinstance(kinds, list) else [kinds]
    if not types or not all(isinstance(kind, str) for kind in types):
        raise NotEnforceableError
    new: dict[str, Any] = {"type": kinds}
    if "object" in types:
        new |= _object(schema)
    if "array" in types:
        if "items" not in schema:
            raise NotEnforceableError
        new["items"] = _rewrite(schema["items"])
        if schema.get("minItems") in (0, 1):
            new["minItems"] = schema["minItems"]
    if schema.get("format") in FORMATS:
        new["format"] = schema["format"]
    return new


def _object(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    if schema.get("additionalProperties") or "patternProperties" in schema or not isinstance(properties, dict):
        raise NotEnforceableError
    if not properties and schema.get("additionalProperties") is not False:
        raise NotEnforceableError
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(name in properties for name in required):
        raise NotEnforceableError
    fields = {name: _rewrite(field) for name, field in properties.items()}
    return {"properties": fields, "required": required, "additionalProperties": False}


def _is_list_of_primitives(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, PRIMITIVES) for item in value)


def _require_no_recursion(schema: Mapping[str, Any]) -> None:
    definitions = schema.get("$defs")
    definitions = definitions if isinstance(definitions, dict) else {}
    uses = {name: set(_references(definition)) for name, definition in definitions.items()}
    while leaves := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in leaves:
            del uses[name]
    if uses:
        raise NotEnforceableError


def _references(value: Any) -> Iterator[str]:
    """The names of the definitions to which a schema refers."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            target = item.get("$ref")
            if isinstance(target, str):
                yield target.removeprefix(DEFINITIONS)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
