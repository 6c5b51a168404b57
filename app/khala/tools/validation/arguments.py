"""A call's arguments against the tool's schema: what does not fit is named, nothing is filled in or coerced."""

import asyncio
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator

from khala.domain.errors import InvalidInput
from khala.domain.json_schemas import SAFE_INTEGER, SchemaGraph, has_large_integers
from khala.domain.tools import ToolSpec
from khala.tools.port import ToolError
from khala.tools.validation import process_pool
from khala.tools.validation.validator import PATTERN_SIZES, explained, problems, validator

MOST_SCHEMA = 64 * 1024
"""Bytes of a schema, as JSON."""
MAX_PATTERNS = 200
"""Different patterns in a schema."""
MAX_PROGRAMS_BYTES = 1 << 20
"""Bytes of all their programs together."""
MAX_PATTERN_LENGTH = 1000
"""Characters of a pattern."""
MOST_ARGS = 256 * 1024
"""Bytes of a call's arguments, as JSON."""
MAX_ARGS_DEPTH = 128
"""Levels of nesting in a call's arguments."""
EXACT_INTEGER = 2**53
"""The size from which integers may be hashed alike, so that comparing a list's items takes quadratic time."""

MAX_VISITS = 200_000
"""Keywords that are applied to a value by one check on the event loop. One takes 10 to 100 ns."""
MAX_REPORTED = 5_000
"""The same, where all that does not fit is collected. One takes up to 4 µs."""
MAX_COMPARED_BYTES = 50_000_000
"""Bytes of arguments, times the keywords that may read each, of a check on the event loop. One takes under 1 ns."""
MAX_COPIED_BYTES = 5_000_000
"""The same, where all that does not fit is collected, and copied. One takes 3 ns."""
MAX_SEARCHED = 50_000_000
"""Bytes of arguments, times bytes of patterns' programs, of a check on the event loop. One takes up to 1 ns."""


class ArgumentsSize(msgspec.Struct, frozen=True):
    """How much there is to check."""

    bytes: int
    values: int
    depth: int
    inexact: bool
    """Whether there are integers from `EXACT_INTEGER` on."""
    large: bool
    """Whether there are integers from `SAFE_INTEGER` on."""


class ToolSchema:
    """A tool's schema, ready to check arguments with. Raises `InvalidInput` if it is none."""

    def __init__(self, encoded: bytes) -> None:
        parameters = msgspec.json.decode(encoded)
        if parameters.get("type") != "object":
            raise InvalidInput('The schema must have "type": "object".')
        self._graph = SchemaGraph(parameters)
        self._graph.weigh(_sizes(self._graph))
        self._large = has_large_integers(parameters)
        self._checks_names = any("propertyNames" in node.schema for node in self._graph.nodes)
        self.parameters: dict[str, Any] = parameters
        try:
            self.validator: Draft202012Validator = validator(parameters)
        except ValueError as error:
            raise InvalidInput(f"The schema is not as it should be: {explained(error)}.") from error

    def checks_fast(self, size: ArgumentsSize) -> bool:
        """Whether a check of so much takes so little time that the event loop can wait for it."""
        if self._large or size.large:
            return False
        work = self._graph.work(size.depth)
        compared = size.values**2 if size.inexact else size.values * size.depth
        return (
            work.weight * size.values <= MAX_VISITS
            and work.weight * size.bytes * size.depth <= MAX_COMPARED_BYTES
            and work.search * size.bytes <= MAX_SEARCHED
            and work.unique * compared <= MAX_VISITS
        )

    def reports_fast(self, size: ArgumentsSize) -> bool:
        """Whether the same goes for collecting what does not fit, once a check has found that something does not."""
        work = self._graph.work(size.depth)
        # Each name that does not fit is told with a copy of the object which has it.
        copies = size.values if self._checks_names else size.depth
        return work.weight * size.values <= MAX_REPORTED and work.weight * size.bytes * copies <= MAX_COPIED_BYTES


async def check(spec: ToolSpec, args: dict[str, Any]) -> None:
    """Raise `ToolError` (`bad_arguments`) that names each place which does not fit the tool's schema.

    More than `MOST_ARGS` of arguments are `too_large`. Not asserted are formats, and patterns that can't be searched
    for in linear time. A check of much is done in a process of its own, which is killed if it takes too long
    (`bad_arguments`); there may be too many of those at once (`unavailable`).
    """
    size = measured(args)
    try:
        # In a thread: a schema that was not seen lately may take a tenth of a second.
        schema = await asyncio.to_thread(_tool_schema, msgspec.json.encode(spec.parameters))
    except InvalidInput as error:
        said = f"The schema of {spec.name} can't be used. {error.message}"
        raise ToolError(said, code="bad_arguments") from error
    found = await _problems(schema, args, size)
    if found:
        raise ToolError(f"The arguments don't fit: {'; '.join(found)}.", code="bad_arguments")


async def _problems(schema: ToolSchema, args: dict[str, Any], size: ArgumentsSize) -> list[str]:
    if schema.checks_fast(size):
        if schema.validator.is_valid(args):
            return []
        if schema.reports_fast(size):
            return problems(schema.validator, args)
    return await process_pool.problems(schema.parameters, args)


def schema_problem(parameters: dict[str, Any]) -> str | None:
    """Why this is no JSON Schema (2020-12) of an object that arguments can be checked against; None if it is.

    Takes up to a tenth of a second, so the event loop should not wait for it.
    """
    try:
        encoded = msgspec.json.encode(parameters)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return "The schema is no JSON."
    if len(encoded) > MOST_SCHEMA:
        return f"A schema has at most {MOST_SCHEMA:,} bytes."
    try:
        _tool_schema(encoded)
    except InvalidInput as error:
        return error.message
    return None


@lru_cache(maxsize=64)
def _tool_schema(encoded: bytes) -> ToolSchema:
    return ToolSchema(encoded)


def measured(args: dict[str, Any]) -> ArgumentsSize:
    """How much they are. Raises `ToolError` where that is too much, or they are no JSON."""
    try:
        size = len(msgspec.json.encode(args))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolError("These arguments can't be told as JSON.", code="bad_arguments") from error
    if size > MOST_ARGS:
        raise ToolError(f"The arguments of a call have at most {MOST_ARGS:,} bytes.", code="too_large")
    values, depth, level = 0, 0, [args]
    while level := _within(level):
        values += len(level)
        depth += 1
        if depth > MAX_ARGS_DEPTH:
            raise ToolError("These arguments are nested too deeply.", code="bad_arguments")
    inexact = has_large_integers(args, limit=EXACT_INTEGER)
    return ArgumentsSize(size, values + 1, depth, inexact, inexact and has_large_integers(args, limit=SAFE_INTEGER))


def _within(values: list[Any]) -> list[Any]:
    """What is right within these values."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list):
            found += value
    return found


def _sizes(graph: SchemaGraph) -> dict[str, int]:
    """The sizes of all patterns' programs. Patterns of values that can't be searched for are taken out of the schema.

    Raises `InvalidInput` where there are too many, or one of a name can't be searched for.
    """
    patterns = {pattern for node in graph.nodes for pattern in node.patterns}
    if len(patterns) > MAX_PATTERNS:
        raise InvalidInput(f"A schema has at most {MAX_PATTERNS} patterns.")
    sizes = {pattern: _program_bytes(pattern) for pattern in patterns}
    if sum(size for size in sizes.values() if size) > MAX_PROGRAMS_BYTES:
        raise InvalidInput("The patterns of the schema are too large together. Repeat less in them.")
    for node in graph.nodes:
        named = node.schema.get("patternProperties")
        for pattern in named if isinstance(named, dict) else ():
            if sizes[pattern] is None:
                raise InvalidInput("A pattern of names in the schema can't be searched for in linear time.")
        if isinstance(node.schema.get("pattern"), str) and sizes[node.schema["pattern"]] is None:
            del node.schema["pattern"]
    return {pattern: size for pattern, size in sizes.items() if size is not None}


@lru_cache(maxsize=1024)
def _program_bytes(pattern: str) -> int | None:
    """About how large the pattern's program is; None where there is none that takes linear time, or it is too large."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    for size in PATTERN_SIZES:
        try:
            validator({"pattern": pattern}, pattern_bytes=size)
        except ValueError:
            continue
        return size
    return None
