"""The keywords of JSON Schema (2020-12): which of them hold schemas, where those apply, and what each costs."""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, unquote

Reach: TypeAlias = Literal["same", "below", "apart"]
"""Where a subschema applies: to the same value, to the values within it, or only where a reference leads to it."""

DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is no schema."""
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
"""What stands for itself in a reference, beside letters, digits and `-._~`."""
TYPE_NAMES = ("array", "boolean", "integer", "null", "number", "object", "string")
FRACTION_WEIGHT = 300
"""The weight of `multipleOf` with a fraction, which is computed exactly."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Reach, dict[str, Any]]]:
    """The schemas right within this one that are objects. What has not the form that it should have is left out."""
    for key, value in schema.items():
        if key in SINGLE and isinstance(value, dict):
            yield SINGLE[key], value
        elif key in LISTS and isinstance(value, list):
            yield from ((LISTS[key], one) for one in value if isinstance(one, dict))
        elif key in MAPS and isinstance(value, dict):
            yield from ((MAPS[key], one) for one in value.values() if isinstance(one, dict))


def references(schema: dict[str, Any]) -> list[str]:
    """The references that the schema itself makes."""
    return [schema[key] for key in REFERENCES if isinstance(schema.get(key), str)]


def encoded_references(schema: dict[str, Any]) -> dict[str, str]:
    """The same as URIs have to be: many programs write names with spaces or brackets as they are."""
    named = {key: schema[key] for key in REFERENCES if isinstance(schema.get(key), str)}
    return {key: quote(unquote(target), safe=PLAIN_CHARACTERS) for key, target in named.items()}


def own_weight(schema: dict[str, Any]) -> int:
    """What the keywords of a schema cost, without the schemas that they apply."""
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
    """How much there is to compare with: each value counts, a long text for more."""
    extent, ahead = 0, [value]
    while ahead:
        one = ahead.pop()
        extent += 1 + (len(one) // 16 if isinstance(one, str) else 0)
        if isinstance(one, dict):
            ahead.extend(one.values())
            ahead.extend(one)
        elif isinstance(one, list):
            ahead.extend(one)
    return extent
