"""Reduces a JSON Schema to the keywords that the Gemini API knows.

https://ai.google.dev/gemini-api/docs/structured-output
"""

from collections.abc import Mapping
from typing import Any

KEPT = frozenset({
    "$ref", "type", "title", "description", "enum", "required", "minItems", "maxItems", "minimum", "maximum",
})  # fmt: skip
FORMATS = frozenset({"date-time", "date", "time"})
SCHEMAS = ("items", "additionalProperties")
LISTS = {"anyOf": "anyOf", "oneOf": "anyOf", "prefixItems": "prefixItems"}
"""Keywords with lists of schemas, and those that take their place."""
MAPS = ("properties", "$defs")


def known(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with known keywords only. Answers are checked against the whole schema when they are complete."""
    new = {key: value for key, value in schema.items() if key in KEPT}
    if "const" in schema and "enum" not in schema:
        new["enum"] = [schema["const"]]
    if schema.get("format") in FORMATS:
        new["format"] = schema["format"]
    for key in SCHEMAS:
        if key in schema:
            new[key] = _known(schema[key])
    for key, name in LISTS.items():
        if isinstance(schema.get(key), list):
            new[name] = list(map(_known, schema[key]))
    for key in MAPS:
        if isinstance(schema.get(key), dict):
            new[key] = {name: _known(inner) for name, inner in schema[key].items()}
    return new


def _known(schema: Any) -> Any:
    return known(schema) if isinstance(schema, dict) else schema
