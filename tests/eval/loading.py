"""Reads files of public benchmarks strictly: another file ends with an error that names the file and what is wrong."""

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.eval.eval_sets import Collection


class BenchmarkFileError(ValueError):
    """The file is not of the expected format. The message is for the person who named it."""


class LoadedBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """The collections of a benchmark's file, and the number of its questions that cannot be evaluated."""

    title: str
    collections: list[Collection]
    skipped: int = 0


def read_json(path: Path, kind: Any, benchmark: str) -> Any:
    """The file's content. Raises `BenchmarkFileError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise BenchmarkFileError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BenchmarkFileError(f"{path} is no file of {benchmark}: {error}") from error


def read_time(text: str, pattern: str, where: str) -> str:
    """The time in ISO format. Raises `BenchmarkFileError`."""
    try:
        return datetime.strptime(text, pattern).isoformat(timespec="minutes")  # the files have no zone
    except ValueError as error:
        raise BenchmarkFileError(f"{where}: {text!r} is no time such as the benchmark has") from error
