"""Checks the arguments of a call against the tool's schema, and answers against a requested one.

A check reports every mismatch, and fills in no defaults.
"""

import asyncio
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator

from khala.domain.errors import InvalidInput
from khala.domain.json_schemas import SAFE_INTEGER, SchemaGraph, has_large_integers, shortened
from khala.domain.tools import ToolSpec
from khala.tools.port import ToolError
from khala.tools.validation import process_pool
from khala.tools.validation.validator import (
    MAX_PATTERN_CHARACTERS,
    PATTERN_SIZES,
    Subject,
    compile_schema,
    explain,
    is_regular_expression,
    problems,
)

MAX_SCHEMA_BYTES = 64 * 1024
"""Bytes of a schema, as JSON."""
MAX_PATTERNS = 200
"""Different patterns in a schema."""
MAX_PROGRAMS_BYTES = 1 << 20
"""Bytes of the compiled programs of all patterns of a schema together."""
MAX_ARGS_BYTES = 256 * 1024
"""Bytes of a call's arguments, as JSON."""
MAX_ARGS_DEPTH = 128
"""Levels of nesting in a call's arguments."""
EXACT_INTEGER = 2**53
"""Integers from this size on may have equal hashes, so that comparing a list's items takes quadratic time."""

MAX_EVALUATIONS = 200_000
"""Evaluations of a keyword for a value in a check on the event loop. Each takes 10 to 100 ns."""
MAX_REPORTED_EVALUATIONS = 5_000
"""Evaluations in a check on the event loop that collects all mismatches. Each takes up to 4 µs."""
MAX_COMPARED_BYTES = 50_000_000
"""Bytes of arguments times the keywords that may read each, in a check on the event loop. Each takes under 1 ns."""
MAX_COPIED_BYTES = 5_000_000
"""The same product in a check that collects and copies all mismatches. Each takes 3 ns."""
MAX_SEARCHED_BYTES = 50_000_000
"""Bytes of arguments times bytes of patterns' programs, in a check on the event loop. Each takes up to 1 ns."""


class ArgumentsSize(msgspec.Struct, frozen=True):
    """The size of arguments: bytes of JSON, number of values, and depth of nesting."""

    bytes: int
    values: int
    depth: int
    inexact: bool
    """Whether there are integers from `EXACT_INTEGER` on."""
    large: bool
    """Whether there are integers from `SAFE_INTEGER` on."""


class ToolSchema:
    """A compiled schema of a tool's arguments, or of any value. Raises `InvalidInput` for an invalid one."""

    def __init__(self, encoded: bytes, *, of_arguments: bool = True) -> None:
        parameters = msgspec.json.decode(encoded)
        if of_arguments and parameters.get("type") != "object":
            raise InvalidInput('The schema must have "type": "object".')
        self._graph = SchemaGraph(parameters)
        if not of_arguments:
            _refuse_invalid_patterns(self._graph)
        self._graph.compute_costs(_sizes(self._graph))
        self._large = has_large_integers(parameters)
        self._checks_names = any("propertyNames" in node.schema for node in self._graph.nodes)
        self.parameters: dict[str, Any] = parameters
        try:
            self.validator: Draft202012Validator = compile_schema(parameters)
        except ValueError as error:
            raise InvalidInput(f"The schema is invalid: {explain(error)}.") from error

    def checks_fast(self, size: ArgumentsSize) -> bool:
        """Whether a check of arguments of this size is fast enough for the event loop."""
        if self._large or size.large:
            return False
        work = self._graph.cost(size.depth)
        compared = size.values**2 if size.inexact else size.values * size.depth
        return (
            work.weight * size.values <= MAX_EVALUATIONS
            and work.weight * size.bytes * size.depth <= MAX_COMPARED_BYTES
            and work.search * size.bytes <= MAX_SEARCHED_BYTES
            and work.unique * compared <= MAX_EVALUATIONS
        )

    def reports_fast(self, size: ArgumentsSize) -> bool:
        """Whether collecting all mismatches, after a failed check, is fast enough for the event loop."""
        work = self._graph.cost(size.depth)
        # Each invalid name is reported with a copy of the object that has it.
        copies = size.values if self._checks_names else size.depth
        return (
            work.weight * size.values <= MAX_REPORTED_EVALUATIONS
            and work.weight * size.bytes * copies <= MAX_COPIED_BYTES
        )


async def check(spec: ToolSpec, args: dict[str, Any]) -> None:
    """Check the arguments. Raises `ToolError` (`bad_arguments`) that names each mismatch with the tool's schema.

    The code is `too_large` for more than `MAX_ARGS_BYTES` of arguments. Formats are not checked, nor are patterns that
    can't be matched in linear time. A long check runs in a process of its own. If it takes too long, the process is
    killed, and the code is `bad_arguments`. If too many of these processes run, the code is `unavailable`.
    """
    size = measure(args)
    try:
        # In a thread: compiling a schema that is not cached may take a tenth of a second.
        schema = await asyncio.to_thread(_tool_schema, msgspec.json.encode(spec.parameters))
    except InvalidInput as error:
        message = f"The schema of {spec.name} can't be used. {error.message}"
        raise ToolError(message, code="bad_arguments") from error
    mismatches = await _problems(schema, args, size)
    if mismatches:
        raise ToolError(f"The arguments don't match the schema: {'; '.join(mismatches)}.", code="bad_arguments")


async def check_answer(schema: dict[str, Any], answer: Any) -> list[str]:
    """The mismatches of an answer with the requested schema, checked as arguments are.

    Raises `ToolError` for an answer that is too large to be checked, and if too many checks run.
    """
    size = measure(answer)
    compiled = await asyncio.to_thread(_answer_schema, msgspec.json.encode(schema))
    return await _problems(compiled, answer, size, "answer")


async def _problems(schema: ToolSchema, args: Any, size: ArgumentsSize, subject: Subject = "arguments") -> list[str]:
    if schema.checks_fast(size):
        if schema.validator.is_valid(args):
            return []
        if schema.reports_fast(size):
            return problems(schema.validator, args, subject)
    return await process_pool.problems(schema.parameters, args, subject)


def schema_problem(parameters: dict[str, Any], *, of_arguments: bool = True) -> str | None:
    """The reason why this is not a usable JSON Schema (2020-12) of arguments, or of an answer; None if it is one.

    This takes up to a tenth of a second, so the event loop should not wait for it.
    """
    try:
        encoded = msgspec.json.encode(parameters)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return "The schema is not valid JSON."
    if len(encoded) > MAX_SCHEMA_BYTES:
        return f"A schema has at most {MAX_SCHEMA_BYTES:,} bytes."
    try:
        _tool_schema(encoded) if of_arguments else _answer_schema(encoded)
    except InvalidInput as error:
        return error.message
    return None


@lru_cache(maxsize=64)
def _tool_schema(encoded: bytes) -> ToolSchema:
    return ToolSchema(encoded)


@lru_cache(maxsize=64)
def _answer_schema(encoded: bytes) -> ToolSchema:
    return ToolSchema(encoded, of_arguments=False)


def measure(args: Any) -> ArgumentsSize:
    """The size of the arguments. Raises `ToolError` if they are too large or can't be encoded as JSON."""
    try:
        size = len(msgspec.json.encode(args))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ToolError("The arguments can't be encoded as JSON.", code="bad_arguments") from error
    if size > MAX_ARGS_BYTES:
        raise ToolError(f"The arguments of a call have at most {MAX_ARGS_BYTES:,} bytes.", code="too_large")
    values, depth, level = 0, 0, [args]
    while level := _children(level):
        values += len(level)
        depth += 1
        if depth > MAX_ARGS_DEPTH:
            raise ToolError("The arguments are nested too deeply.", code="bad_arguments")
    inexact = has_large_integers(args, limit=EXACT_INTEGER)
    return ArgumentsSize(size, values + 1, depth, inexact, inexact and has_large_integers(args, limit=SAFE_INTEGER))


def _children(values: list[Any]) -> list[Any]:
    """The values directly inside these values."""
    children: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            children += value.values()
        elif isinstance(value, list):
            children += value
    return children


def _refuse_invalid_patterns(graph: SchemaGraph) -> None:
    """Raise `InvalidInput` for a `pattern` that is no regular expression, which would be left out of every check.

    Tools of other programs may have such patterns, but who asks for an answer has to know that it was not checked.
    """
    for node in graph.nodes:
        pattern = node.schema.get("pattern")
        if isinstance(pattern, str) and not is_regular_expression(pattern):
            path = ".".join([*_path_to(graph.root, node.schema), "pattern"])
            raise InvalidInput(f"The schema is invalid: {path}: {shortened(pattern)} is not a regular expression.")


def _path_to(root: Any, target: Any) -> list[str]:
    """The keys that lead from the root to this object within it."""
    pending: list[tuple[Any, list[str]]] = [(root, [])]
    while pending:
        value, path = pending.pop()
        if value is target:
            return path
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        pending += [(inner, [*path, str(key)]) for key, inner in entries]
    return []


def _sizes(graph: SchemaGraph) -> dict[str, int]:
    """The sizes of all patterns' programs. Removes `pattern` keywords without a linear-time program from the schema.

    Raises `InvalidInput` for too many patterns, and for `patternProperties` without such a program.
    """
    patterns = {pattern for node in graph.nodes for pattern in node.patterns}
    if len(patterns) > MAX_PATTERNS:
        raise InvalidInput(f"A schema has at most {MAX_PATTERNS} patterns.")
    sizes = {pattern: _program_bytes(pattern) for pattern in patterns}
    if sum(size for size in sizes.values() if size) > MAX_PROGRAMS_BYTES:
        raise InvalidInput("The patterns of the schema are too large together. Use fewer or shorter repetitions.")
    for node in graph.nodes:
        named = node.schema.get("patternProperties")
        for pattern in named if isinstance(named, dict) else ():
            if sizes[pattern] is None:
                raise InvalidInput("A pattern of names in the schema can't be matched in linear time.")
        if isinstance(node.schema.get("pattern"), str) and sizes[node.schema["pattern"]] is None:
            del node.schema["pattern"]
    return {pattern: size for pattern, size in sizes.items() if size is not None}


@lru_cache(maxsize=1024)
def _program_bytes(pattern: str) -> int | None:
    """The approximate size of the pattern's program; None if it is too large, or can't run in linear time."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        return None
    for size in PATTERN_SIZES:
        try:
            compile_schema({"pattern": pattern}, pattern_bytes=size)
        except ValueError:
            continue
        return size
    return None
