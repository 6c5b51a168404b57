"""Settings of runs: models and prompts, execution, and the tools that models may call."""

from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BeforeValidator

from khala.domain.flush_policy import FlushPolicy
from khala.domain.repository_hosts import PUBLIC_HOSTS, RepositoryHost
from khala.domain.tools import ToolRule
from khala.models import model_names
from khala.models.model_names import ModelRef
from khala.models.provider_registry import PROVIDERS
from khala.settings.fields import (
    FilePath,
    Networks,
    Number,
    Patterns,
    SettingGroup,
    SwitchValue,
    TextValue,
    ValueKind,
    Whole,
    Words,
    read_words,
    setting,
)

if TYPE_CHECKING:
    from khala.tools.tool_registry import ToolRegistryOptions

MAX_MODEL_TITLE_CHARACTERS = 60
MAX_MODEL_DESCRIPTION_CHARACTERS = 120

SYSTEM_PROMPT = "You are a helpful assistant. Answer in Markdown, as briefly as the question allows."


def _model(value: object) -> ModelRef:
    return model_names.parse(str(value))


def _models(value: object) -> tuple[ModelRef, ...]:
    return model_names.parse_list(",".join(value) if isinstance(value, list) else str(value))


def _model_texts(value: object, max_characters: int) -> dict[str, str]:
    """Read a table of texts by model, or `provider:name=text` entries separated by semicolons."""
    table = value if isinstance(value, dict) else dict(map(_model_text, _entries(value)))
    texts = {str(model_names.parse(str(model))): text for model, text in table.items()}
    for model, text in texts.items():
        if not isinstance(text, str) or not 0 < len(text.strip()) <= max_characters or not text.isprintable():
            raise ValueError(f"must have one line of 1 to {max_characters} characters for {model}.")
    return {model: text.strip() for model, text in texts.items()}


def _entries(value: object) -> list[str]:
    if not isinstance(value, str):
        raise ValueError(f"must be a table of texts by model, not {value!r}.")  # noqa: TRY004  # as in other settings
    return [entry for entry in value.split(";") if entry.strip()]


def _model_text(entry: str) -> tuple[str, str]:
    model, separator, text = entry.partition("=")
    if not separator:
        raise ValueError(f"must have entries like openai:gpt-5-mini=GPT-5 mini, not {entry.strip()!r}.")
    return model.strip(), text


def _model_titles(value: object) -> dict[str, str]:
    return _model_texts(value, MAX_MODEL_TITLE_CHARACTERS)


def _model_descriptions(value: object) -> dict[str, str]:
    return _model_texts(value, MAX_MODEL_DESCRIPTION_CHARACTERS)


def _seconds_of_silence(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"must be a positive number of seconds, not {value!r}.")
    return seconds


def _repository_hosts(value: object) -> tuple[RepositoryHost, ...]:
    try:
        return tuple(RepositoryHost.parse(word) for word in read_words(value))
    except ValueError as error:
        raise ValueError(f"must be a list like gitea=https://git.example.org: an entry {error}.") from error


ModelName: TypeAlias = Annotated[ModelRef, BeforeValidator(_model), ValueKind("model")]
ModelList: TypeAlias = Annotated[tuple[ModelRef, ...], BeforeValidator(_models), ValueKind("list of models")]
ModelTitles: TypeAlias = Annotated[dict[str, str], BeforeValidator(_model_titles), ValueKind("texts by model")]
ModelDescriptions: TypeAlias = Annotated[
    dict[str, str], BeforeValidator(_model_descriptions), ValueKind("texts by model")
]
RepositoryHosts: TypeAlias = Annotated[
    tuple[RepositoryHost, ...], BeforeValidator(_repository_hosts), ValueKind("list of hosts")
]
Timeout: TypeAlias = Annotated[float, BeforeValidator(_seconds_of_silence), ValueKind("number")]


class ModelSettings(SettingGroup):
    """The models that answer, and what every prompt has."""

    model: ModelName | None = setting(
        "KHALA_MODEL",
        None,
        f"The model, as {', '.join(f'`{name}:NAME`' for name in PROVIDERS)} or `demo`.",
        shown_default="a current model of the first provider whose key is set, else `demo`",
    )
    fallback_models: ModelList = setting(
        "KHALA_FALLBACK_MODELS", (), "Models to call when the model before them fails, in order."
    )
    allowed_models: Words = setting(
        "KHALA_MODELS", (), "Further models that a sender may choose, as `openai:gpt-5*,…`."
    )
    titles: ModelTitles = setting(
        "KHALA_MODEL_TITLES",
        {},
        "What people read instead of the names of models, as `openai:gpt-5-mini=GPT-5 mini;…`; a table in "
        f"`khala.toml`. At most {MAX_MODEL_TITLE_CHARACTERS} characters each. Without a title, the page makes one from "
        "the name.",
        shown_default="none",
    )
    descriptions: ModelDescriptions = setting(
        "KHALA_MODEL_DESCRIPTIONS",
        {},
        "What models are good for, in one line each, as `openai:gpt-5-mini=Fast answers;…`; a table in `khala.toml`. "
        f"At most {MAX_MODEL_DESCRIPTION_CHARACTERS} characters each.",
        shown_default="none",
    )
    timeout_seconds: Timeout = setting(
        "KHALA_MODEL_TIMEOUT", 120.0, "A model call fails when the model sends nothing for this time.", unit="seconds"
    )
    system_prompt: TextValue = setting(
        "KHALA_SYSTEM_PROMPT", SYSTEM_PROMPT, "Instructions at the beginning of every prompt."
    )
    context_tokens: Whole | None = setting(
        "KHALA_CONTEXT_TOKENS",
        None,
        "Maximum size of a prompt, also for models with a larger window. A longer conversation is shortened, or "
        "refused if it may not be ([OpenAI-compatible API](openai-api.md)).",
        unit="tokens",
        minimum=500,
        maximum=1_000_000_000,
        shown_default="`32000`; for a conversation that may not be shortened, the window of the model, if it is known",
    )
    store_reasoning: SwitchValue = setting(
        "KHALA_REASONING", default=False, description="1 stores the model's reasoning, too."
    )


class RunSettings(SettingGroup):
    """The execution of runs."""

    app: Words = setting(
        "KHALA_APP",
        (),
        "Modules with agents and tools of your own, as `mypackage.agents`: [Python agents](how-to/python-agents.md). "
        "All processes import them when they start.",
    )
    flush_ms: Whole = setting(
        "KHALA_FLUSH_MS",
        350,
        "A run's text is written at the latest when its oldest part is this old.",
        unit="milliseconds",
        minimum=10,
        maximum=10_000,
    )
    flush_chars: Whole = setting(
        "KHALA_FLUSH_CHARS", 1200, "A run's text is written when it has this length.", unit="characters", minimum=1,
        maximum=100_000,
    )  # fmt: skip
    flush_parts: Whole = setting(
        "KHALA_FLUSH_PARTS", 32, "A run's text is written when it has this number of deltas.", minimum=1, maximum=10_000
    )
    concurrency: Whole = setting(
        "KHALA_CONCURRENCY", 200, "Runs that one process executes at once.", minimum=1, maximum=10_000
    )
    lease_seconds: Number = setting(
        "KHALA_LEASE_SECONDS",
        10.0,
        "Time after which another executor takes over the runs of a dead one.",
        unit="seconds",
        minimum=1,
        maximum=300,
    )
    grace_seconds: Number = setting(
        "KHALA_GRACE_SECONDS",
        20.0,
        "Time that runs have to end when their process is stopped; the others are handed over.",
        unit="seconds",
        minimum=0,
        maximum=3600,
    )
    isolated: Whole = setting(
        "KHALA_ISOLATED_RUNS",
        2,
        "Runs that one process executes at once in child processes, because two executors were lost while they "
        "executed them.",
        minimum=1,
        maximum=64,
    )
    worker_wait_seconds: Number = setting(
        "KHALA_WORKER_WAIT_SECONDS",
        300.0,
        "Time that a run of a remote agent waits for a worker; then it fails ([workers](how-to/workers.md)).",
        unit="seconds",
        minimum=1,
        maximum=7 * 86_400,
    )
    cooldown_ms: Number = setting(
        "KHALA_COOLDOWN_MS", 100.0, "Pause between two steps of a run.", unit="milliseconds", minimum=0, maximum=60_000
    )
    approval_hours: Number = setting(
        "KHALA_APPROVAL_HOURS",
        24.0,
        "Time that a tool call waits for an approval.",
        unit="hours",
        minimum=0.0001,
        maximum=24 * 365,
    )
    detail_minutes: Number = setting(
        "KHALA_DETAIL_MINUTES",
        60.0,
        "Lifetime of a token that reads the details of one task. A stream on autopilot sends such tokens.",
        unit="minutes",
        minimum=0.001,
        maximum=24 * 60 * 365,
    )

    @property
    def flush(self) -> FlushPolicy:
        """When a run's text is written."""
        return FlushPolicy(milliseconds=self.flush_ms, chars=self.flush_chars, parts=self.flush_parts)


class ToolSettings(SettingGroup):
    """The tools that models may call."""

    offered: Patterns = setting(
        "KHALA_TOOLS", ("*",), "Patterns of the tools that are offered; empty for none.", shown_default="`*`",
        blank_is_value=True,
    )  # fmt: skip
    ask: Patterns = setting(
        "KHALA_TOOLS_ASK", (), "Patterns of tools whose calls always wait for an approval, whatever users allow."
    )
    deny: Patterns = setting("KHALA_TOOLS_DENY", (), "Patterns of tools whose calls always fail, whatever users allow.")
    fetch_allow: Networks = setting(
        "KHALA_FETCH_ALLOW",
        (),
        "Networks beside the open internet that `fetch_url`, `load_repo`, webhooks and the authorization of connected "
        "services may reach, on any port, as `10.0.0.0/8`.",
    )
    repository_hosts: RepositoryHosts = setting(
        "KHALA_REPOSITORY_HOSTS",
        (),
        "Hosts beside github.com, gitlab.com, bitbucket.org, codeberg.org and gitea.com from which `load_repo` loads "
        "repositories, as `gitea=https://git.example.org`. The software is `github`, `gitlab`, `bitbucket` or `gitea`.",
    )
    mcp_config: FilePath | None = setting(
        "KHALA_MCP_CONFIG",
        None,
        "A JSON file with the MCP servers whose tools are used, and with groups of tools ([MCP](mcp.md)).",
        shown_default="`mcp.json` in `KHALA_HOME`, if it exists",
    )
    commands: FilePath | None = setting(
        "KHALA_COMMANDS",
        None,
        "A JSON file with the programs that may answer as agents ([command agents](how-to/command-agents.md)).",
        shown_default="`commands.json` in `KHALA_HOME`, if it exists",
    )

    @property
    def options(self) -> "ToolRegistryOptions":
        """The operator's rules for tools."""
        from khala.tools.tool_registry import ToolRegistryOptions

        asked = [ToolRule(pattern=pattern, action="ask") for pattern in self.ask]
        denied = [ToolRule(pattern=pattern, action="deny") for pattern in self.deny]
        networks: tuple[IPv4Network | IPv6Network, ...] = self.fetch_allow
        return ToolRegistryOptions(
            offered=self.offered,
            rules=(*asked, *denied),
            fetch_allow=networks,
            repository_hosts=(*PUBLIC_HOSTS, *self.repository_hosts),
        )
