"""Checks the answer of a run against the format that the caller requested."""

from typing import Any

import msgspec

from khala.domain.errors import InvalidInput
from khala.domain.generation import ResponseFormat
from khala.tools.port import ToolError
from khala.tools.validation import arguments

MAX_REPORT_CHARACTERS = 1_500
"""Characters of a list of mismatches."""


async def mismatches(response_format: ResponseFormat | None, text: str) -> str:
    """The places at which the text does not fit the format, as one line; empty if it fits."""
    if response_format is None:
        return ""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        return "answer: nested too deeply"
    except (msgspec.DecodeError, ValueError) as error:
        return f"answer: not JSON: {error}"[:MAX_REPORT_CHARACTERS]
    return "; ".join(await _problems(response_format, value))[:MAX_REPORT_CHARACTERS]


async def _problems(response_format: ResponseFormat, value: Any) -> list[str]:
    if response_format.schema is None:
        return [] if isinstance(value, dict) else ["answer: not a JSON object"]
    try:
        return await arguments.check_answer(response_format.schema, value)
    except ToolError as error:
        return [f"answer: it could not be checked: {error.message}"]
    except InvalidInput as error:  # An earlier version accepted the schema.
        return [f"answer: the requested schema can't be used: {error.message}"]
