"""Calls of the real providers' clients to the scripted local server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from khala.models.port import Completed, LanguageModel, ModelEvent, ModelFailed, Prompt, PromptTurn, TextChunk
from khala.models.provider_registry import ProviderAccess
from khala.models.providers import ProviderConfig, Providers
from tests.support.providers import Reply, Server, serving

PROTOCOLS = ("openai", "anthropic", "google")
PROMPT = Prompt(
    system="Be brief.",
    turns=(
        PromptTurn(role="user", text="One?"),
        PromptTurn(role="assistant", text="Two."),
        PromptTurn(role="user", text="Three?"),
        PromptTurn(role="user", text="And four?"),
    ),
)
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def config(url: str, read_timeout: float = 5.0) -> ProviderConfig:
    return ProviderConfig(
        access={
            "openai": ProviderAccess(url=f"{url}/v1"),
            "anthropic": ProviderAccess(key="key", url=url),
            "google": ProviderAccess(key="key", url=url),
        },
        read_timeout=read_timeout,
        connect_timeout=2.0,
    )


@asynccontextmanager
async def calling(
    protocol: str, *replies: Reply, read_timeout: float = 5.0
) -> AsyncIterator[tuple[LanguageModel, Server]]:
    async with serving(*replies) as server:
        providers = Providers(config(server.url, read_timeout))
        try:
            yield providers.open(f"{protocol}:local-model"), server
        finally:
            await providers.aclose()


async def ask(model: LanguageModel, prompt: Prompt = PROMPT) -> list[ModelEvent]:
    async with model.stream(prompt) as events:
        return [event async for event in events]


async def collect_events(model: LanguageModel, events_queue: asyncio.Queue[ModelEvent]) -> None:
    async with model.stream(PROMPT) as events:
        async for event in events:
            events_queue.put_nowait(event)


async def call_failure(model: LanguageModel) -> tuple[ModelFailed, str]:
    """The failure of a call, and the text that came before it."""
    events_queue: asyncio.Queue[ModelEvent] = asyncio.Queue()
    with pytest.raises(ModelFailed) as caught:
        await collect_events(model, events_queue)
    return caught.value, event_text([events_queue.get_nowait() for _ in range(events_queue.qsize())])


def event_text(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextChunk))


def completed(events: list[ModelEvent]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]
