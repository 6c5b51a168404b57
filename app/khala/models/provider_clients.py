"""One HTTP client per provider, and the models behind it; what SDKs need is imported only when one is used."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from khala.models.model_names import ModelRef, Provider
from khala.models.openai.http_client import Http
from khala.models.openai.model import ChatModel, headers
from khala.models.port import Model

if TYPE_CHECKING:
    import httpx2
    import pydantic_ai.models

    from khala.models.providers import Access, ProviderSettings

PUBLIC = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
}
"""Where the providers are. Given always: without an address the SDKs would look into the environment on their own."""
MOST_CONNECTIONS = 1000
"""To each provider; as the SDKs have it."""
MOST_IDLE = 100
"""Connections that the SDKs' client keeps for later calls; ours keeps all for as long as they may be `IDLE`."""
IDLE = 5.0
"""Seconds for which a connection is kept."""
SERVER_TIMEOUT = "1200"
"""Seconds a Google answer may take in all. Unless told, its SDK asks the server to stop after the read timeout."""


@dataclass(frozen=True)
class Client:
    """A provider that can be called: `model` makes one of its models."""

    model: Callable[[ModelRef], Model]
    aclose: Callable[[], Awaitable[None]]
    """Closes every connection."""


def connect(provider: Provider, access: "Access", settings: "ProviderSettings") -> Client:
    """A client with explicit timeouts and without the retries that SDKs do on their own."""
    url = access.url or PUBLIC[provider]
    if provider == "openai":
        return _openai(access, url, settings)
    return _library({"anthropic": _anthropic, "google": _google}[provider], access.key or "", url, settings)


def _openai(access: "Access", url: str, settings: "ProviderSettings") -> Client:
    http = Http(
        url,
        dict(headers(access.key or "", access.organization, access.project)),
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        connections=MOST_CONNECTIONS,
        idle=IDLE,
    )
    return Client(lambda ref: ChatModel(http, ref), http.aclose)


def _library(
    make: "Callable[[httpx2.AsyncClient, str, str], Callable[[str], pydantic_ai.models.Model]]",
    key: str,
    url: str,
    settings: "ProviderSettings",
) -> Client:
    import httpx2
    from pydantic_ai.models import create_async_httpx2_client

    from khala.models.pydantic_ai import http_responses
    from khala.models.pydantic_ai.model import ProviderModel

    timeout = httpx2.Timeout(settings.read_timeout, connect=settings.connect_timeout, pool=settings.connect_timeout)
    limits = httpx2.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_IDLE, keepalive_expiry=IDLE)
    http = create_async_httpx2_client(timeout=timeout, limits=limits)
    http.event_hooks["response"].append(http_responses.note)
    made = make(http, key, url)
    return Client(lambda ref: ProviderModel(made(ref.name), ref), http.aclose)


def _anthropic(http: "httpx2.AsyncClient", key: str, url: str) -> "Callable[[str], pydantic_ai.models.Model]":
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    sdk = AsyncAnthropic(api_key=key, base_url=url, max_retries=0, timeout=http.timeout, http_client=http)
    return lambda name: AnthropicModel(name, provider=AnthropicProvider(anthropic_client=sdk))


def _google(http: "httpx2.AsyncClient", key: str, url: str) -> "Callable[[str], pydantic_ai.models.Model]":
    from google.genai.client import Client as Sdk
    from google.genai.types import HttpOptions
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    from khala.models.pydantic_ai import http_responses

    http.event_hooks["response"].append(http_responses.mend)
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
