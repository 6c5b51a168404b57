"""Reads the operator's JSON files. Error messages name the place in the file, and never contain a secret."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

MAX_FILE_BYTES = 1 << 20
"""Bytes of a configuration file."""

T = TypeVar("T")


class ConfigFileError(ValueError):
    """A configuration file is invalid. The message names the place."""


def read_bytes(path: Path) -> bytes:
    """The content of the file. Raises `ConfigFileError`, also for a file that is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigFileError(f"the file can't be read: {error.strerror or error}.") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigFileError(f"the file has more than {MAX_FILE_BYTES:,} bytes.")
    return content


def read_json(path: Path) -> Any:
    """The decoded content of the file. Raises `ConfigFileError`."""
    try:
        return msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(f"the file is not valid JSON: {error}.") from error


def require_object(value: Any, place: str) -> dict[str, Any]:
    """The value, which is an object. Raises `ConfigFileError`."""
    if not isinstance(value, dict):
        raise ConfigFileError(f"{place}: must be an object.")
    return value


def convert(value: Any, kind: type[T], place: str) -> T:
    """The value as a `kind`. Raises `ConfigFileError`, which names the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        raise ConfigFileError(f"{place}{where.rstrip('`')}: {problem}.") from error
