"""Cost of a streamed token in the process that reads it: `python -m tests.bench.provider [--protocol google] [--json]`.

Another process serves the providers' protocols and paces its tokens, so that each token is a separate read. This
process reads many streams concurrently with several clients, one client after the other, and measures its own CPU time.
`khala` is the port that runs use, `khala-paced` the same with pauses as in a run, `pydantic-ai` and `openai` are those
libraries, `httpx2` and `aiohttp` read the bytes without parsing them, and `socket` is asyncio without any HTTP library:
the lower bound without pauses.
"""

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import aiohttp
import httpx2
import msgspec
import uvloop

from khala.domain.flush_policy import FlushPolicy
from khala.models.openai import request_body
from khala.models.port import Prompt, PromptTurn, TextChunk
from khala.models.providers import Providers
from tests.bench.processes import ROOT
from tests.support.provider_calls import PROTOCOLS, config

if TYPE_CHECKING:
    import pydantic_ai.models as pydantic_ai_models

MODEL = "local"
READ_BYTES = 1 << 16
END = b"0\r\n\r\n"
START_TIMEOUT_SECONDS = 20.0
CLIENT_TIMEOUT_SECONDS = 600.0
"""For the whole measurement of one client."""

Call: TypeAlias = Callable[[Prompt], Awaitable[int]]
"""Reads one answer; returns the characters of its text, or its bytes if the client does not parse."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one client: CPU time of the reading process, in microseconds a token."""

    client: str
    us_per_token: float
    tokens_per_cpu_second: float
    seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of all clients under the same load."""

    cores: int
    python: str
    load_before: tuple[float, float, float]
    protocol: str = "openai"
    streams: int
    tokens: int
    pace: float
    costs: list[Cost]


def paced_prompt(tokens: int, pace: float) -> Prompt:
    """A prompt for an answer of so many tokens, at `pace` tokens a second; 0 is as fast as possible."""
    return Prompt(system="", turns=(PromptTurn(role="user", text=f"/words={tokens} /pace={pace}"),))


@asynccontextmanager
async def khala(url: str, protocol: str) -> AsyncIterator[Call]:
    """Khala's port without pauses."""
    async with _khala(url, protocol, paced=False) as call:
        yield call


@asynccontextmanager
async def khala_paced(url: str, protocol: str) -> AsyncIterator[Call]:
    """Khala's port, with pauses for as long as a run waits for its flush."""
    async with _khala(url, protocol, paced=True) as call:
        yield call


@asynccontextmanager
async def _khala(url: str, protocol: str, *, paced: bool) -> AsyncIterator[Call]:
    providers = Providers(config(url))
    model = providers.open(f"{protocol}:{MODEL}")

    def hold(deliver: Callable[[], bool], deltas_per_second: float, chars_per_second: float) -> None:
        seconds = FlushPolicy().hold_seconds(deltas_per_second, chars_per_second)
        asyncio.get_running_loop().call_later(seconds, deliver)

    async def call(prompt: Prompt) -> int:
        async with model.stream(prompt, hold if paced else None) as events:
            return sum([len(event.text) async for event in events if isinstance(event, TextChunk)])

    yield call
    await providers.aclose()


@asynccontextmanager
async def pydantic_ai(url: str, protocol: str) -> AsyncIterator[Call]:
    """pydantic-ai's stream of one request, without an agent."""
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import (
        ModelRequest,
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        UserPromptPart,
    )

    model, aclose = _library_model(url, protocol)

    async def call(prompt: Prompt) -> int:
        size = 0
        async with model_request_stream(model, [ModelRequest([UserPromptPart(prompt.turns[0].text)])]) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    size += len(event.delta.content_delta)
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    size += len(event.part.content)
        return size

    yield call
    await aclose()


def _library_model(url: str, protocol: str) -> "tuple[pydantic_ai_models.Model, Callable[[], Awaitable[None]]]":
    """A model of pydantic-ai, and a function that closes its connections."""
    http = httpx2.AsyncClient(timeout=CLIENT_TIMEOUT_SECONDS, limits=httpx2.Limits(max_connections=1000))
    match protocol:
        case "anthropic":
            from anthropic import AsyncAnthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            sdk = AsyncAnthropic(api_key="none", base_url=url, max_retries=0, http_client=http)
            return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=sdk)), http.aclose
        case "google":
            from google.genai.client import Client
            from google.genai.types import HttpOptions
            from pydantic_ai.models.google import GoogleModel
            from pydantic_ai.providers.google import GoogleProvider

            options = HttpOptions(base_url=url, httpx_async_client=http)
            client = Client(vertexai=False, api_key="none", http_options=options)
            return GoogleModel(MODEL, provider=GoogleProvider(client=client)), http.aclose
        case _:
            from openai import AsyncOpenAI
            from pydantic_ai.models.openai import OpenAIChatModel
            from pydantic_ai.providers.openai import OpenAIProvider

            openai = AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, http_client=http)
            return OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=openai)), http.aclose


@asynccontextmanager
async def openai(url: str, protocol: str) -> AsyncIterator[Call]:
    """OpenAI's own client."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=CLIENT_TIMEOUT_SECONDS)

    async def call(prompt: Prompt) -> int:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt.turns[0].text}], stream=True
        )
        return sum([len(choice.delta.content or "") async for chunk in stream for choice in chunk.choices])

    yield call
    await client.close()


@asynccontextmanager
async def httpx(url: str, protocol: str) -> AsyncIterator[Call]:
    """Only the HTTP client of the libraries."""
    async with httpx2.AsyncClient(timeout=CLIENT_TIMEOUT_SECONDS, limits=httpx2.Limits(max_connections=1000)) as client:

        async def call(prompt: Prompt) -> int:
            body = request_body.encode(prompt, MODEL)
            async with client.stream("POST", f"{url}/v1/chat/completions", content=body) as response:
                return sum([len(piece) async for piece in response.aiter_raw()])

        yield call


@asynccontextmanager
async def aio(url: str, protocol: str) -> AsyncIterator[Call]:
    """Only the HTTP client of the port."""
    limits = aiohttp.TCPConnector(limit=1000)
    times = aiohttp.ClientTimeout(total=None, sock_read=CLIENT_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=limits, timeout=times) as client:

        async def call(prompt: Prompt) -> int:
            body = request_body.encode(prompt, MODEL)
            async with client.post(f"{url}/v1/chat/completions", data=body) as response:
                return sum([len(piece) async for piece in response.content.iter_any()])

        yield call


@asynccontextmanager
async def socket(url: str, protocol: str) -> AsyncIterator[Call]:
    """Only the bytes."""
    parts = urlsplit(url)

    async def call(prompt: Prompt) -> int:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        body, size = request_body.encode(prompt, MODEL), 0
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        tail = b""
        while not tail.endswith(END):
            piece = await reader.read(READ_BYTES)
            if not piece:
                raise ConnectionError("the server closed the connection during an answer")
            size, tail = size + len(piece), (tail + piece)[-len(END) :]
        writer.close()
        return size

    yield call


CLIENTS: dict[str, Callable[[str, str], AbstractAsyncContextManager[Call]]] = {
    "khala": khala,
    "khala-paced": khala_paced,
    "pydantic-ai": pydantic_ai,
    "openai": openai,
    "httpx2": httpx,
    "aiohttp": aio,
    "socket": socket,
}
NOT_PARSING = ("httpx2", "aiohttp", "socket")
"""Clients that count bytes."""
ANY_PROTOCOL = ("khala", "khala-paced", "pydantic-ai")
"""Clients that speak all protocols; the others speak only OpenAI's."""


async def measure(client: str, url: str, options: argparse.Namespace) -> Cost:
    """Read all streams concurrently, after one as a warm-up. Raises `RuntimeError` if text was lost."""
    prompt = paced_prompt(options.tokens, options.pace)
    async with asyncio.timeout(CLIENT_TIMEOUT_SECONDS), CLIENTS[client](url, options.protocol) as call:
        await call(paced_prompt(1, 0))
        began, spent = time.monotonic(), time.process_time()
        sizes = await asyncio.gather(*(call(prompt) for _ in range(options.streams)))
        spent, took = time.process_time() - spent, time.monotonic() - began
    text = sum(len(f"word{number} ") for number in range(1, options.tokens + 1))
    if client not in NOT_PARSING and set(sizes) != {text}:
        raise RuntimeError(f"{client} read {sorted(set(sizes))} characters of {text}")
    total = options.streams * options.tokens
    return Cost(client=client, us_per_token=spent / total * 1e6, tokens_per_cpu_second=total / spent, seconds=took)


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Run the scripted model server as a process; yields its address."""
    program = (sys.executable, "-m", "tests.support.providers")
    process = await asyncio.create_subprocess_exec(*program, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_SECONDS)).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def bench(options: argparse.Namespace) -> Report:
    """Measure these clients."""
    load = os.getloadavg()
    async with server() as url:
        costs = [await measure(client, url, options) for client in options.clients]
    return Report(
        cores=os.cpu_count() or 0,
        python=platform.python_version(),
        load_before=load,
        protocol=options.protocol,
        streams=options.streams,
        tokens=options.tokens,
        pace=options.pace,
        costs=costs,
    )


def table(report: Report) -> str:
    """The report as text."""
    pace = f"{report.pace:g} tokens/s each" if report.pace else "as fast as possible"
    lines = [
        f"{report.protocol}: {report.streams} streams of {report.tokens} tokens, {pace}",
        "",
        "| client | CPU µs a token | tokens/s a core |",
    ]
    lines += ["|---|---:|---:|"]
    lines += [
        f"| {cost.client} | {cost.us_per_token:.1f} | {cost.tokens_per_cpu_second:,.0f} |" for cost in report.costs
    ]
    return "\n".join(lines)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.provider", description=__doc__)
    parser.add_argument("clients", nargs="*", help=f"some of {' '.join(CLIENTS)} (all that speak the protocol)")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="openai")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=150, help="of each answer")
    parser.add_argument(
        "--pace", type=float, default=30.0, help="tokens a second of each stream; 0 is as fast as possible"
    )
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args(given)
    able = list(CLIENTS) if parsed.protocol == "openai" else list(ANY_PROTOCOL)
    parsed.clients = parsed.clients or able
    if unknown := set(parsed.clients) - set(able):
        parser.error(f"no such client: {' '.join(sorted(unknown))}")
    return parsed


if __name__ == "__main__":
    options = arguments()
    report = uvloop.run(bench(options))
    print(msgspec.json.encode(report).decode() if options.json else table(report))
