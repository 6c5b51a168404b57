"""Opens models of the registered providers, with one HTTP client per provider."""

from collections.abc import Mapping

import msgspec

from khala.models import model_names
from khala.models.demo.model import DemoModel
from khala.models.model_names import DEMO_NAME, BadModelError, ModelRef
from khala.models.port import LanguageModel
from khala.models.provider_registry import NO_KEY, PROVIDERS, ProviderAccess, ProviderClient, ProviderConnection


class ProviderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of calls to providers. Times are seconds."""

    access: Mapping[str, ProviderAccess] = {}
    """By the provider's name."""
    connect_timeout: float = 10.0
    read_timeout: float = 120.0
    """The longest time between two bytes of an answer, not the duration of the answer."""

    def connection(self, provider: str) -> ProviderConnection:
        """The parameters of a connection to the provider. Raises `BadModelError` if a key is missing."""
        spec, access = PROVIDERS[provider], self.access.get(provider, ProviderAccess())
        if not access.key:
            if not (spec.key_optional and access.url):
                raise BadModelError(f"No key for {provider} models: set {' or '.join(spec.key_variables)}.")
            access = msgspec.structs.replace(access, key=NO_KEY)
        return ProviderConnection(
            url=access.url or spec.url,
            access=access,
            quirks=spec.quirks,
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
        )


class Providers:
    """Opens models by name. All models of one provider share its HTTP client, until `aclose`."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._clients: dict[str, ProviderClient] = {}

    def open(self, ref: ModelRef | str) -> LanguageModel:
        """Return the model without sending anything. Raises `BadModelError`.

        The first model of a provider imports its modules, which takes some time: open models when the program starts.
        """
        model = model_names.parse(ref) if isinstance(ref, str) else ref
        if model.provider == DEMO_NAME:
            return DemoModel()
        return self._client(model.provider).model(model)

    def _client(self, provider: str) -> ProviderClient:
        if provider not in self._clients:
            connection = self._config.connection(provider)
            self._clients[provider] = PROVIDERS[provider].connect(connection)
        return self._clients[provider]

    async def aclose(self) -> None:
        """Close the HTTP clients. End all calls before: the errors of calls in progress are undefined."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()
