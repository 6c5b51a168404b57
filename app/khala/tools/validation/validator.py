"""Validates values with JSON Schema, and formats the messages.

The validator is written in Rust, and has no access to the network or to files.
"""

import re
import warnings
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, TypeAlias

from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
)

MAX_PROBLEMS = 10
MAX_PROBLEM_LENGTH = 200
"""Characters of the path, and of the message, of one mismatch."""
PATTERN_SIZES = (1 << 9, 1 << 11, 1 << 13, 1 << 15, 1 << 17)
"""Limits of a pattern's program in bytes, to be tried in order. A search takes time in proportion to the program."""
MAX_PATTERN_CHARACTERS = 1000
"""Characters of a pattern."""
MAX_AUTOMATON_BYTES = 1 << 18
"""Bytes of the states of one pattern during a search."""

Kind = ValidationErrorKind
Subject: TypeAlias = Literal["arguments", "answer"]
"""The role of a whole value, which names it in a message about it."""
UNKNOWN: dict[Subject, str] = {"arguments": "unknown argument", "answer": "unknown field"}


def compile_schema(schema: Any, *, pattern_bytes: int = PATTERN_SIZES[-1]) -> Draft202012Validator:
    """Compile a schema to a validator that fetches nothing, and matches patterns in linear time.

    Raises `ValueError` (`ValidationError` is one) for an invalid schema, and for a pattern that has no such program.
    """
    options = RegexOptions(size_limit=pattern_bytes, dfa_size_limit=MAX_AUTOMATON_BYTES)
    return Draft202012Validator(schema, pattern_options=options, validate_formats=False, offline=True)


@lru_cache(maxsize=1024)
def is_regular_expression(pattern: str) -> bool:
    """Whether the pattern is one, in a dialect that programs use. Some can't be matched in linear time.

    A long pattern counts as one.
    """
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return True
    any_character = pattern.replace("[^]", "[^a]")  # Only JavaScript has an empty set.
    try:
        options = FancyRegexOptions(size_limit=PATTERN_SIZES[-1])
        Draft202012Validator({"pattern": any_character}, pattern_options=options, offline=True)
    except ValueError:
        return _is_python_expression(any_character)  # It may only be too large.
    return True


def _is_python_expression(pattern: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def problems(compiled: Draft202012Validator, args: Any, subject: Subject = "arguments") -> list[str]:
    """The mismatches with their paths: up to `MAX_PROBLEMS`, and then whether there are more."""
    mismatches: list[str] = []
    for error in islice(compiled.iter_errors(args), MAX_PROBLEMS + 1):
        mismatches += _messages(error, subject)
    return mismatches if len(mismatches) <= MAX_PROBLEMS else [*mismatches[:MAX_PROBLEMS], "and more"]


def explain(error: ValueError) -> str:
    """The reason why the schema is invalid."""
    if not isinstance(error, ValidationError):
        return abbreviate(str(error))
    return _line(error.instance_path, error.message, "schema")


def abbreviate(text: str) -> str:
    """The text. A long text loses its middle, because validators name the problem at the end."""
    half = MAX_PROBLEM_LENGTH // 2
    return text if len(text) <= MAX_PROBLEM_LENGTH else f"{text[: half - 1]}…{text[-half:]}"


def _messages(error: ValidationError, subject: Subject) -> list[str]:
    path = error.instance_path
    match error.kind:
        case Kind.Required(property=name):
            return [_line([*path, name], "required", subject)]
        case Kind.AdditionalProperties(unexpected=names) | Kind.UnevaluatedProperties(unexpected=names):
            return [_line([*path, name], UNKNOWN[subject], subject) for name in names[: MAX_PROBLEMS + 1]]
        case Kind.FalseSchema():
            return [_line(path, "nothing is allowed here", subject)]
        case Kind.UniqueItems():
            return [_line(path, "items must be unique", subject)]
        case _:
            return [_line(path, error.message, subject)]


def _line(path: list[str | int], message: str, root: str) -> str:
    return f"{abbreviate('.'.join(map(str, path))) or root}: {abbreviate(message)}"
