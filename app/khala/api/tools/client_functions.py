"""Checks the functions that clients offer to the model, for both protocols."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import msgspec

from khala.domain.chat import ClientFunction
from khala.domain.errors import InvalidInput, Unavailable
from khala.tools.validation.arguments import MAX_SCHEMA_BYTES, schema_problem

MAX_PARAMETERS_BYTES = 256 * 1024
"""Of all functions together, as JSON."""
MAX_SCHEMA_OBJECTS = 2_000
"""JSON objects in the parameters of all functions together."""

MAX_WAITING = 64
"""Requests in this process whose functions are being checked, or wait for the check."""

# A single thread, so that the event loop gets half of the processor time however much there is to check.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="functions")
_QUEUE_SLOTS = threading.BoundedSemaphore(MAX_WAITING)


async def check(functions: Sequence[ClientFunction], *, list_path: str, item_path: str) -> None:
    """Raise `InvalidInput` for functions that cannot be offered to a model.

    `list_path` is the path of the functions in the request, and `item_path` that of one function, with `{}` for its
    index. Raises `Unavailable` if too many requests wait for the check.
    """
    if not functions:
        return
    if not _QUEUE_SLOTS.acquire(blocking=False):
        raise Unavailable("Too many functions are being checked. Try again in a moment.", retry_after=1)
    checking = _THREAD.submit(_check, functions, list_path, item_path)
    checking.add_done_callback(lambda _: _QUEUE_SLOTS.release())
    await asyncio.wrap_future(checking)


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
