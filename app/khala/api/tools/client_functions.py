"""What callers may say of functions of their own, in whichever protocol they say it."""

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

MOST_PARAMETERS = 256 * 1024
"""Bytes of all functions' parameters together, as JSON."""
MOST_SCHEMAS = 2_000
"""Objects in all functions' parameters together."""

MAX_WAITING = 64
"""Requests whose functions wait to be checked, or are being checked, in this process."""

# One thread: however much there is to check, the loop has half of the time.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="functions")
_PLACES = threading.BoundedSemaphore(MAX_WAITING)


async def check(functions: Sequence[ClientFunction], *, every: str, each: str) -> None:
    """Raise `InvalidInput` for functions that can't be offered to a model.

    `every` names their place in the request, `each` that of one of them, with `{}` for its number. Raises `Unavailable`
    where too many requests wait for the same.
    """
    if not functions:
        return
    if not _PLACES.acquire(blocking=False):
        raise Unavailable("Too many functions are being checked. Try again in a moment.", retry_after=1)
    checking = _THREAD.submit(_check, functions, every, each)
    checking.add_done_callback(lambda _: _PLACES.release())
    await asyncio.wrap_future(checking)


def _check(functions: Sequence[ClientFunction], every: str, each: str) -> None:
    if len({one.name for one in functions}) < len(functions):
        raise InvalidInput("Two functions have the same name.", path=every)
    schemas = [msgspec.json.encode(one.parameters) for one in functions]
    if sum(map(len, schemas)) > MOST_PARAMETERS:
        raise InvalidInput(f"The functions' parameters have at most {MOST_PARAMETERS:,} bytes together.", path=every)
    for place, schema in enumerate(schemas):
        if len(schema) > MAX_SCHEMA_BYTES:
            raise InvalidInput(
                f"A schema has at most {MAX_SCHEMA_BYTES:,} bytes.", path=f"{each.format(place)}.parameters"
            )
    if _objects([one.parameters for one in functions]) > MOST_SCHEMAS:
        raise InvalidInput(f"The functions' parameters have at most {MOST_SCHEMAS:,} objects together.", path=every)
    for place, schema in enumerate(schemas):
        problem = _problem(schema)
        if problem is not None:
            raise InvalidInput(problem, path=f"{each.format(place)}.parameters")


def _objects(value: Any) -> int:
    found, ahead = 0, [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            found += 1
            ahead.extend(one.values())
        elif isinstance(one, list):
            ahead.extend(one)
    return found


@lru_cache(maxsize=256)
def _problem(schema: bytes) -> str | None:
    """Remembered: clients say the same functions each time."""
    return schema_problem(msgspec.json.decode(schema))
