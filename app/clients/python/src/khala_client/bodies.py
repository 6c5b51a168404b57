"""Bodies of requests: camelCase names, and only the fields that were given."""

from typing import Any, TypeAlias
from urllib.parse import quote
from uuid import UUID

import msgspec

Id: TypeAlias = UUID | str
"""A UUID, or its text."""


def body(**fields: Any) -> dict[str, Any]:
    """The fields that are not None, in camelCase."""
    return {_camel(name): value for name, value in fields.items() if value is not None and value is not msgspec.UNSET}


def changes(**fields: Any) -> dict[str, Any]:
    """The fields that are not `UNSET`, in camelCase. None is null, and removes a value."""
    return {_camel(name): value for name, value in fields.items() if value is not msgspec.UNSET}


def as_id(value: Id) -> UUID:
    """The id as UUID. Raises `ValueError` if it is none, so that no other text gets into an address."""
    return value if isinstance(value, UUID) else UUID(value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def segment(text: str) -> str:
    """The text as one segment of a path."""
    return quote(text, safe="")
