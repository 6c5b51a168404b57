"""Checks the functions that clients offer to the model, and the formats of answers, for all protocols."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import msgspec

from khala.domain.chat import ClientFunction, RunOptions
from khala.domain.errors import InvalidInput, Unavailable
from khala.domain.generation import ResponseFormat
from khala.domain.json_schemas import shortened
from khala.tools.validation.arguments import MAX_SCHEMA_BYTES, schema_problem

MAX_PARAMETERS_BYTES = 256 * 1024
"""Of all functions together, as JSON."""
MAX_SCHEMA_OBJECTS = 2_000
"""JSON objects in the parameters of all functions together."""

MAX_WAITING = 64
"""Requests in this process whose schemas are being checked, or wait for the check."""

# A single thread, so that the event loop gets half of the processor time however much there is to check.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="functions")
_QUEUE_SLOTS = threading.BoundedSemaphore(MAX_WAITING)


async def check(functions: Sequence[ClientFunction], *, list_path: str, item_path: str) -> None:
    """Raise `InvalidInput` for functions that cannot be offered to a model.

    `list_path` is the path of the functions in the request, and `item_path` that of one function, with `{}` for its
    index. Raises `Unavailable` if too many requests wait for the check.
    """
    if functions:
        await _in_thread(_check, functions, list_path, item_path)


async def check_format(response_format: ResponseFormat | None, path: str) -> None:
    """Raise `InvalidInput` if the schema of the format, which is at this path, cannot be used.

    Raises `Unavailable` if too many requests wait for the check.
    """
    if response_format is not None and response_format.schema is not None:
        await _in_thread(_check_format, response_format.schema, path)


def check_tool_choice(options: RunOptions, path: str) -> None:
    """Raise `InvalidInput` if the tool choice, which is at this path, cannot be obeyed with the offered tools."""
    choice = options.tool_choice
    if choice is None or options.tools != ():  # With tools of the server, the offer is known when the run begins.
        return
    names = {function.name for function in options.functions}
    unknown = next((name for name in choice.tools if name not in names), None)
    if unknown is not None:
        raise InvalidInput(f"No offered tool has the name {shortened(unknown)}.", path=path)
    if choice.mode == "required" and not names:
        raise InvalidInput("The model can't be required to call a tool if no tools are offered.", path=path)


async def _in_thread(check: Callable[..., None], *arguments: Any) -> None:
    if not _QUEUE_SLOTS.acquire(blocking=False):
        raise Unavailable("Too many schemas are being checked. Try again in a moment.", retry_after=1)
    checking = _THREAD.submit(check, *arguments)
    checking.add_done_callback(lambda _: _QUEUE_SLOTS.release())
    await asyncio.wrap_future(checking)


def _check_format(schema: dict[str, Any], path: str) -> None:
    problem = _answer_problem(msgspec.json.encode(schema))
    if problem is not None:
        raise InvalidInput(problem, path=path)


def _check(functions: Sequence[ClientFunction], list_path: str, item_path: str) -> None:
    if len({function.name for function in functions}) < len(functions):
        raise InvalidInput("Two functions have the same name.", path=list_path)
    schemas = [msgspec.json.encode(function.parameters) for function in functions]
    if sum(map(len, schemas)) > MAX_PARAMETERS_BYTES:
        raise InvalidInput(
            f"The functions' parameters have at most {MAX_PARAMETERS_BYTES:,} bytes together.", path=list_path
        )
    for index, schema in enumerate(schemas):
        if len(schema) > MAX_SCHEMA_BYTES:
            raise InvalidInput(
                f"A schema has at most {MAX_SCHEMA_BYTES:,} bytes.", path=f"{item_path.format(index)}.parameters"
            )
    if _count_objects([function.parameters for function in functions]) > MAX_SCHEMA_OBJECTS:
        raise InvalidInput(
            f"The functions' parameters have at most {MAX_SCHEMA_OBJECTS:,} objects together.", path=list_path
        )
    for index, schema in enumerate(schemas):
        problem = _problem(schema)
        if problem is not None:
            raise InvalidInput(problem, path=f"{item_path.format(index)}.parameters")


def _count_objects(value: Any) -> int:
    count, pending = 0, [value]
    while pending:
        nested = pending.pop()
        if isinstance(nested, dict):
            count += 1
            pending.extend(nested.values())
        elif isinstance(nested, list):
            pending.extend(nested)
    return count


@lru_cache(maxsize=256)
def _problem(schema: bytes) -> str | None:
    """Return the schema's problem. Cached, because clients send the same functions with each request."""
    return schema_problem(msgspec.json.decode(schema))


@lru_cache(maxsize=256)
def _answer_problem(schema: bytes) -> str | None:
    return schema_problem(msgspec.json.decode(schema), of_arguments=False)
