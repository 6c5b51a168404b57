"""What callers may say of functions of their own, in whichever protocol they say it."""

from collections.abc import Sequence

import msgspec

from app.domain.chat import Function
from app.domain.errors import InvalidInput
from app.tools.arguments import schema_problem

MOST_PARAMETERS = 256 * 1024
"""Bytes of all functions' parameters together, as JSON."""


def check(functions: Sequence[Function], *, every: str, each: str) -> None:
    """Raise `InvalidInput` for functions that can't be offered to a model.

    `every` names their place in the request, `each` that of one of them, with `{}` for its number. Large schemas take
    tens of milliseconds.
    """
    if len({one.name for one in functions}) < len(functions):
        raise InvalidInput("Two functions have the same name.", path=every)
    if sum(len(msgspec.json.encode(one.parameters)) for one in functions) > MOST_PARAMETERS:
        raise InvalidInput(f"The functions' parameters have at most {MOST_PARAMETERS:,} bytes together.", path=every)
    for place, one in enumerate(functions):
        problem = schema_problem(one.parameters)
        if problem is not None:
            raise InvalidInput(problem, path=f"{each.format(place)}.parameters")
