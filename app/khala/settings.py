"""Settings: read from the environment once, by the composition root; everyone else receives what they need."""

import os
import sys
from collections.abc import Mapping
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from khala.api.http.request_origin import Contains, Origins, networks
from khala.blobs import store_url as blob_settings
from khala.domain import allowed_hosts as hosts
from khala.domain import budgets
from khala.domain.allowed_hosts import AllowedHosts
from khala.domain.budgets import DAY_SECONDS, HOUR_SECONDS, BudgetLimit
from khala.domain.flush_policy import FlushPolicy
from khala.domain.tools import ToolRule
from khala.identity.oidc import OidcSettings
from khala.live import nats_url
from khala.live.nats_url import WakeUrl
from khala.models import model_names
from khala.models.model_names import ModelRef
from khala.models.providers import ProviderSettings
from khala.store.blobs.blobs import StorageQuota
from khala.store.threads.sends import Limits
from khala.tools import ssrf_guard
from khala.tools.mcp import McpConfig, McpConfigError
from khala.tools.tool_registry import ToolRegistryOptions

WELCOME = "Hi! Ask me anything. Your conversation is kept, even if you close this page."
NETWORK_LIMITS = (
    "KHALA_ANON_RUNS_PER_HOUR", "KHALA_ANON_USD_PER_DAY", "KHALA_NETWORK_RUNS_PER_HOUR", "KHALA_NETWORK_USD_PER_DAY",
)  # fmt: skip
"""Limits that, where an operator has set one, go for callers on this machine, too."""
LONGEST_PATTERN = 200
INNER_POOL = 10
"""Connections that the writer, the executor and the feed have for themselves."""
ISOLATED_POOL = 4
"""Connections of a process that executes a single run."""
MIN_WATCHDOG_SECONDS = 1.0
SYSTEM = "You are a helpful assistant. Answer in Markdown, as briefly as the question allows."


class BadSetting(ValueError):
    """A setting that can't be used; the message names it and says what it should be."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an operator can choose. Each field bears the name of its environment variable."""

    host: str
    port: int
    home: Path
    database_url: str | None
    database_direct_url: str | None
    wake_url: WakeUrl | None
    blob_url: str | None
    most_upload: int
    room: StorageQuota
    tools: ToolRegistryOptions
    mcp: McpConfig
    models: tuple[ModelRef, ...]
    allowed_models: tuple[str, ...]
    providers: ProviderSettings
    flush: FlushPolicy
    limits: Limits
    budgets: budgets.BudgetPolicy
    system: str
    welcome: str
    origins: Origins
    hosts: tuple[str, ...]
    body_pause: float
    registration: bool
    public_threads: bool
    requests_per_minute: int
    oidc: OidcSettings | None
    anon_days: float
    count_loopback_requests: bool
    concurrency: int
    context_tokens: int
    lease: float
    grace: float
    drain: float
    keep_alive: int
    cooldown: float
    approval_hours: float
    detail_minutes: float
    reasoning: bool
    pool_size: int
    watchdog: float
    isolated: int
    log_format: str
    metrics: tuple[str, int] | None
    traces: bool

    @property
    def named_models(self) -> tuple[str, ...]:
        """The models that callers may ask for, as far as they can be listed: not those that patterns stand for."""
        whole = (name for name in self.allowed_models if not name.endswith("*"))
        return tuple(dict.fromkeys((*map(str, self.models), *whole, "demo")))

    @property
    def connections(self) -> int:
        """The most connections to the database that one process takes: its two pools, the one that listens, and those
        of the processes that it starts for single runs.
        """  # noqa: D205
        return self.pool_size + INNER_POOL + 1 + self.isolated * ISOLATED_POOL

    @property
    def allowed_hosts(self) -> AllowedHosts:
        """The hosts that the server answers to."""
        return hosts.choose_hosts(self.hosts, self.origins.public_url, listening=self.host)

    def allows(self, model: str) -> bool:
        """Whether callers may ask for this model: the configured ones, the demo, and what `KHALA_MODELS` names."""
        named = {str(ref) for ref in self.models} | {"demo"}
        return model in named or any(_matches(model, pattern) for pattern in self.allowed_models)


def from_environment(env: Mapping[str, str] = os.environ) -> Settings:
    """All settings. Raises `BadSetting`."""
    read = _Reader(env)
    home = Path(read.text("KHALA_HOME", "") or default_home(env)).expanduser().absolute()
    try:
        providers = ProviderSettings.from_environment(env)
    except ValueError as error:
        raise BadSetting(str(error)) from error
    return Settings(
        host=read.text("HOST", "127.0.0.1"),
        port=read.whole("PORT", 8000, least=0, most=65535),
        home=home,
        database_url=read.postgres("DATABASE_URL"),
        database_direct_url=_direct(read),
        wake_url=read.nats("KHALA_WAKE_URL"),
        blob_url=read.bucket("BLOB_URL"),
        most_upload=read.whole("KHALA_UPLOAD_MB", 20, least=1, most=1024) << 20,
        room=StorageQuota(
            thread=read.whole("KHALA_THREAD_BLOB_MB", 1024, least=1, most=1_000_000) << 20,
            guest=read.whole("KHALA_GUEST_BLOB_MB", 64, least=1, most=1_000_000) << 20,
            guests_a_day=read.whole("KHALA_GUESTS_BLOB_MB_PER_DAY", 10_240, least=0, most=9_000_000) << 20,
        ),
        tools=_tools(read),
        mcp=_mcp(read, home, env),
        models=_models(env),
        allowed_models=read.words("KHALA_MODELS"),
        providers=providers,
        flush=FlushPolicy(
            milliseconds=read.whole("KHALA_FLUSH_MS", 350, least=10, most=10_000),
            chars=read.whole("KHALA_FLUSH_CHARS", 1200, least=1, most=100_000),
            parts=read.whole("KHALA_FLUSH_PARTS", 32, least=1, most=10_000),
        ),
        limits=Limits(
            per_owner=read.whole("KHALA_RUNS_PER_OWNER", 20, least=1),
            waiting=read.whole("KHALA_QUEUE_LIMIT", 1000, least=1),
        ),
        budgets=_budgets(read),
        system=read.text("KHALA_SYSTEM_PROMPT", SYSTEM),
        welcome=env.get("KHALA_WELCOME", WELCOME),
        origins=Origins(
            allowed=read.words("KHALA_ORIGINS"),
            public_url=read.url("KHALA_PUBLIC_URL"),
            proxies=read.networks("KHALA_TRUSTED_PROXIES"),
            count_loopback=any(env.get(name, "").strip().strip("0.") for name in NETWORK_LIMITS),
        ),
        hosts=read.hosts("KHALA_HOSTS"),
        body_pause=read.number("KHALA_BODY_SECONDS", 30.0, least=0.1, most=600.0),
        registration=read.one_of("KHALA_REGISTRATION", "open", "open", "closed") == "open",
        public_threads=read.whole("KHALA_PUBLIC_THREADS", 0, least=0, most=1) == 1,
        requests_per_minute=read.whole("KHALA_REQUESTS_PER_MINUTE", 600, least=0),
        count_loopback_requests=bool(read.text("KHALA_REQUESTS_PER_MINUTE", "")),
        oidc=_oidc(read),
        anon_days=read.number("KHALA_ANON_DAYS", 7.0, least=0.0, most=3650.0),
        concurrency=read.whole("KHALA_CONCURRENCY", 200, least=1, most=10_000),
        context_tokens=read.whole("KHALA_CONTEXT_TOKENS", 32_000, least=500),
        lease=read.number("KHALA_LEASE_SECONDS", 10.0, least=1.0, most=300.0),
        grace=read.number("KHALA_GRACE_SECONDS", 20.0, least=0.0, most=3600.0),
        drain=read.number("KHALA_DRAIN_SECONDS", 0.0, least=0.0, most=600.0),
        keep_alive=read.whole("KHALA_KEEP_ALIVE_SECONDS", 75, least=1, most=3600),
        cooldown=read.number("KHALA_COOLDOWN_MS", 100.0, least=0.0, most=60_000.0) / 1000,
        approval_hours=read.number("KHALA_APPROVAL_HOURS", 24.0, least=0.0001, most=24.0 * 365),
        detail_minutes=read.number("KHALA_DETAIL_MINUTES", 60.0, least=0.001, most=24.0 * 60 * 365),
        reasoning=read.whole("KHALA_REASONING", 0, least=0, most=1) == 1,
        pool_size=read.whole("KHALA_POOL_SIZE", 16, least=4, most=500),
        watchdog=_watchdog(read),
        isolated=read.whole("KHALA_ISOLATED_RUNS", 2, least=1, most=64),
        log_format=read.one_of("KHALA_LOG", "text" if sys.stderr.isatty() else "json", "text", "json"),
        metrics=read.address("KHALA_METRICS"),
        traces=_traces(read),
    )


def _watchdog(read: "_Reader") -> float:
    seconds = read.number("KHALA_WATCHDOG_SECONDS", 30.0, least=0, most=3600)
    if 0 < seconds < MIN_WATCHDOG_SECONDS:
        raise BadSetting(f"KHALA_WATCHDOG_SECONDS must be 0 or at least {MIN_WATCHDOG_SECONDS:g}, not {seconds:g}.")
    return seconds


def _direct(read: "_Reader") -> str | None:
    direct = read.postgres("DATABASE_DIRECT_URL")
    if direct and not read.postgres("DATABASE_URL"):
        raise BadSetting("DATABASE_DIRECT_URL goes with a DATABASE_URL that leads to a pooler.")
    return direct


def _budgets(read: "_Reader") -> budgets.BudgetPolicy:
    """The limits on use; what is set to 0 is off."""
    runs = read.amount("KHALA_ANON_RUNS_PER_HOUR", 200, whole=True)
    usd = read.amount("KHALA_ANON_USD_PER_DAY", "0.50")
    limits = [
        BudgetLimit(scope="key", measure="runs", most=runs, window=HOUR_SECONDS),
        BudgetLimit(scope="key", measure="usd", most=usd, window=DAY_SECONDS),
        _tokens(read, "key", "KHALA_ANON_TOKENS_PER_DAY", 2_000_000),
        _runs(read, "network", "KHALA_NETWORK_RUNS_PER_HOUR", 5 * runs),
        _usd(read, "network", "KHALA_NETWORK_USD_PER_DAY", 5 * usd),
        _usd(read, "anonymous", "KHALA_ANON_TOTAL_USD_PER_DAY", 20),
        _usd(read, "accounts", "KHALA_USER_TOTAL_USD_PER_DAY", 100),
        _runs(read, "user", "KHALA_USER_RUNS_PER_HOUR", 300),
        _usd(read, "user", "KHALA_USER_USD_PER_DAY", 10),
        _tokens(read, "user", "KHALA_USER_TOKENS_PER_DAY", 0),
        _usd(read, "thread", "KHALA_THREAD_USD_PER_DAY", 0),
        BudgetLimit(scope="run", measure="usd", most=read.amount("KHALA_RUN_USD", 1)),
        BudgetLimit(scope="run", measure="tokens", most=read.amount("KHALA_RUN_TOKENS", 0, whole=True)),
        BudgetLimit(scope="run", measure="seconds", most=read.amount("KHALA_RUN_SECONDS", 900)),
    ]
    return budgets.BudgetPolicy(limits=tuple(limit for limit in limits if limit.most))


def _runs(read: "_Reader", scope: budgets.BudgetScope, name: str, default: Decimal | int) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="runs", most=read.amount(name, default, whole=True), window=HOUR_SECONDS)


def _tokens(read: "_Reader", scope: budgets.BudgetScope, name: str, default: int) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="tokens", most=read.amount(name, default, whole=True), window=DAY_SECONDS)


def _usd(read: "_Reader", scope: budgets.BudgetScope, name: str, default: Decimal | int) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="usd", most=read.amount(name, default), window=DAY_SECONDS)


def _tools(read: "_Reader") -> ToolRegistryOptions:
    """Which tools there are, and what the operator says of calls. An empty KHALA_TOOLS offers none."""
    asked = [ToolRule(pattern=pattern, action="ask") for pattern in read.patterns("KHALA_TOOLS_ASK", "")]
    denied = [ToolRule(pattern=pattern, action="deny") for pattern in read.patterns("KHALA_TOOLS_DENY", "")]
    try:
        allow = ssrf_guard.networks(read.words("KHALA_FETCH_ALLOW"))
    except ValueError as error:
        raise BadSetting(f"KHALA_FETCH_ALLOW must be addresses and networks like 10.0.0.0/8: {error}.") from error
    return ToolRegistryOptions(offered=read.patterns("KHALA_TOOLS", "*"), rules=(*asked, *denied), fetch_allow=allow)


def _mcp(read: "_Reader", home: Path, env: Mapping[str, str]) -> McpConfig:
    """The MCP servers and groups of the file that is named, or of `mcp.json` at home if there is one."""
    given, usual = read.text("KHALA_MCP_CONFIG", ""), home / "mcp.json"
    path = Path(given).expanduser().absolute() if given else usual if usual.is_file() else None
    try:
        return McpConfig.read(path, env)
    except McpConfigError as error:
        raise BadSetting(f"KHALA_MCP_CONFIG: {error}") from error


def _oidc(read: "_Reader") -> OidcSettings | None:
    # As it stands: an issuer with a slash at its end is another one than without.
    issuer = read.text("KHALA_OIDC_ISSUER", "")
    if not read.url("KHALA_OIDC_ISSUER"):
        return None
    client_id = read.text("KHALA_OIDC_CLIENT_ID", "")
    if not client_id:
        raise BadSetting("KHALA_OIDC_ISSUER needs KHALA_OIDC_CLIENT_ID, too.")
    return OidcSettings(
        issuer=issuer,
        client_id=client_id,
        client_secret=read.text("KHALA_OIDC_CLIENT_SECRET", "") or None,
        scopes=read.text("KHALA_OIDC_SCOPES", "openid email profile"),
        audience=read.text("KHALA_OIDC_AUDIENCE", "") or None,
        name=read.text("KHALA_OIDC_NAME", urlsplit(issuer).netloc),
    )


def _traces(read: "_Reader") -> bool:
    """Whether OpenTelemetry's own variables say where traces go; the rest of them is read by its library."""
    where = read.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", read.text("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    off = read.text("OTEL_SDK_DISABLED", "").lower() == "true" or read.text("OTEL_TRACES_EXPORTER", "otlp") == "none"
    if not where or off:
        return False
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        read.one_of(name, "http/protobuf", "http/protobuf")
    return True


def _models(env: Mapping[str, str]) -> tuple[ModelRef, ...]:
    name = "KHALA_MODEL"
    try:
        model_names.default(env)
        name = "KHALA_FALLBACK_MODELS"
        return model_names.chain(env)
    except ValueError as error:
        raise BadSetting(f"{name}: {error}") from error


def default_home(env: Mapping[str, str]) -> str:
    """Where data lives if nobody says: the user's data directory, or for root the system's."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return "/var/lib/khala"
    if sys.platform == "darwin":
        return "~/Library/Application Support/khala"
    return env.get("XDG_DATA_HOME", "~/.local/share") + "/khala"


def _matches(model: str, pattern: str) -> bool:
    return model == pattern or (pattern.endswith("*") and model.startswith(pattern[:-1]))


class _Reader:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str) -> str:
        return self._env.get(name, "").strip() or default

    def postgres(self, name: str) -> str | None:
        given = self.text(name, "")
        if given and urlsplit(given).scheme.partition("+")[0] not in ("postgres", "postgresql"):
            # Not repeated here: it may hold a password.
            raise BadSetting(f"{name} must be like postgresql://user:password@host:5432/database.")
        return given or None

    def bucket(self, name: str) -> str | None:
        given = self.text(name, "")
        try:
            return blob_settings.validated_store_url(given) if given else None
        except ValueError as error:
            raise BadSetting(f"{name} {error}.") from error

    def nats(self, name: str) -> WakeUrl | None:
        given = self.text(name, "")
        if given and find_spec("nats") is None:
            raise BadSetting(f"{name} needs nats-py, which comes with khala[nats].")
        try:
            return nats_url.parsed(given) if given else None
        except ValueError as error:
            # Not repeated here: it may hold a password.
            raise BadSetting(f"{name} {error}.") from error

    def url(self, name: str) -> str | None:
        given = self.text(name, "").rstrip("/")
        split = urlsplit(given)
        if given and (split.scheme not in ("http", "https") or not split.netloc or split.query or split.fragment):
            raise BadSetting(f"{name} must be like https://chat.example.com, not {given!r}.")
        return given or None

    def address(self, name: str) -> tuple[str, int] | None:
        given = self.text(name, "")
        host, _, port = given.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if given and not (host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise BadSetting(f"{name} must be like 127.0.0.1:9464, not {given!r}.")
        return (host, int(port)) if given else None

    def networks(self, name: str) -> tuple[Contains, ...]:
        try:
            return networks(self.words(name))
        except ValueError as error:
            raise BadSetting(f"{name} must be addresses and networks like 10.0.0.0/8: {error}.") from error

    def hosts(self, name: str) -> tuple[str, ...]:
        try:
            return tuple(map(hosts.validated_host, self.words(name)))
        except ValueError as error:
            raise BadSetting(f"{name} must be names like chat.example.com or *.example.com: {error}.") from error

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in self._env.get(name, "").split(",") if word.strip())

    def patterns(self, name: str, default: str) -> tuple[str, ...]:
        """Patterns of tools' names. What is set to nothing is none."""
        found = tuple(word.strip() for word in self._env.get(name, default).split(",") if word.strip())
        if any(len(word) > LONGEST_PATTERN for word in found):
            raise BadSetting(f"{name} has a pattern of more than {LONGEST_PATTERN} characters.")
        return found

    def whole(self, name: str, default: int, *, least: int, most: int = 1_000_000_000) -> int:
        number = self.number(name, default, least=least, most=most)
        if number != int(number):
            raise BadSetting(f"{name} must be a whole number.")
        return int(number)

    def amount(self, name: str, default: Decimal | int | str, *, whole: bool = False) -> Decimal:
        """At least 0, and as exact as it is given: money isn't kept in binary fractions."""
        given = self._env.get(name, "").strip()
        number = self.number(name, float(default), least=0, most=1_000_000_000)
        if whole and number != int(number):
            raise BadSetting(f"{name} must be a whole number.")
        return Decimal(str(given or default).replace("_", ""))

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        given = self._env.get(name, "").strip()
        try:
            number = float(given) if given else default
        except ValueError as error:
            raise BadSetting(f"{name} must be a number, not {given!r}.") from error
        if not least <= number <= most:
            raise BadSetting(f"{name} must be between {least:g} and {most:g}, not {given}.")
        return number

    def one_of(self, name: str, default: str, *choices: str) -> str:
        given = self.text(name, default)
        if given not in choices:
            raise BadSetting(f"{name} must be one of {', '.join(choices)}, not {given!r}.")
        return given
