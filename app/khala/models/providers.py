"""The real providers: opens OpenAI-compatible, Anthropic and Google models over one HTTP client per provider."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from khala.models import model_names
from khala.models.demo.model import DemoModel
from khala.models.model_names import BadModel, ModelRef, Provider
from khala.models.port import Model

if TYPE_CHECKING:
    from khala.models.provider_clients import Client

Environment: TypeAlias = Mapping[str, str]

NO_KEY = "none"
"""What a server behind OPENAI_BASE_URL is told where no key is set: the client refuses to call without one."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Where a provider is and what opens it; None is the provider's public address.

    `organization` and `project` say who pays where an OpenAI key stands for several.
    """

    key: str | None = None
    url: str | None = None
    organization: str | None = None
    project: str | None = None

    def __repr__(self) -> str:
        """Without the key: settings end up in logs and tracebacks."""
        return f"Access(key={'…' if self.key else None}, url={self.url!r})"


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that calls to providers need to know. Times are seconds."""

    openai: Access = Access()
    anthropic: Access = Access()
    google: Access = Access()
    connect_timeout: float = 10.0
    read_timeout: float = 120.0
    """The longest silence between bytes of an answer, not the length of the answer."""

    @classmethod
    def from_environment(cls, env: Environment) -> "ProviderSettings":
        """Read the names which the providers' own clients read, and KHALA_MODEL_TIMEOUT (seconds of silence).

        Raises `ValueError` for a timeout that is no positive number.
        """
        return cls(
            openai=Access(
                key=_first(env, *model_names.KEYS["openai"]),
                url=_first(env, "OPENAI_BASE_URL"),
                organization=_first(env, "OPENAI_ORG_ID"),
                project=_first(env, "OPENAI_PROJECT_ID"),
            ),
            anthropic=Access(key=_first(env, *model_names.KEYS["anthropic"]), url=_first(env, "ANTHROPIC_BASE_URL")),
            google=Access(key=_first(env, *model_names.KEYS["google"]), url=_first(env, "GOOGLE_GEMINI_BASE_URL")),
            read_timeout=_seconds(env, "KHALA_MODEL_TIMEOUT", cls().read_timeout),
        )

    def access(self, provider: Provider) -> Access:
        """How to reach the provider. Raises `BadModel` where a key is missing."""
        found: Access = getattr(self, provider)
        if found.key:
            return found
        if provider == "openai" and found.url:
            return msgspec.structs.replace(found, key=NO_KEY)
        raise BadModel(f"No key for {provider} models: set {' or '.join(model_names.KEYS[provider])}.")


class Providers:
    """Opens models by reference. All models of one provider share its HTTP client, until `aclose`."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._clients: dict[Provider, Client] = {}

    def open(self, ref: ModelRef | str) -> Model:
        """The model, ready to be called; nothing is sent yet. Raises `BadModel`.

        A provider's first model imports its SDK, up to a second: open models when the program starts, not in a request.
        """
        found = model_names.parse(ref) if isinstance(ref, str) else ref
        if found.provider == "demo":
            return DemoModel()
        return self._client(found.provider).model(found)

    def _client(self, provider: Provider) -> "Client":
        if provider not in self._clients:
            access = self._settings.access(provider)  # first: a missing key should not cost the import
            from khala.models import provider_clients

            self._clients[provider] = provider_clients.connect(provider, access, self._settings)
        return self._clients[provider]

    async def aclose(self) -> None:
        """Close the HTTP clients. End all calls first: what those in progress would raise is undefined."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()


def _first(env: Environment, *names: str) -> str | None:
    return next((value for name in names if (value := env.get(name, "").strip())), None)


def _seconds(env: Environment, name: str, default: float) -> float:
    given = env.get(name, "").strip()
    try:
        seconds = float(given) if given else default
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{name} must be a positive number of seconds, not {given!r}.")
    return seconds
