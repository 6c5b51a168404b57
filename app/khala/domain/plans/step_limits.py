"""Limits of planned steps: those of `PlannedStep`, and the characters that ids and texts may have."""

import re
from typing import Any

import msgspec

from khala.domain.errors import InvalidInput
from khala.domain.plans.plan import PlannedStep

MAX_ID_CHARACTERS = 64
STEP_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_ID_CHARACTERS - 1}}}")


def check_step(step: PlannedStep, place: str) -> None:
    """Raise `InvalidInput` for the first value that is not within its limits. `place` is the path of the step."""
    if not STEP_ID.fullmatch(step.id):
        rule = f"1 to {MAX_ID_CHARACTERS} letters, digits, '.', '_', ':' and '-', and begins with a letter or a digit"
        raise InvalidInput(f"The id of a step has {rule}.", path=_path(place, "id"))
    if not step.title.strip():
        raise InvalidInput(f"Step {step.id!r} needs a title.", path=_path(place, "title"))
    fields = msgspec.to_builtins(step)
    try:
        msgspec.convert(fields, PlannedStep)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        field = path.removesuffix("`")
        raise InvalidInput(f"Step {step.id!r}, {field}: {message}.", path=_path(place, field)) from error
    if not is_storable(fields):
        raise InvalidInput(f"Step {step.id!r} has a character that can't be stored.", path=place)


def is_storable(value: Any) -> bool:
    """Whether Postgres can store this JSON value. It can't store NUL, nor half of a surrogate pair."""
    try:
        return b"\\u0000" not in msgspec.json.encode(value).replace(b"\\\\", b"")
    except UnicodeEncodeError:
        return False


def _path(place: str, field: str) -> str:
    return f"{place}.{field}" if place else field
