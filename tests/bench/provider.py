"""What a streamed token costs the process that reads it: `python -m tests.bench.provider [--json]`.

A process of its own plays an OpenAI-compatible server and paces its tokens, so that each is a read of its own. This one
reads many streams at once, in six ways, one after the other, and counts its own CPU time: `khala` is the port that
runs use, `pydantic-ai` and `openai` are those libraries, `httpx2` and `aiohttp` read the bytes and look at none, and
`socket` is asyncio without any HTTP library: the floor.
"""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias
from urllib.parse import urlsplit

import aiohttp
import httpx2
import msgspec
import uvloop

from khala.models.openai import request_body
from khala.models.port import Prompt, PromptTurn, TextChunk
from khala.models.provider_registry import ProviderAccess
from khala.models.providers import ProviderConfig, Providers
from tests.bench.processes import ROOT

MODEL = "local"
READ = 1 << 16
END = b"0\r\n\r\n"
STARTING = 20.0
LONGEST = 600.0
"""Seconds that one way may take."""

Call: TypeAlias = Callable[[Prompt], Awaitable[int]]
"""Reads one answer; returns the characters of its text, or the bytes where nothing is looked at."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one way took: CPU time of the reading process, in microseconds a token."""

    way: str
    us_per_token: float
    tokens_per_cpu_second: float
    seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All ways under the same load."""

    cores: int
    python: str
    load_before: tuple[float, float, float]
    streams: int
    tokens: int
    pace: float
    costs: list[Cost]


def asking(tokens: int, pace: float) -> Prompt:
    """The prompt that makes the server say so many tokens, so many a second; 0 is at once."""
    return Prompt(system="", turns=(PromptTurn(role="user", text=f"/words={tokens} /pace={pace}"),))


@asynccontextmanager
async def khala(url: str) -> AsyncIterator[Call]:
    """The port, as a turn uses it."""
    providers = Providers(ProviderConfig(access={"openai": ProviderAccess(url=f"{url}/v1")}))
    model = providers.open(f"openai:{MODEL}")

    async def call(prompt: Prompt) -> int:
        async with model.stream(prompt) as events:
            return sum([len(event.text) async for event in events if isinstance(event, TextChunk)])

    yield call
    await providers.aclose()


@asynccontextmanager
async def pydantic_ai(url: str) -> AsyncIterator[Call]:
    """Its stream of one request, without an agent."""
    from openai import AsyncOpenAI
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from khala.models.pydantic_ai import prompt_messages

    client = AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=LONGEST)
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))

    async def call(prompt: Prompt) -> int:
        size = 0
        async with model_request_stream(model, list(prompt_messages.messages(prompt))) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    size += len(event.delta.content_delta)
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    size += len(event.part.content)
        return size

    yield call
    await client.close()


@asynccontextmanager
async def openai(url: str) -> AsyncIterator[Call]:
    """OpenAI's own client."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=LONGEST)

    async def call(prompt: Prompt) -> int:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt.turns[0].text}], stream=True
        )
        return sum([len(choice.delta.content or "") async for chunk in stream for choice in chunk.choices])

    yield call
    await client.close()


@asynccontextmanager
async def httpx(url: str) -> AsyncIterator[Call]:
    """The HTTP client of the libraries alone."""
    async with httpx2.AsyncClient(timeout=LONGEST, limits=httpx2.Limits(max_connections=1000)) as client:

        async def call(prompt: Prompt) -> int:
            asked = request_body.encode(prompt, MODEL)
            async with client.stream("POST", f"{url}/v1/chat/completions", content=asked) as response:
                return sum([len(piece) async for piece in response.aiter_raw()])

        yield call


@asynccontextmanager
async def aio(url: str) -> AsyncIterator[Call]:
    """The HTTP client of the port alone."""
    limits = aiohttp.TCPConnector(limit=1000)
    times = aiohttp.ClientTimeout(total=None, sock_read=LONGEST)
    async with aiohttp.ClientSession(connector=limits, timeout=times) as client:

        async def call(prompt: Prompt) -> int:
            asked = request_body.encode(prompt, MODEL)
            async with client.post(f"{url}/v1/chat/completions", data=asked) as response:
                return sum([len(piece) async for piece in response.content.iter_any()])

        yield call


@asynccontextmanager
async def socket(url: str) -> AsyncIterator[Call]:
    """The bytes alone."""
    at = urlsplit(url)

    async def call(prompt: Prompt) -> int:
        reader, writer = await asyncio.open_connection(at.hostname, at.port)
        asked, size = request_body.encode(prompt, MODEL), 0
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(asked) + asked)
        tail = b""
        while not tail.endswith(END):
            piece = await reader.read(READ)
            if not piece:
                raise ConnectionError("the server left in the midst of an answer")
            size, tail = size + len(piece), (tail + piece)[-len(END) :]
        writer.close()
        return size

    yield call


WAYS: dict[str, Callable[[str], AbstractAsyncContextManager[Call]]] = {
    "khala": khala,
    "pydantic-ai": pydantic_ai,
    "openai": openai,
    "httpx2": httpx,
    "aiohttp": aio,
    "socket": socket,
}
BLIND = ("httpx2", "aiohttp", "socket")
"""Ways that count bytes."""


async def measure(way: str, url: str, options: argparse.Namespace) -> Cost:
    """Read all streams at once, after one that warms up. Raises `RuntimeError` if text was lost."""
    prompt = asking(options.tokens, options.pace)
    async with asyncio.timeout(LONGEST), WAYS[way](url) as call:
        await call(asking(1, 0))
        began, spent = time.monotonic(), time.process_time()
        sizes = await asyncio.gather(*(call(prompt) for _ in range(options.streams)))
        spent, took = time.process_time() - spent, time.monotonic() - began
    text = sum(len(f"word{number} ") for number in range(1, options.tokens + 1))
    if way not in BLIND and set(sizes) != {text}:
        raise RuntimeError(f"{way} read {sorted(set(sizes))} characters of {text}")
    total = options.streams * options.tokens
    return Cost(way=way, us_per_token=spent / total * 1e6, tokens_per_cpu_second=total / spent, seconds=took)


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """The process that speaks; its address."""
    program = (sys.executable, "-m", "tests.support.providers")
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), STARTING)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def bench(options: argparse.Namespace) -> Report:
    """Measure these ways."""
    load = os.getloadavg()
    async with server() as url:
        costs = [await measure(way, url, options) for way in options.ways]
    return Report(
        cores=os.cpu_count() or 0,
        python=platform.python_version(),
        load_before=load,
        streams=options.streams,
        tokens=options.tokens,
        pace=options.pace,
        costs=costs,
    )


def table(report: Report) -> str:
    """The report for people."""
    pace = f"{report.pace:g} tokens/s each" if report.pace else "as fast as it goes"
    lines = [
        f"{report.streams} streams of {report.tokens} tokens, {pace}",
        "",
        "| way | CPU µs a token | tokens/s a core |",
    ]
    lines += ["|---|---:|---:|"]
    lines += [f"| {cost.way} | {cost.us_per_token:.1f} | {cost.tokens_per_cpu_second:,.0f} |" for cost in report.costs]
    return "\n".join(lines)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.provider", description=__doc__)
    parser.add_argument("ways", nargs="*", default=list(WAYS), help=f"of {' '.join(WAYS)}; all if none is given")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=150, help="of each answer")
    parser.add_argument("--pace", type=float, default=30.0, help="tokens a second of each stream; 0 is at once")
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args(given)
    if unknown := set(parsed.ways) - set(WAYS):
        parser.error(f"no such way: {' '.join(sorted(unknown))}")
    return parsed


if __name__ == "__main__":
    options = arguments()
    report = uvloop.run(bench(options))
    print(msgspec.json.encode(report).decode() if options.json else table(report))
