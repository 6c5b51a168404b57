"""One HTTP client per provider, and the models behind it; each provider's SDK is imported only when it is used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2
from pydantic_ai.models import Model, create_async_httpx2_client

from app.models import responses
from app.models.catalog import Provider

if TYPE_CHECKING:
    from app.models.providers import Access, ProviderSettings

PUBLIC = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
"""Where the providers are. Given always: without an address the SDKs would look into the environment on their own."""
SERVER_TIMEOUT = "1200"
"""Seconds a Google answer may take in all. Unless told, its SDK asks the server to stop after the read timeout."""


@dataclass(frozen=True)
class Client:
    """A provider that can be called: `model` makes one of its models by name."""

    http: httpx2.AsyncClient
    model: Callable[[str], Model]

    async def aclose(self) -> None:
        """Close every connection."""
        await self.http.aclose()


def connect(provider: Provider, access: "Access", settings: "ProviderSettings") -> Client:
    """A client with explicit timeouts and without the retries that SDKs do on their own."""
    timeout = httpx2.Timeout(settings.read_timeout, connect=settings.connect_timeout, pool=settings.connect_timeout)
    http = create_async_httpx2_client(timeout=timeout)
    http.event_hooks["response"].append(responses.note)
    make = {"openai": _openai, "anthropic": _anthropic, "google": _google}[provider]
    return Client(http, make(http, access.key or "", access.url or PUBLIC[provider]))


def _openai(http: httpx2.AsyncClient, key: str, url: str) -> Callable[[str], Model]:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    http.event_hooks["response"].append(responses.watch)
    sdk = AsyncOpenAI(api_key=key, base_url=url, max_retries=0, timeout=http.timeout, http_client=http)
    return lambda name: OpenAIChatModel(name, provider=OpenAIProvider(openai_client=sdk))


def _anthropic(http: httpx2.AsyncClient, key: str, url: str) -> Callable[[str], Model]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    sdk = AsyncAnthropic(api_key=key, base_url=url, max_retries=0, timeout=http.timeout, http_client=http)
    return lambda name: AnthropicModel(name, provider=AnthropicProvider(anthropic_client=sdk))


def _google(http: httpx2.AsyncClient, key: str, url: str) -> Callable[[str], Model]:
    from google.genai.client import Client as Sdk
    from google.genai.types import HttpOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    http.event_hooks["response"].append(responses.mend)
    # The SDK takes one timeout for every phase, in milliseconds; the HTTP client caps connecting at its own.
    milliseconds = int((http.timeout.read or 0) * 1000)
    options = HttpOptions(
        base_url=url,
        timeout=milliseconds,
        headers={"X-Server-Timeout": SERVER_TIMEOUT, "Accept-Encoding": "identity"},
        httpx_async_client=http,
    )
    sdk = Sdk(vertexai=False, api_key=key, http_options=options)
    return lambda name: GoogleModel(name, provider=GoogleProvider(client=sdk))
