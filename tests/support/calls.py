"""Calls of the real providers' clients to the scripted local server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from khala.models.port import Completed, Event, Model, ModelFailed, Prompt, Text, Turn
from khala.models.provider_registry import ProviderAccess
from khala.models.providers import ProviderConfig, Providers
from tests.support.providers import Reply, Server, serving

PROTOCOLS = ("openai", "anthropic", "google")
PROMPT = Prompt(
    system="Be brief.",
    turns=(
        Turn(role="user", text="One?"),
        Turn(role="assistant", text="Two."),
        Turn(role="user", text="Three?"),
        Turn(role="user", text="And four?"),
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
async def calling(protocol: str, *replies: Reply, read_timeout: float = 5.0) -> AsyncIterator[tuple[Model, Server]]:
    async with serving(*replies) as server:
        providers = Providers(config(server.url, read_timeout))
        try:
            yield providers.open(f"{protocol}:local-model"), server
        finally:
            await providers.aclose()


async def ask(model: Model, prompt: Prompt = PROMPT) -> list[Event]:
    async with model.stream(prompt) as events:
        return [event async for event in events]


async def listen(model: Model, heard: asyncio.Queue[Event]) -> None:
    async with model.stream(PROMPT) as events:
        async for event in events:
            heard.put_nowait(event)


async def failing(model: Model) -> tuple[ModelFailed, str]:
    """The failure of a call, and the text that came before it."""
    heard: asyncio.Queue[Event] = asyncio.Queue()
    with pytest.raises(ModelFailed) as caught:
        await listen(model, heard)
    return caught.value, said([heard.get_nowait() for _ in range(heard.qsize())])


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def completed(events: list[Event]) -> Completed:
    assert isinstance(events[-1], Completed)
    return events[-1]
