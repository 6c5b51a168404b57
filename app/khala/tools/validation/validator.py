"""What JSON Schema says of arguments, by a validator in Rust: built without access to anything, told in plain words."""

from itertools import islice
from typing import Any

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

MAX_PROBLEMS = 10
MAX_PROBLEM_LENGTH = 200
"""Characters that are said of one place."""
PATTERN_SIZES = (1 << 9, 1 << 11, 1 << 13, 1 << 15, 1 << 17)
"""Bytes of a pattern's program, in steps; the last is the most. A search takes time in proportion to them, at worst."""
MAX_AUTOMATON_BYTES = 1 << 18
"""Bytes that the states of one pattern take while it searches."""

Kind = ValidationErrorKind


def validator(schema: Any, *, pattern_bytes: int = PATTERN_SIZES[-1]) -> Draft202012Validator:
    """A validator that never fetches anything, and searches for patterns in linear time.

    Raises `ValueError` (`ValidationError` is one) where the schema is none, or a pattern can't be searched for so.
    """
    options = RegexOptions(size_limit=pattern_bytes, dfa_size_limit=MAX_AUTOMATON_BYTES)
    return Draft202012Validator(schema, pattern_options=options, validate_formats=False, offline=True)


def problems(checks: Draft202012Validator, args: Any) -> list[str]:
    """What does not fit, by place: `MAX_PROBLEMS` at most, and then that there is more."""
    found: list[str] = []
    for error in islice(checks.iter_errors(args), MAX_PROBLEMS + 1):
        found += _told(error)
    return found if len(found) <= MAX_PROBLEMS else [*found[:MAX_PROBLEMS], "and more"]


def explained(error: ValueError) -> str:
    """What is wrong with a schema."""
    if not isinstance(error, ValidationError):
        return short(str(error))
    return _line(error.instance_path or ["schema"], error.message)


def short(text: str) -> str:
    """The text, without its middle where it is long: what is wrong is said at the end."""
    half = MAX_PROBLEM_LENGTH // 2
    return text if len(text) <= MAX_PROBLEM_LENGTH else f"{text[: half - 1]}…{text[-half:]}"


def _told(error: ValidationError) -> list[str]:
    path = error.instance_path
    match error.kind:
        case Kind.Required(property=name):
            return [_line([*path, name], "this is missing")]
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            return [_line([*path, name], "there is no such argument") for name in names[: MAX_PROBLEMS + 1]]
        case Kind.FalseSchema():
            return [_line(path, "nothing may be here")]
        case Kind.UniqueItems():
            return [_line(path, "some items are there twice")]
        case _:
            return [_line(path, error.message)]


def _line(path: list[str | int], message: str) -> str:
    return f"{short('.'.join(map(str, path))) or 'arguments'}: {short(message)}"
