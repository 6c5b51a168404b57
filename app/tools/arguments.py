"""A call's arguments against the tool's schema: what does not fit is named, nothing is filled in or coerced."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from app.blobs.patterns import compiled
from app.domain.errors import InvalidInput
from app.domain.tools import Spec
from app.tools.keywords import LENIENT, STRICT, short
from app.tools.port import ToolFailed
from app.tools.work import TooMuch, counted

MOST_SCHEMA = 64 * 1024
"""Bytes of a schema, as JSON."""
DEEPEST_SCHEMA = 64
MOST_PARTS = 1000
"""Objects and booleans in a schema, each of which may be a schema itself."""
MOST_PATTERNS = 100
"""Patterns of names in a schema."""
MOST_ARGS = 256 * 1024
"""Bytes of a call's arguments, as JSON."""
MOST_PROBLEMS = 10
DATA = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema."""


def check(spec: Spec, args: dict[str, Any]) -> None:
    """Raise `ToolFailed` (`bad_arguments`) that names each place which does not fit the tool's schema.

    More than `MOST_ARGS` of arguments are `too_large`. Not asserted are formats, patterns that can't be searched for
    in linear time, and `unevaluatedProperties` where there are `patternProperties`.
    """
    _bounded(args)
    try:
        problems = _problems(spec, args)
    except Unresolvable as error:
        raise ToolFailed(f"The schema of {spec.name} refers to what it does not have.", code="failed") from error
    except (TooMuch, RecursionError) as error:
        raise ToolFailed("These arguments take too long to check.", code="bad_arguments") from error
    if problems:
        more = ["and more"] if len(problems) > MOST_PROBLEMS else []
        said = "; ".join(problems[:MOST_PROBLEMS] + more)
        raise ToolFailed(f"The arguments don't fit: {said}.", code="bad_arguments")


def _bounded(args: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(args))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolFailed("These arguments can't be told as JSON.", code="bad_arguments") from error
    if size > MOST_ARGS:
        raise ToolFailed(f"The arguments of a call have at most {MOST_ARGS:,} bytes.", code="too_large")


def _problems(spec: Spec, args: dict[str, Any]) -> list[str]:
    encoded = msgspec.json.encode(spec.parameters)
    validator = _validator(encoded)
    with counted(schema=encoded):
        return [_told(error) for error in islice(validator.iter_errors(args), MOST_PROBLEMS + 1)]


def _told(error: ValidationError) -> str:
    path = ".".join(str(step) for step in error.absolute_path)
    return f"{short(path) or 'arguments'}: {short(error.message)}"


def schema_problem(parameters: dict[str, Any]) -> str | None:
    """Why this is no JSON Schema (2020-12) of an object that arguments can be checked against; None if it is."""
    try:
        encoded = msgspec.json.encode(parameters)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        return f"The schema is no JSON: {error}."
    if len(encoded) > MOST_SCHEMA:
        return f"A schema has at most {MOST_SCHEMA:,} bytes."
    if parameters.get("type") != "object":
        return 'The schema must have "type": "object".'
    try:
        parts = list(islice(_within(parameters), MOST_PARTS + 1))
        if len(parts) > MOST_PARTS:
            return f"A schema has at most {MOST_PARTS:,} parts."
        schemas = [part for part in parts if isinstance(part, dict)]
        _look_at(schemas)
        Draft202012Validator.check_schema(parameters, format_checker=None)  # type: ignore[arg-type]
        return _dangling(parameters, schemas)
    except InvalidInput as error:
        return error.message
    except SchemaError as error:
        return f"The schema is not as it should be: {_told(error)}."  # type: ignore[arg-type]
    except RecursionError:
        return "The schema is nested too deeply."


def _within(value: Any, depth: int = 0) -> Iterator[dict[str, Any] | bool]:
    """Everything in it that may be a schema."""
    if depth > DEEPEST_SCHEMA:
        raise InvalidInput("The schema is nested too deeply.")
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            if key not in DATA or isinstance(inner, dict):
                yield from _within(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _within(inner, depth + 1)
    elif isinstance(value, bool):
        yield value


def _look_at(schemas: list[dict[str, Any]]) -> None:
    patterns: set[str] = set()
    for schema in schemas:
        for keyword in ("$ref", "$dynamicRef"):
            target = schema.get(keyword)
            if isinstance(target, str) and not target.startswith("#"):
                raise InvalidInput(f"The schema may refer only to itself, by #…, not to {short(target)}.")
        named = schema.get("patternProperties")
        patterns.update(named if isinstance(named, dict) else ())
    if len(patterns) > MOST_PATTERNS:
        raise InvalidInput(f"A schema has at most {MOST_PATTERNS} patterns of names.")
    for pattern in patterns:
        compiled(pattern)


def _dangling(parameters: dict[str, Any], schemas: list[dict[str, Any]]) -> str | None:
    """The first of its references that leads nowhere. What changes its base is left to the check of a call."""
    if any("$id" in schema for schema in schemas):
        return None
    root: Resource[Any] = DRAFT202012.create_resource(parameters)
    # Crawled once: else each reference to an anchor walks all of the schema.
    resolver = Registry[Any]().with_resource("", root).crawl().resolver()
    for schema in schemas:
        target = schema.get("$ref")
        if not isinstance(target, str):
            continue
        try:
            resolver.lookup(target)
        except Unresolvable:
            return f"The schema refers to {short(target)}, which it does not have."
    return None


@lru_cache(maxsize=256)
def _validator(encoded: bytes) -> Any:
    # An empty registry: what is not in the schema can't be found, and nothing is ever fetched.
    kind = LENIENT if b'"patternProperties"' in encoded else STRICT
    return kind(msgspec.json.decode(encoded), registry=Registry())
