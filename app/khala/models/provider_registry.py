"""The registry of model providers: names, environment variables, addresses, and a function that creates a client.

To add a provider that speaks OpenAI's protocol, add a `ProviderSpec` to `PROVIDERS`:

    ProviderSpec(
        name="acme",
        label="Acme",
        default_model="acme-large",
        url="https://api.acme.example/v1",
        key_variables=("ACME_API_KEY",),
        quirks=ChatQuirks(max_tokens_field="max_tokens"),
    )

Then `KHALA_MODEL=acme:NAME` calls it, a set `ACME_API_KEY` makes it a default, and the settings, their documentation,
error messages and `khala doctor` know it. For a provider of another protocol, write a function like `connect_google`
beside it that returns a `ProviderClient`, and name it in the spec as `connect`. Modules of a provider are imported
in that function only, because most processes use one provider.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from khala.models.openai.request_body import NO_QUIRKS, ChatQuirks
from khala.models.port import LanguageModel

if TYPE_CHECKING:
    from khala.models.model_names import ModelRef
    from khala.models.streaming.http_client import HttpClient

NO_KEY = "none"
"""The key for a server at another address if none is set."""
MAX_CONNECTIONS = 1000
"""Connections to each provider."""
IDLE_SECONDS = 5.0
"""Time for which an idle connection is kept open."""


class ProviderAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The key and address of a provider. Without a `url` it is the public one.

    `organization` and `project` select the account to bill if an OpenAI key belongs to several.
    """

    key: str | None = None
    url: str | None = None
    organization: str | None = None
    project: str | None = None

    def __repr__(self) -> str:
        """The access without the key, because settings appear in logs and tracebacks."""
        return f"ProviderAccess(key={'…' if self.key else None}, url={self.url!r})"


@dataclass(frozen=True, kw_only=True)
class ProviderConnection:
    """The parameters of a connection to a provider. Times are seconds."""

    url: str
    access: ProviderAccess
    quirks: ChatQuirks
    connect_timeout: float
    read_timeout: float

    @property
    def key(self) -> str:
        """The key, or an empty text."""
        return self.access.key or ""


@dataclass(frozen=True)
class ProviderClient:
    """A connected provider: `model` opens one of its models, `aclose` closes every connection."""

    model: "Callable[[ModelRef], LanguageModel]"
    aclose: Callable[[], Awaitable[None]]


def connect_openai(connection: ProviderConnection) -> ProviderClient:
    """Connect to OpenAI, or to a server that speaks its protocol."""
    from khala.models.openai.model import ChatModel, headers

    access = connection.access
    http = _http_client(connection, headers(connection.key, access.organization, access.project))
    quirks = connection.quirks
    if access.url is not None:  # The server may be any that speaks the protocol.
        quirks = msgspec.structs.replace(quirks, enforces_schemas=False)
    return ProviderClient(lambda ref: ChatModel(http, ref, quirks), http.aclose)


def connect_anthropic(connection: ProviderConnection) -> ProviderClient:
    """Connect to Anthropic."""
    from khala.models.anthropic.model import MessagesModel, headers

    http = _http_client(connection, headers(connection.key))
    return ProviderClient(lambda ref: MessagesModel(http, ref), http.aclose)


def connect_google(connection: ProviderConnection) -> ProviderClient:
    """Connect to Gemini."""
    from khala.models.google.model import GeminiModel, headers

    http = _http_client(connection, headers(connection.key))
    return ProviderClient(lambda ref: GeminiModel(http, ref), http.aclose)


def _http_client(connection: ProviderConnection, headers: Iterable[tuple[str, str]]) -> "HttpClient":
    from khala.models.streaming.http_client import HttpClient

    return HttpClient(
        connection.url,
        dict(headers),
        connect_timeout=connection.connect_timeout,
        read_timeout=connection.read_timeout,
        max_connections=MAX_CONNECTIONS,
        idle_seconds=IDLE_SECONDS,
    )


@dataclass(frozen=True, kw_only=True)
class ProviderSpec:
    """A provider of models. Its environment variables are those that the provider's own clients read."""

    name: str
    """The prefix of model names, such as `openai` in `openai:gpt-5-mini`."""
    label: str
    """The display name."""
    default_model: str
    """The model to use if a key is set and no model is named; also the example in error messages."""
    url: str
    """The public address."""
    key_variables: tuple[str, ...]
    """Environment variables of the key. The first one that is set is used."""
    url_variable: str | None = None
    organization_variable: str | None = None
    project_variable: str | None = None
    key_optional: bool = False
    """A server at another address needs no key."""
    quirks: ChatQuirks = NO_QUIRKS
    """How the server deviates from OpenAI's protocol."""
    connect: Callable[[ProviderConnection], ProviderClient] = connect_openai
    price_list: str | None = None
    """The provider's id in the price data of genai-prices, if it differs from the name."""

    @property
    def variables(self) -> dict[str, tuple[str, ...]]:
        """The environment variables of each field of `ProviderAccess`."""
        single = {
            "url": self.url_variable,
            "organization": self.organization_variable,
            "project": self.project_variable,
        }
        return {"key": self.key_variables, **{field: (name,) for field, name in single.items() if name}}


def _by_name(specs: Iterable[ProviderSpec]) -> dict[str, ProviderSpec]:
    return {spec.name: spec for spec in specs}


PROVIDERS: dict[str, ProviderSpec] = _by_name([
    ProviderSpec(
        name="anthropic",
        label="Anthropic",
        default_model="claude-sonnet-5-5",
        url="https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY",),
        url_variable="ANTHROPIC_BASE_URL",
        connect=connect_anthropic,
    ),
    ProviderSpec(
        name="openai",
        label="OpenAI",
        default_model="gpt-6.1-terra",
        url="https://api.openai.com/v1",
        key_variables=("OPENAI_API_KEY",),
        url_variable="OPENAI_BASE_URL",
        organization_variable="OPENAI_ORG_ID",
        project_variable="OPENAI_PROJECT_ID",
        key_optional=True,
    ),
    ProviderSpec(
        name="google",
        label="Google",
        default_model="gemini-3.8-flash",
        url="https://generativelanguage.googleapis.com",
        key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        url_variable="GOOGLE_GEMINI_BASE_URL",
        connect=connect_google,
    ),
])  # fmt: skip
"""All providers. If several have a key and no model is named, the first one is used."""


def label(provider: str) -> str:
    """The provider's display name."""
    spec = PROVIDERS.get(provider)
    return spec.label if spec else provider.capitalize()


def price_list(provider: str) -> str:
    """The provider's id in the price data."""
    spec = PROVIDERS.get(provider)
    return spec.price_list or spec.name if spec else provider
