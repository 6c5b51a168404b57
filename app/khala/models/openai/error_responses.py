"""A response that is no answer, read as far as it explains itself."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from khala.models.failures import ProviderRefusalError
from khala.models.openai.http_client import BROKEN, more

MAX_ERROR_BYTES = 64 << 10
"""Bytes of the explanation."""
PATIENCE = 5.0
"""Seconds for it to come."""


async def read(response: aiohttp.ClientResponse) -> ProviderRefusalError:
    """Why the server refused. The status says most: an explanation that breaks off is read as far as it came."""
    said = bytearray()
    with suppress(*BROKEN):
        async with asyncio.timeout(PATIENCE):
            while len(said) < MAX_ERROR_BYTES and (piece := await more(response)):
                said += piece[: MAX_ERROR_BYTES - len(said)]
    return ProviderRefusalError.of(
        _error(bytes(said)), status=response.status, retry_after=retry_after(response.headers)
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait for, by `retry-after-ms`, or `retry-after` in seconds or as a date."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    seconds = _number(given)
    return seconds if seconds is not None or given is None else _until(given)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # an obsolete form has no zone and means this one
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _error(said: bytes) -> Any:
    """The error of a body: an object, mostly under `error`, or whatever text came in its place."""
    try:
        body = msgspec.json.decode(said)
    except (ValueError, RecursionError):
        return said.decode(errors="replace")
    return body.get("error") or body if isinstance(body, dict) else body
