"""Reads the error of an HTTP response: its message, codes, status and `Retry-After`."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

import aiohttp
import msgspec

from khala.models.failures import ProviderRefusalError
from khala.models.streaming.http_client import RESPONSE_ERRORS, read_available

MAX_ERROR_BYTES = 64 << 10
"""Bytes of an error's body that are read."""
READ_TIMEOUT_SECONDS = 5.0
"""Time that an error's body may take to arrive."""


ErrorParser: TypeAlias = Callable[[Any, int, float | None], ProviderRefusalError]
"""Takes an error as its provider sends it, the status, and the seconds of the header `Retry-After`."""


def parse_error(error: Any, status: int, retry_after: float | None) -> ProviderRefusalError:
    """Parse an error of OpenAI's protocol."""
    return ProviderRefusalError.parse(error, status=status, retry_after=retry_after)


async def read(response: aiohttp.ClientResponse, parse: ErrorParser = parse_error) -> ProviderRefusalError:
    """The error of the response. If the body is incomplete, the part that arrived is used: the status says most."""
    body = bytearray()
    with suppress(*RESPONSE_ERRORS):
        async with asyncio.timeout(READ_TIMEOUT_SECONDS):
            while len(body) < MAX_ERROR_BYTES and (chunk := await read_available(response)):
                body += chunk[: MAX_ERROR_BYTES - len(body)]
    return parse(_error(bytes(body)), response.status, retry_after(response.headers))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait for, by `retry-after-ms`, or `retry-after` in seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    return seconds if seconds is not None or value is None else _seconds_until(value)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _seconds_until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # an obsolete format without a zone means UTC
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _error(body: bytes) -> Any:
    """The error in a body: an object, usually under `error`, or the text of a body that is not JSON."""
    try:
        decoded = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body.decode(errors="replace")
    return decoded.get("error") or decoded if isinstance(decoded, dict) else decoded
