"""A call's arguments against the tool's schema: what does not fit is named, nothing is filled in or coerced."""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import create
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from app.blobs.patterns import compiled
from app.domain.errors import InvalidInput
from app.domain.tools import Spec
from app.tools.port import ToolFailed

MOST_SCHEMA = 64 * 1024
"""Bytes of a schema, as JSON."""
DEEPEST_SCHEMA = 64
MOST_CHECKS = 50_000
"""Keywords that one check may look at. A schema that refers to itself can ask for any number."""
MOST_PROBLEMS = 10
LONGEST_PROBLEM = 200
DATA = ("const", "default", "enum", "examples")
"""Keywords whose value is no schema."""

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]


class _TooMuch(Exception):
    """The check takes more than it may."""


_left: ContextVar[list[int]] = ContextVar("checks_left")


def check(spec: Spec, args: dict[str, Any]) -> None:
    """Raise `ToolFailed` (`bad_arguments`) that names each place which does not fit the tool's schema.

    Not asserted are formats, patterns that can't be searched for in linear time, and `unevaluatedProperties` where
    there are `patternProperties`.
    """
    try:
        problems = _problems(spec, args)
    except Unresolvable as error:
        raise ToolFailed(f"The schema of {spec.name} refers to what it does not have.", code="failed") from error
    except (_TooMuch, RecursionError) as error:
        raise ToolFailed("These arguments are too complicated to be checked.", code="bad_arguments") from error
    if problems:
        more = ["and more"] if len(problems) > MOST_PROBLEMS else []
        said = "; ".join(problems[:MOST_PROBLEMS] + more)
        raise ToolFailed(f"The arguments don't fit: {said}.", code="bad_arguments")


def _problems(spec: Spec, args: dict[str, Any]) -> list[str]:
    validator = _validator(msgspec.json.encode(spec.parameters))
    before = _left.set([MOST_CHECKS])
    try:
        return [_told(error) for error in islice(validator.iter_errors(args), MOST_PROBLEMS + 1)]
    finally:
        _left.reset(before)


def _told(error: ValidationError) -> str:
    path = ".".join(str(step) for step in error.absolute_path)
    return f"{_short(path) or 'arguments'}: {_short(error.message)}"


def _short(text: str) -> str:
    """The text, without its middle where it is long: what is wrong is said at the end."""
    half = LONGEST_PROBLEM // 2
    return text if len(text) <= LONGEST_PROBLEM else f"{text[: half - 1]}…{text[-half:]}"


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
        for schema in _within(parameters):
            _look_at(schema)
        Draft202012Validator.check_schema(parameters, format_checker=None)  # type: ignore[arg-type]
        return _dangling(parameters)
    except InvalidInput as error:
        return error.message
    except SchemaError as error:
        return f"The schema is not as it should be: {_told(error)}."  # type: ignore[arg-type]
    except RecursionError:
        return "The schema is nested too deeply."


def _within(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Every object in it that may be a schema."""
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


def _look_at(schema: dict[str, Any]) -> None:
    for keyword in ("$ref", "$dynamicRef"):
        target = schema.get(keyword)
        if isinstance(target, str) and not target.startswith("#"):
            raise InvalidInput(f"The schema may refer only to itself, by #…, not to {_short(target)}.")
    named = schema.get("patternProperties")
    if isinstance(named, dict):
        for pattern in named:
            compiled(pattern)


def _dangling(parameters: dict[str, Any]) -> str | None:
    """The first of its references that leads nowhere. What changes its base is left to the check of a call."""
    schemas = list(_within(parameters))
    if any("$id" in schema for schema in schemas):
        return None
    root: Resource[Any] = DRAFT202012.create_resource(parameters)
    resolver = Registry[Any]().with_resource("", root).resolver()
    for schema in schemas:
        target = schema.get("$ref")
        if not isinstance(target, str):
            continue
        try:
            resolver.lookup(target)
        except Unresolvable:
            return f"The schema refers to {_short(target)}, which it does not have."
    return None


@lru_cache(maxsize=256)
def _validator(encoded: bytes) -> Any:
    # An empty registry: what is not in the schema can't be found, and nothing is ever fetched.
    kind = _Lenient if b'"patternProperties"' in encoded else _Validator
    return kind(msgspec.json.decode(encoded), registry=Registry())


def _counted(keyword: Keyword) -> Keyword:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        left = _left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooMuch
        return keyword(validator, value, instance, schema)

    return run


def _required(_: Any, names: list[str], instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield ValidationError("this is missing", path=[name])


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{_short(instance)!r} does not match {_short(pattern)!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in schema.get("properties", {}) or any(_found(pattern, name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError("there is no such argument", path=[_short(name)])
        else:
            yield from validator.descend(value, allowed, path=name)


def _unique(_: Any, unique: bool, instance: Any, __: Any) -> Iterator[ValidationError]:  # noqa: FBT001  # as it is called
    if unique and isinstance(instance, list):
        seen = {msgspec.json.encode(_alike(item), order="deterministic") for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("some items are there twice")


def _alike(value: Any) -> Any:
    """The value, with numbers that are equal made the same."""
    if isinstance(value, dict):
        return {key: _alike(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_alike(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@lru_cache(maxsize=1024)
def _search(pattern: str) -> Callable[[str], object] | None:
    try:
        return compiled(pattern).search
    except InvalidInput:
        return None


def _found(pattern: str, text: str) -> bool:
    search = _search(pattern)
    return search is None or search(text) is not None


def _extended(keywords: dict[str, Keyword]) -> Any:
    validators: dict[str, Any] = dict(keywords)
    return create(
        meta_schema=Draft202012Validator.META_SCHEMA,
        validators=validators,
        type_checker=Draft202012Validator.TYPE_CHECKER,
    )


# The library's own search with backtracking, which a schema could make last for ever, and compare all with all.
OURS: dict[str, Keyword] = {
    "required": _required,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
VALIDATORS: dict[str, Keyword] = {
    name: _counted(keyword) for name, keyword in (dict(Draft202012Validator.VALIDATORS) | OURS).items()
}
_Validator = _extended(VALIDATORS)
# What was evaluated is found out by the library's own search, too.
_Lenient = _extended({name: keyword for name, keyword in VALIDATORS.items() if name != "unevaluatedProperties"})
