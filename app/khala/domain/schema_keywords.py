"""The keywords of JSON Schema (2020-12): their kinds, the values that their subschemas apply to, and their costs."""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote

Reach: TypeAlias = Literal["same", "below", "apart"]
"""The values that a subschema applies to: the same value, the values within it, or none without a reference."""

DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data, not a schema."""
ANNOTATIONS = frozenset({"$comment", "default", "deprecated", "description", "examples", "format", "readOnly", "title",
                         "writeOnly", "contentEncoding", "contentMediaType"})  # fmt: skip
"""Keywords that assert nothing."""
REFERENCES = ("$ref", "$dynamicRef")
ANCHORS = ("$anchor", "$dynamicAnchor")
SINGLE: dict[str, Reach] = {
    "not": "same", "if": "same", "then": "same", "else": "same",
    "additionalProperties": "below", "propertyNames": "below", "items": "below", "contains": "below",
    "unevaluatedItems": "below", "unevaluatedProperties": "below", "additionalItems": "below",
    "contentSchema": "apart",
}  # fmt: skip
"""Keywords whose value is a schema."""
LISTS: dict[str, Reach] = {"allOf": "same", "anyOf": "same", "oneOf": "same", "prefixItems": "below"}
"""Keywords whose value is a list of schemas."""
MAPS: dict[str, Reach] = {
    "dependentSchemas": "same", "dependencies": "same", "properties": "below", "patternProperties": "below",
    "$defs": "apart", "definitions": "apart",
}  # fmt: skip
"""Keywords whose value is an object of schemas by name."""
ASSERTIONS = frozenset({"type", "pattern", "required", "dependentRequired", "multipleOf", "uniqueItems", "minimum",
                        "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
                        "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"})  # fmt: skip
KNOWN_KEYWORDS = ASSERTIONS | ANNOTATIONS | DATA | SINGLE.keys() | LISTS.keys() | MAPS.keys()
PLAIN_CHARACTERS = "#/~!$&'()*+,;=:@?"
"""Characters that references need not encode, besides letters, digits and `-._~`."""
TYPE_NAMES = ("array", "boolean", "integer", "null", "number", "object", "string")
FRACTION_WEIGHT = 300
"""The weight of `multipleOf` with a fraction, which is computed with exact arithmetic."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Reach, dict[str, Any]]]:
    """The direct subschemas that are objects. Malformed keywords are skipped."""
    for key, value in schema.items():
        if key in SINGLE and isinstance(value, dict):
            yield SINGLE[key], value
        elif key in LISTS and isinstance(value, list):
            yield from ((LISTS[key], item) for item in value if isinstance(item, dict))
        elif key in MAPS and isinstance(value, dict):
            yield from ((MAPS[key], item) for item in value.values() if isinstance(item, dict))


def references(schema: dict[str, Any]) -> list[str]:
    """The references in the schema itself."""
    return [schema[key] for key in REFERENCES if isinstance(schema.get(key), str)]


def encoded_references(schema: dict[str, Any]) -> dict[str, str]:
    """The references, encoded as URIs: many programs leave spaces and brackets unencoded."""
    named = {key: schema[key] for key in REFERENCES if isinstance(schema.get(key), str)}
    return {key: quote(unquote(target), safe=PLAIN_CHARACTERS) for key, target in named.items()}


def own_weight(schema: dict[str, Any]) -> int:
    """The cost of a schema's keywords, without the subschemas."""
    weight = 1
    for key, value in schema.items():
        if key == "multipleOf" and isinstance(value, float):
            weight += FRACTION_WEIGHT
        elif key in MAPS or key in LISTS:
            weight += len(value) if isinstance(value, dict | list) else 1
        elif key not in ANNOTATIONS:
            weight += 1 if key in SINGLE or key not in KNOWN_KEYWORDS else _extent(value)
    return weight


def _extent(value: Any) -> int:
    """The size of a value that instances are compared with: the number of values within it; long texts count more."""
    extent, pending = 0, [value]
    while pending:
        item = pending.pop()
        extent += 1 + (len(item) // 16 if isinstance(item, str) else 0)
        if isinstance(item, dict):
            pending.extend(item.values())
            pending.extend(item)
        elif isinstance(item, list):
            pending.extend(item)
    return extent
