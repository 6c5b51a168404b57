"""The keywords of JSON Schema as arguments are checked with them: what each does is counted, what it says is short."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import create

from app.tools.work import CHARACTERS, KEYWORD, STEP, Work, current

LONGEST_PROBLEM = 200
"""Characters of what is said of one place."""

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

DESCENDING = frozenset({"items", "prefixItems", "contains", "additionalProperties", "patternProperties",
                        "propertyNames", "unevaluatedItems", "unevaluatedProperties"})  # fmt: skip
"""Keywords that look at each item of an instance."""
BRANCHING = frozenset({"allOf", "anyOf", "oneOf"})
COMPARING = frozenset({"enum", "const"})
REFERRING = frozenset({"$ref", "$dynamicRef"})
UNEVALUATED = frozenset({"unevaluatedItems", "unevaluatedProperties"})
"""Keywords that compare all items of an instance with each other."""


def short(text: str) -> str:
    """The text, without its middle where it is long: what is wrong is said at the end."""
    half = LONGEST_PROBLEM // 2
    return text if len(text) <= LONGEST_PROBLEM else f"{text[: half - 1]}…{text[-half:]}"


def _counted(name: str, keyword: Keyword) -> Keyword:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        work = current()
        work.take(_cost(name, value, instance))
        if name in COMPARING:
            work.weigh(value)
        elif name in REFERRING:
            work.refer(value)
        for error in keyword(validator, value, instance, schema) or ():
            _shorten(error, work)
            yield error

    return run


def _cost(name: str, value: Any, instance: Any) -> int:
    """Of looking at the keyword itself, apart from what it looks into."""
    cost = KEYWORD
    values, items = _many(value), _many(instance)
    if name in BRANCHING:
        cost += STEP * values
    elif name in DESCENDING:
        cost += STEP * items
    elif items:
        cost += values // 16 + (STEP * min(values, items) if name in ("properties", "dependentSchemas") else 0)
    else:
        cost += values // 16
    return cost + (items * items // 8 if name in UNEVALUATED else 0)


def _many(value: Any) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _shorten(error: ValidationError, work: Work) -> None:
    """Cut the message, which may hold all of the instance, before anybody gathers many of them."""
    work.take(KEYWORD + len(error.message) // CHARACTERS)
    error.message = short(error.message)
    error.args = ()


def _required(_: Any, names: list[str], instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for name in names:
            if name not in instance:
                yield ValidationError("this is missing", path=[name])


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not current().search(pattern)(instance):
        yield ValidationError(f"{short(instance)!r} does not match {short(pattern)!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            search = current().search(pattern)
            for name, value in instance.items():
                if search(name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known = schema.get("properties", {})
    names = [name for name in instance if name not in known]
    for pattern in schema.get("patternProperties", {}):
        search = current().search(pattern)
        names = [name for name in names if not search(name)]
    for name in names:
        if allowed is False:
            yield ValidationError("there is no such argument", path=[short(name)])
        else:
            yield from validator.descend(instance[name], allowed, path=name)


def _unique(_: Any, unique: bool, instance: Any, __: Any) -> Iterator[ValidationError]:  # noqa: FBT001  # as it is called
    if unique and isinstance(instance, list):
        current().weigh(instance)
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


def _extended(keywords: dict[str, Keyword]) -> Any:
    validators: dict[str, Any] = dict(keywords)
    kind: Any = create(
        meta_schema=Draft202012Validator.META_SCHEMA,
        validators=validators,
        type_checker=Draft202012Validator.TYPE_CHECKER,
    )
    # The library writes out the whole instance where the schema is `false`.
    descend, iter_errors = kind.descend, kind.iter_errors

    def descended(self: Any, instance: Any, schema: Any, *args: Any, **named: Any) -> Iterator[ValidationError]:
        if schema is not False:
            yield from descend(self, instance, schema, *args, **named)
            return
        path = named.get("path")
        yield _never(instance, () if path is None else (path,))

    def errors(self: Any, instance: Any) -> Iterator[ValidationError]:
        if self.schema is False:
            yield _never(instance, ())
        else:
            yield from iter_errors(self, instance)

    kind.descend, kind.iter_errors = descended, errors
    return kind


def _never(instance: Any, path: tuple[str | int, ...]) -> ValidationError:
    current().take(KEYWORD)
    return ValidationError("nothing may be here", path=path, instance=instance, schema=False)


# The library's own search with backtracking, which a schema could make last for ever, and compare all with all.
OURS: dict[str, Keyword] = {
    "required": _required,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "uniqueItems": _unique,
}
VALIDATORS: dict[str, Keyword] = {
    name: _counted(name, keyword) for name, keyword in (dict(Draft202012Validator.VALIDATORS) | OURS).items()
}
STRICT = _extended(VALIDATORS)
# What was evaluated is found out by the library's own search, too.
LENIENT = _extended({name: keyword for name, keyword in VALIDATORS.items() if name != "unevaluatedProperties"})
