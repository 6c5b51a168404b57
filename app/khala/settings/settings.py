"""All settings of a process, in groups by subject."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from khala.domain.budgets import BudgetPolicy
from khala.domain.secure_urls import is_secure
from khala.models import model_names
from khala.models.model_names import DEMO_NAME, ModelRef
from khala.models.provider_registry import PROVIDERS, ProviderAccess
from khala.models.providers import ProviderConfig
from khala.settings.accounts import AccountSettings
from khala.settings.embeddings import EmbeddingSettings
from khala.settings.fields import SettingDefinition, SettingGroup, read_table
from khala.settings.limits import LimitSettings
from khala.settings.memory import ExtractionSettings
from khala.settings.process import ProcessSettings, exports_traces
from khala.settings.push import PushSettings
from khala.settings.runs import ModelSettings, RunSettings, ToolSettings
from khala.settings.server import ServerSettings
from khala.settings.sources import EnvironmentSource
from khala.settings.storage import INNER_POOL_SIZE, ISOLATED_POOL_SIZE, BlobSettings, DatabaseSettings
from khala.settings.streams import StreamSettings
from khala.settings.titles import TitleSettings

if TYPE_CHECKING:
    from khala.settings.identity import IdentityConfig
    from khala.store.blobs.blobs import StorageQuota
    from khala.tools.commands import Command
    from khala.tools.mcp import McpConfig


class SettingLayers(NamedTuple):
    """The sources of settings: environment variables, and below them a TOML file if there is one."""

    environment: Mapping[str, str]
    toml_file: Path | None = None


def _provider_access(value: Any) -> dict[str, ProviderAccess]:
    """Read `{provider: {key: …, url: …}}`. Raises `ValueError`."""
    access = {}
    for provider, fields in read_table(value).items():
        if provider not in PROVIDERS:
            raise ValueError(f"has no provider {provider!r}: there are {', '.join(PROVIDERS)}.")
        if not isinstance(fields, dict):
            raise ValueError(f"must have a table for {provider}.")  # noqa: TRY004  # pydantic reports a ValueError
        given = {name: text for name, text in fields.items() if text not in (None, "")}
        try:
            access[provider] = msgspec.convert(given, ProviderAccess)
        except msgspec.ValidationError as error:
            raise ValueError(f"cannot be used: {provider}: {error}.") from error
    return access


class Settings(BaseSettings):
    """All settings. Each group is a table of `khala.toml`; each setting also has an environment variable."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    process: ProcessSettings = Field(default_factory=lambda: ProcessSettings.model_validate({}))
    server: ServerSettings = Field(default_factory=ServerSettings)
    database: DatabaseSettings = Field(default_factory=DatabaseSettings)
    blobs: BlobSettings = Field(default_factory=BlobSettings)
    models: ModelSettings = Field(default_factory=ModelSettings)
    providers: Annotated[dict[str, ProviderAccess], BeforeValidator(_provider_access)] = {}
    embeddings: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    memory: ExtractionSettings = Field(default_factory=ExtractionSettings)
    titles: TitleSettings = Field(default_factory=TitleSettings)
    runs: RunSettings = Field(default_factory=RunSettings)
    tools: ToolSettings = Field(default_factory=ToolSettings)
    accounts: AccountSettings = Field(default_factory=AccountSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    streams: StreamSettings = Field(default_factory=StreamSettings)
    push: PushSettings = Field(default_factory=PushSettings)
    _environment: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, layers: SettingLayers) -> None:
        """Read the settings. Raises `pydantic.ValidationError`; `reader.read` makes a message for people of it."""
        super().__init__(layers=layers)
        self._environment = layers.environment

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the library passes all of these
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources, the strongest first."""
        assert isinstance(init_settings, InitSettingsSource)
        layers: SettingLayers = init_settings.init_kwargs["layers"]
        environment = EnvironmentSource(settings_cls, layers.environment, definitions())
        if layers.toml_file is None:
            return (environment,)
        return environment, TomlConfigSettingsSource(settings_cls, toml_file=layers.toml_file)

    @property
    def max_connections(self) -> int:
        """Connections to the database that one process takes at most.

        They are those of its two pools, one that listens, and those of the child processes of single runs.
        """
        return self.database.pool_size + INNER_POOL_SIZE + 1 + self.runs.isolated * ISOLATED_POOL_SIZE

    @cached_property
    def model_chain(self) -> tuple[ModelRef, ...]:
        """The models to call, in order: the chosen or default one, then the fallbacks."""
        return model_names.chain(self.models.model, self.models.fallback_models, self.providers)

    @property
    def push_contact(self) -> str | None:
        """The address under which push services can reach the operator."""
        url = self.server.public_url
        return self.push.contact or (url if url is not None and url.startswith("https://") else None)

    @property
    def listed_models(self) -> tuple[str, ...]:
        """The models that callers may ask for, as far as they can be listed: those of patterns are left out."""
        whole = (name for name in self.models.allowed_models if not name.endswith("*"))
        return tuple(dict.fromkeys((*map(str, self.model_chain), *whole, DEMO_NAME)))

    def allows_model(self, model: str) -> bool:
        """Whether callers may ask for this model: a configured one, the demo, or one that `KHALA_MODELS` allows."""
        configured = {str(ref) for ref in self.model_chain} | {DEMO_NAME}
        return model in configured or any(_matches(model, pattern) for pattern in self.models.allowed_models)

    @property
    def writes_titles(self) -> bool:
        """Whether a model writes titles of threads that the default model answers in."""
        return self.titles.enabled and (self.titles.model is not None or self.model_chain[0].provider != DEMO_NAME)

    @property
    def provider_config(self) -> ProviderConfig:
        """The configuration of calls to providers."""
        return ProviderConfig(access=self.providers, read_timeout=self.models.timeout_seconds)

    @property
    def embedding_access(self) -> ProviderAccess:
        """The key and address of the embedding model's server."""
        return self.embeddings.access(self.providers.get("openai", ProviderAccess()))

    @model_validator(mode="after")
    def _check_audience(self) -> "Settings":
        if self.accounts.mcp_authorization_server and self.server.public_url is None:
            # Else a request could choose, by its Host header, for which server a token must be.
            raise ValueError("KHALA_MCP_AUTHORIZATION_SERVER needs KHALA_PUBLIC_URL: set that, too.")
        return self

    @cached_property
    def mcp(self) -> "McpConfig":
        """The MCP servers and groups of tools: of the file that is named, or of `mcp.json` in the data folder.

        Raises `khala.tools.config_files.ConfigFileError`.
        """
        from khala.tools.config_files import ConfigFileError
        from khala.tools.mcp import McpConfig

        usual = self.process.home / "mcp.json"
        path = self.tools.mcp_config or (usual if usual.is_file() else None)
        config = McpConfig.read(path, self._environment)
        per_account = next((server for server in config.servers.values() if server.is_per_account), None)
        if per_account is not None and not self.accounts.secret_keys:
            raise ConfigFileError(
                f"{path}: mcpServers.{per_account.name}.oauth.flow: authorization_code needs KHALA_SECRET_KEYS, which "
                f"encrypts tokens. `openssl rand -base64 32` prints a key."
            )
        if per_account is not None and self.server.public_url is not None and not is_secure(self.server.public_url):
            raise ConfigFileError(
                f"{path}: mcpServers.{per_account.name}.oauth.flow: authorization_code needs a KHALA_PUBLIC_URL with "
                f"https://, except for a loopback address: browsers return there with a code."
            )
        return config

    @cached_property
    def commands(self) -> "Mapping[str, Command]":
        """The command agents: of the file that is named, or of `commands.json` in the data folder.

        Raises `khala.tools.config_files.ConfigFileError`.
        """
        from khala.tools.commands import read_commands

        usual = self.process.home / "commands.json"
        path = self.tools.commands or (usual if usual.is_file() else None)
        return read_commands(path, self._environment)

    @cached_property
    def identity(self) -> "IdentityConfig":
        """The issuers of users' JWTs, and the plans of budgets. Raises `khala.tools.config_files.ConfigFileError`."""
        from khala.settings.identity import read_identity_config

        return read_identity_config(self.accounts.jwt, self._environment)

    @cached_property
    def budgets(self) -> BudgetPolicy:
        """The operator's budgets, with those of the plans."""
        policy = self.limits.budgets
        if self.accounts.jwt is None:
            return policy
        accounts = tuple(limit for limit in policy.limits if limit.scope == "user")
        plans, default = self.identity.limits(accounts), self.identity.default_plan
        return msgspec.structs.replace(policy, plans=plans, default_plan=default)

    @property
    def storage_quota(self) -> "StorageQuota":
        """Bytes that threads may store, with those of the plans."""
        quota = self.blobs.quota
        if self.accounts.jwt is None:
            return quota
        plans = self.identity.thread_bytes(quota.thread)
        return msgspec.structs.replace(quota, plans=plans, default_plan=self.identity.default_plan)

    @cached_property
    def traces(self) -> bool:
        """Whether traces are exported. Raises `ValueError`."""
        return exports_traces(self._environment)


def definitions() -> list[SettingDefinition]:
    """All settings, in order."""
    found: list[SettingDefinition] = []
    for group, field in Settings.model_fields.items():
        if group == "providers":
            found += _provider_definitions()
        else:
            assert isinstance(field.annotation, type)
            assert issubclass(field.annotation, SettingGroup)
            found += field.annotation.definitions(group)
    return found


PROVIDER_FIELDS = {
    "key": "API key of {provider}.",
    "url": "Address of {provider}, or of a server that speaks its protocol.",
    "organization": "Organization at {provider} that pays.",
    "project": "Project at {provider} that pays.",
}


def _provider_definitions() -> list[SettingDefinition]:
    return [
        SettingDefinition(
            path=("providers", provider, field),
            variables=variables,
            kind="URL" if field == "url" else "text",
            default=f"`{spec.url}`" if field == "url" else "none",
            description=PROVIDER_FIELDS[field].format(provider=spec.label),
        )
        for provider, spec in PROVIDERS.items()
        for field, variables in spec.variables.items()
    ]


def _matches(model: str, pattern: str) -> bool:
    return model == pattern or (pattern.endswith("*") and model.startswith(pattern[:-1]))
