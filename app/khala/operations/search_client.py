"""The client of `khala search`: finds messages, files and memories of an account on a running server."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import click
import msgspec

from khala.console import KnownFailure
from khala.domain.search_results import SearchHit

TIMEOUT_SECONDS = 15.0
MAX_ANSWER_BYTES = 4 << 20
CONTEXT_CHARACTERS = 60
"""Characters that are shown before the first highlight."""
SHOWN_CHARACTERS = 200


class Answer(msgspec.Struct, frozen=True):
    """The part of the server's answer that is printed."""

    items: list[SearchHit]


async def request(url: str, params: Mapping[str, str], token: str) -> bytes:
    """The body of a good answer. Raises `KnownFailure`."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.get(url, params=params, allow_redirects=False) as response,
        ):
            body = await response.content.read(MAX_ANSWER_BYTES)
            if response.status != 200:
                raise KnownFailure(f"The server answered {response.status}: {_detail(body)}")
            return body
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise KnownFailure(f"{url} does not answer: {str(error) or 'it took too long'}") from error


def _detail(body: bytes) -> str:
    try:
        problem: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return "it may not be Khala."
    return str(problem.get("detail") or problem.get("title"))


def hits(body: bytes) -> list[SearchHit]:
    """The results in the body of an answer."""
    return msgspec.json.decode(body, type=Answer).items


def lines(item: SearchHit) -> Iterator[str]:
    """The result for people: where it is, and the text around its first highlight with the highlights marked."""
    where = item.path or (f"/t/{item.thread_id}" if item.message_id else f"memory {item.memory_id}")
    if item.blob_id is not None:
        where += f" in {item.name or 'the output of a tool'}"
    match = "similar in meaning" if item.by == "meaning" else item.match
    yield click.style(f"{where}  {item.created_at:%Y-%m-%d %H:%M}  {match}", dim=item.match == "similar")
    units = item.text.encode("utf-16-le", "surrogatepass")
    start = max(0, item.highlights[0].start - CONTEXT_CHARACTERS) if item.highlights else 0
    pieces, at = [], start
    for part in item.highlights:
        if part.end > start + SHOWN_CHARACTERS:
            break
        pieces += [_text(units, at, part.start), click.style(_text(units, part.start, part.end), bold=True)]
        at = part.end
    pieces.append(_text(units, at, max(at, start + SHOWN_CHARACTERS)))
    yield textwrap.indent(" ".join("".join(pieces).split()), "    ")


def _text(units: bytes, start: int, end: int) -> str:
    """The UTF-16 code units from `start` to before `end`."""
    return units[2 * start : 2 * end].decode("utf-16-le", "replace")
