"""Makes an example value that fits a JSON Schema, as the demo model's answer in a requested format."""

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from khala.domain.generation import ResponseFormat

MAX_DEPTH = 4
"""Levels of nesting to which fields that are not required are included."""
MAX_RECURSION = 32
"""Levels of nesting of an example."""
MAX_ITEMS = 100
"""Items of a list, and multiples of ten characters of a text, that a schema can require of an example."""
MAX_REFERENCES = 1_000
"""References that are followed for one example."""
MAX_VALUES = 2_000
"""Values of an example. A schema of lists of lists can require millions, which would block the event loop."""
FORMATS = {
    "date": "2026-01-31", "time": "12:00:00Z", "date-time": "2026-01-31T12:00:00Z", "duration": "P1D",
    "email": "ada@example.com", "uri": "https://example.com", "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "hostname": "example.com",
}  # fmt: skip


def example_text(requested: ResponseFormat) -> str:
    """JSON text in this format. Rare keywords of a schema, such as `pattern` and `not`, are ignored."""
    value = {"answer": "text"} if requested.schema is None else _Example(requested.schema).of(requested.schema, 0)
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def example_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit the schema of a tool."""
    value = _Example(parameters).of(dict(parameters), 0)
    return value if isinstance(value, dict) else {}


class _Example:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._followed = 0
        self._made = 0

    def of(self, schema: Any, depth: int) -> Any:
        """An example of a value that fits this part of the schema."""
        self._made += 1
        if not isinstance(schema, dict) or depth > MAX_RECURSION or self._made > MAX_VALUES:
            return "text"
        schema = self._resolved(schema)
        for key in ("const", "default"):
            if key in schema:
                return schema[key]
        for key in ("enum", "examples"):
            if isinstance(schema.get(key), list) and schema[key]:
                return schema[key][0]
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return self.of({**schema, **self._simplest(schema[key], depth), key: None}, depth)
        if isinstance(schema.get("allOf"), list):
            return self.of(self._merged(schema), depth)
        return self._typed(schema, depth)

    def _simplest(self, choices: list[Any], depth: int) -> dict[str, Any]:
        """The first choice; deep inside, one that is no object or list if there is any."""
        known = [self._resolved(choice) for choice in choices if isinstance(choice, dict)]
        flat = [choice for choice in known if choice.get("type") not in ("object", "array")]
        return next(iter(flat if depth > MAX_DEPTH and flat else known), {})

    def _merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            known = self._resolved(part) if isinstance(part, dict) else {}
            fields = {**merged.get("properties", {}), **known.get("properties", {})}
            required = [*merged.get("required", []), *known.get("required", [])]
            merged |= known
            if fields:
                merged |= {"properties": fields, "required": required}
        return merged

    def _resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while isinstance(target := schema.get("$ref"), str) and self._followed < MAX_REFERENCES:
            self._followed += 1
            found: Any = self._root
            for step in unquote(target.removeprefix("#")).split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                found = found.get(key, {}) if isinstance(found, dict) else {}
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**(found if isinstance(found, dict) else {}), **rest}
        return schema

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kinds = schema.get("type")
        kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
        match kind or ("object" if "properties" in schema else "array" if "items" in schema else "string"):
            case "object":
                return self._object(schema, depth)
            case "array":
                count = min(max(int(schema.get("minItems", 0)), int(depth <= MAX_DEPTH)), MAX_ITEMS)
                count = min(count, int(schema.get("maxItems", count)))
                first = schema.get("prefixItems", [])
                items = [*first, *[schema.get("items", {})] * count][: max(count, len(first))]
                return [self.of(item, depth + 1) for item in items]
            case "integer" | "number":
                try:
                    return _number(schema, whole=kind == "integer")
                except OverflowError:  # a bound or a step that no float can express
                    return 1
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return _text(schema)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        fields = schema.get("properties", {})
        required = schema.get("required", [])
        names = [name for name in fields if depth < MAX_DEPTH or name in required]
        others = [name for name in required if name not in fields]
        return {name: self.of(fields.get(name, {}), depth + 1) for name in [*names, *others]}


def _number(schema: Mapping[str, Any], *, whole: bool) -> float:
    """The number nearest above zero, or the greatest below, that the bounds allow."""
    step = schema.get("multipleOf") or (1 if whole else 0.5)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    number: float = step
    if low is not None and number < low:
        number = math.ceil(low / step) * step
    if number == schema.get("exclusiveMinimum"):
        number += step
    if high is not None and number > high:
        number = math.floor(high / step) * step
    if number == schema.get("exclusiveMaximum"):
        number -= step
    return int(number) if whole else number


def _text(schema: Mapping[str, Any]) -> str:
    text = FORMATS.get(str(schema.get("format")), "text")
    least = min(int(schema.get("minLength", 0)), 10 * MAX_ITEMS)
    return text.ljust(least, "x")[: int(schema.get("maxLength", max(len(text), least)))]
