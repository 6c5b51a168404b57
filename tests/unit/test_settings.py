"""Settings: every variable is read, has a safe default, and an unusable value is an error that names the variable."""

import os
from ipaddress import ip_network
from operator import attrgetter
from pathlib import Path

import pytest

from infra import configuration
from khala.domain.flush_policy import FlushPolicy
from khala.domain.repository_hosts import PUBLIC_HOSTS
from khala.live.nats_url import NatsServers
from khala.models.model_names import ModelRef
from khala.settings import SettingError, definitions, from_environment, load, runs, server
from khala.settings.process import default_home
from khala.tools.tool_registry import ToolRegistryOptions
from tests.support.server import ROOT


def test_a_direct_url_needs_the_pooled_url() -> None:
    way = {"DATABASE_URL": "postgres://pooler/d", "DATABASE_DIRECT_URL": "postgres://h/d"}
    assert from_environment(way).database.direct_url == "postgres://h/d"
    with pytest.raises(SettingError, match="DATABASE_DIRECT_URL"):
        from_environment(way | {"DATABASE_URL": ""})


def test_only_given_settings_replace_those_that_the_embedded_postgres_chooses_by_memory() -> None:
    assert from_environment({}).database.embedded_parameters == {}
    given = {"KHALA_PG_SHARED_BUFFERS_MB": "256", "KHALA_PG_MAX_WAL_MB": "2048"}
    found = from_environment(given).database.embedded_parameters
    assert found == {"shared_buffers": "256MB", "max_wal_size": "2048MB"}


@pytest.mark.parametrize(
    ("env", "key", "url"),
    [
        ({"OPENAI_API_KEY": "chat"}, "chat", None),
        ({"OPENAI_API_KEY": "chat", "OPENAI_BASE_URL": "http://c/v1"}, "chat", "http://c/v1"),
        ({"OPENAI_API_KEY": "chat", "KHALA_EMBEDDINGS_KEY": "own"}, "own", None),
        ({"OPENAI_API_KEY": "chat", "KHALA_EMBEDDINGS_URL": "http://e/v1"}, None, "http://e/v1"),
        ({"KHALA_EMBEDDINGS_URL": "http://e/v1", "KHALA_EMBEDDINGS_KEY": "own"}, "own", "http://e/v1"),
        ({}, None, None),
    ],
)
def test_the_key_of_chat_models_is_not_sent_to_another_embedding_server(
    env: dict[str, str], key: str | None, url: str | None
) -> None:
    found = from_environment({"KHALA_EMBEDDINGS": "openai:near"} | env).embedding_access
    assert (found.key, found.url) == (key, url)


def test_an_unusable_embedding_model_is_an_error_with_its_variable() -> None:
    with pytest.raises(SettingError, match="KHALA_EMBEDDINGS must be openai:NAME"):
        from_environment({"KHALA_EMBEDDINGS": "word2vec"})


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    found = from_environment({})
    assert (found.server.host, found.server.port, found.database.url) == ("127.0.0.1", 8000, None)
    assert found.runs.flush == FlushPolicy(milliseconds=350, chars=1200, parts=32)
    assert (found.limits.runs_per_owner, found.limits.queue_limit) == (20, 1000)
    assert found.model_chain == (ModelRef("demo", "demo"),)
    assert (found.models.allowed_models, found.models.store_reasoning) == ((), False)
    trusted = (found.server.origins, found.server.public_url, found.server.trusted_proxies)
    assert trusted == ((), None, ()), "no origin or proxy is trusted by default"
    assert (found.limits.limit_loopback_networks, found.limits.limit_loopback_requests) == (False, False)
    assert (found.runs.concurrency, found.models.context_tokens, found.database.pool_size) == (200, None, 16)
    assert (found.runs.lease_seconds, found.runs.grace_seconds) == (10.0, 20.0)
    assert found.server.keep_alive_seconds > 60, "load balancers keep a connection for 60 seconds, and must close first"
    assert found.runs.lease_seconds <= 15, "a dead executor's run is taken over within 15 seconds"
    assert (found.server.welcome, found.models.system_prompt) == (server.WELCOME, runs.SYSTEM_PROMPT)
    assert found.process.log_format in {"text", "json"}
    assert found.process.home.is_absolute()


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("HOST", "0.0.0.0", "server.host", "0.0.0.0"),
        ("HOST", " ::1 ", "server.host", "::1"),
        ("PORT", "0", "server.port", 0),
        ("PORT", "65535", "server.port", 65_535),
        ("PORT", " 80 ", "server.port", 80),
        ("PORT", "", "server.port", 8000),
        ("KHALA_HOME", "/srv/khala", "process.home", Path("/srv/khala")),
        ("KHALA_HOME", "~/khala", "process.home", Path.home() / "khala"),
        ("KHALA_HOME", "khala", "process.home", Path.cwd() / "khala"),
        ("DATABASE_URL", "postgres://u:p@h/d", "database.url", "postgres://u:p@h/d"),
        ("DATABASE_URL", "  ", "database.url", None),
        ("BLOB_URL", "s3://bucket/prefix", "blobs.url", "s3://bucket/prefix"),
        ("BLOB_URL", "", "blobs.url", None),
        ("KHALA_DRAIN_SECONDS", "2.5", "server.drain_seconds", 2.5),
        ("KHALA_KEEP_ALIVE_SECONDS", "620", "server.keep_alive_seconds", 620),
        ("KHALA_WAKE_URL", "nats://h", "database.wake_url", NatsServers(servers=("nats://h:4222",))),
        (
            "KHALA_WAKE_URL",
            "nats://t%3a@[::1]:1/p",
            "database.wake_url",
            NatsServers(servers=("nats://[::1]:1",), prefix="p", token="t:"),
        ),
        (
            "KHALA_WAKE_URL",
            "nats://n:p%40@h, nats://i:5",
            "database.wake_url",
            NatsServers(servers=("nats://h:4222", "nats://i:5"), name="n", password="p@"),
        ),
        ("KHALA_UPLOAD_MB", "1", "blobs.upload_mb", 1),
        ("KHALA_THREAD_BLOB_MB", "2", "blobs.thread_mb", 2),
        ("KHALA_MODEL", "demo", "models.model", ModelRef("demo", "demo")),
        ("KHALA_MODELS", "openai:gpt-*, demo,,", "models.allowed_models", ("openai:gpt-*", "demo")),
        ("KHALA_MODEL_TITLES", "demo = Demo; openai:a:b=A=B;", "models.titles", {"demo": "Demo", "openai:a:b": "A=B"}),
        ("KHALA_MODEL_DESCRIPTIONS", "openai:a=Fast, cheap", "models.descriptions", {"openai:a": "Fast, cheap"}),
        ("KHALA_FLUSH_MS", "10", "runs.flush_ms", 10),
        ("KHALA_FLUSH_CHARS", "1", "runs.flush_chars", 1),
        ("KHALA_FLUSH_PARTS", "1", "runs.flush_parts", 1),
        ("KHALA_RUNS_PER_OWNER", "1", "limits.runs_per_owner", 1),
        ("KHALA_QUEUE_LIMIT", "5", "limits.queue_limit", 5),
        ("KHALA_SYSTEM_PROMPT", "Be brief.", "models.system_prompt", "Be brief."),
        ("KHALA_SYSTEM_PROMPT", "", "models.system_prompt", runs.SYSTEM_PROMPT),
        ("KHALA_WELCOME", "En taro.", "server.welcome", "En taro."),
        ("KHALA_WELCOME", "", "server.welcome", ""),
        (
            "KHALA_ORIGINS",
            "https://a.example ,https://b.example",
            "server.origins",
            ("https://a.example", "https://b.example"),
        ),
        ("KHALA_HOSTS", "A.example, *.b.example", "server.hosts", ("a.example", "*.b.example")),
        ("KHALA_BODY_SECONDS", "5", "server.body_pause_seconds", 5.0),
        ("KHALA_PUBLIC_URL", "https://a.example/", "server.public_url", "https://a.example"),
        ("KHALA_TRUSTED_PROXIES", "10.0.0.0/8", "server.trusted_proxies", (ip_network("10.0.0.0/8"),)),
        ("KHALA_REGISTRATION", "closed", "accounts.registration", "closed"),
        ("KHALA_MCP_OAUTH", "required", "accounts.mcp_oauth", "required"),
        ("KHALA_PUBLIC_THREADS", "1", "server.public_threads", True),
        ("KHALA_ANON_DAYS", "0.5", "accounts.anon_days", 0.5),
        ("KHALA_CONCURRENCY", "1", "runs.concurrency", 1),
        ("KHALA_CONTEXT_TOKENS", "500", "models.context_tokens", 500),
        ("KHALA_LEASE_SECONDS", "1.5", "runs.lease_seconds", 1.5),
        ("KHALA_GRACE_SECONDS", "0", "runs.grace_seconds", 0.0),
        ("KHALA_REASONING", "1", "models.store_reasoning", True),
        ("KHALA_POOL_SIZE", "4", "database.pool_size", 4),
        ("KHALA_PG_SHARED_BUFFERS_MB", "16", "database.shared_buffers_mb", 16),
        ("KHALA_PG_EFFECTIVE_CACHE_MB", "1000", "database.effective_cache_mb", 1000),
        ("KHALA_PG_MAINTENANCE_MB", "1", "database.maintenance_mb", 1),
        ("KHALA_PG_MAX_WAL_MB", "64", "database.max_wal_mb", 64),
        ("KHALA_PG_MAX_WAL_MB", "", "database.max_wal_mb", None),
        ("KHALA_WATCHDOG_SECONDS", "0", "process.watchdog_seconds", 0.0),
        ("KHALA_WATCHDOG_SECONDS", "1.5", "process.watchdog_seconds", 1.5),
        ("KHALA_ISOLATED_RUNS", "5", "runs.isolated", 5),
        ("KHALA_LOG", "json", "process.log_format", "json"),
        ("KHALA_LOG", "text", "process.log_format", "text"),
    ],
)
def test_a_variable_sets_its_field_and_no_other(name: str, value: str, field: str, expected: object) -> None:
    changed, default = from_environment({name: value}), from_environment({})
    assert attrgetter(field)(changed) == expected
    for other in {".".join(definition.path) for definition in definitions()} - {field}:
        if not other.startswith("providers."):
            assert attrgetter(other)(changed) == attrgetter(other)(default)
    assert changed.providers == default.providers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("DATABASE_URL", value) for value in ("mysql://u:secret@h/d", "localhost/secret", "secret")],
        *[("KHALA_WAKE_URL", value) for value in ("tls://u:secret@h", "secret", "nats://u:secret@", "nats://h:secret")],
        *[("KHALA_WAKE_URL", value) for value in ("nats://u:secret@[h", "nats://h/a/b", "nats://h,http://u:secret@h")],
        *[("KHALA_WAKE_URL", value) for value in ("nats://h?secret", "nats://secret\u2100@h")],
        *[("BLOB_URL", value) for value in ("https://u:secret@h/b", "s3://u:secret@b", "s3://", "/var/lib")],
        *[("KHALA_UPLOAD_MB", value) for value in ("0", "1025", "0.5")],
        ("KHALA_THREAD_BLOB_MB", "0"),
        *[("PORT", value) for value in ("-1", "65536", "http", "80.5", "nan", "inf", "0x50", "8000,8001", "1e400")],
        *[("KHALA_FLUSH_MS", value) for value in ("0", "9", "10001", "fast")],
        *[("KHALA_FLUSH_CHARS", value) for value in ("0", "100001")],
        *[("KHALA_FLUSH_PARTS", value) for value in ("0", "10001", "1.5")],
        *[("KHALA_RUNS_PER_OWNER", value) for value in ("0", "-5", "many")],
        *[("KHALA_QUEUE_LIMIT", value) for value in ("0", "many")],
        *[("KHALA_CONCURRENCY", value) for value in ("0", "10001")],
        ("KHALA_CONTEXT_TOKENS", "499"),
        *[("KHALA_LEASE_SECONDS", value) for value in ("0.9", "301", "nan", "-inf", "ten")],
        *[("KHALA_GRACE_SECONDS", value) for value in ("-0.1", "3601", "nan")],
        *[("KHALA_REASONING", value) for value in ("2", "yes", "true", "0.5")],
        *[("KHALA_POOL_SIZE", value) for value in ("3", "501")],
        *[("KHALA_PG_SHARED_BUFFERS_MB", value) for value in ("0", "15", "1000001", "1GB")],
        *[("KHALA_PG_EFFECTIVE_CACHE_MB", value) for value in ("0", "15", "1.5")],
        *[("KHALA_PG_MAINTENANCE_MB", value) for value in ("0", "many")],
        *[("KHALA_PG_MAX_WAL_MB", value) for value in ("0", "63")],
        *[("KHALA_BODY_SECONDS", value) for value in ("0", "601", "nan")],
        *[("KHALA_WATCHDOG_SECONDS", value) for value in ("0.5", "-1", "3601", "nan", "off")],
        *[("KHALA_ISOLATED_RUNS", value) for value in ("0", "65", "1.5")],
        *[("KHALA_LOG", value) for value in ("JSON", "yaml")],
        *[("KHALA_MODEL_TIMEOUT", value) for value in ("0", "-1", "nan", "soon")],
        *[("KHALA_MODEL", value) for value in ("gpt-6", "openai", "openai:", "other:model")],
        *[("KHALA_FALLBACK_MODELS", value) for value in ("gpt-6", "demo, openai:")],
        *[("KHALA_MODEL_TITLES", f"openai:a{value}") for value in ("", "=", "=a\nb", "=" + 61 * "x", "=A;gpt-6=B")],
        ("KHALA_MODEL_DESCRIPTIONS", "openai:a=" + 121 * "x"),
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_that_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingError) as refused:
        from_environment({name: value})
    assert name in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_of_the_wake_url_is_in_no_text_of_the_settings() -> None:
    found = from_environment({"KHALA_WAKE_URL": "nats://name:secret@h, nats://name:secret@i"}).database.wake_url
    assert found is not None
    assert found.password == "secret"
    assert f"{found}" == "nats://h:4222,nats://i:4222"
    assert "secret" not in f"{found!r} {[found]}"


def test_an_error_names_valid_values() -> None:
    with pytest.raises(SettingError, match=r"^PORT must be between 0 and 65535, not 70000\.$"):
        from_environment({"PORT": "70000"})
    with pytest.raises(SettingError, match=r"^KHALA_LOG must be one of text, json, not 'xml'\.$"):
        from_environment({"KHALA_LOG": "xml"})


@pytest.mark.parametrize(
    ("models", "requested", "allowed"),
    [
        ("", "demo", True),
        ("", "anthropic:primary", True),
        ("", "openai:second", True),
        ("", "openai:third", False),
        ("openai:third", "openai:third", True),
        ("openai:gpt-*", "openai:gpt-6", True),
        ("openai:gpt-*", "openai:o9", False),
        ("openai:*", "anthropic:any", False),
        ("*", "anything", True),
        ("", "", False),
        ("", "anthropic:primary ", False),
        ("", "*", False),
        ("openai:g.t", "openai:gpt", False),
    ],
)
def test_callers_may_use_the_configured_and_the_allowed_models(models: str, requested: str, allowed: bool) -> None:
    env = {"KHALA_MODEL": "anthropic:primary", "KHALA_FALLBACK_MODELS": "openai:second", "KHALA_MODELS": models}
    assert from_environment(env).allows_model(requested) is allowed


def test_home_is_the_systems_for_root_and_the_users_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_home() == "/var/lib/khala"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.platform", "linux")
    assert default_home() == "~/.local/share/khala"
    assert from_environment({"XDG_DATA_HOME": "/data"}).process.home == Path("/data/khala")
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_home() == "~/Library/Application Support/khala"


def test_settings_are_read_only_from_the_given_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "no number")
    assert from_environment({"PORT": "1"}).server.port == 1
    monkeypatch.setenv("PORT", "2")
    assert from_environment().server.port == 2


def test_all_tools_are_offered_by_default_and_the_operators_rules_are_read() -> None:
    assert from_environment({}).tools.options == ToolRegistryOptions()
    assert from_environment({"KHALA_TOOLS": ""}).tools.options.offered == ()
    found = from_environment({
        "KHALA_TOOLS": "read_*, grep", "KHALA_TOOLS_ASK": "fetch_url", "KHALA_TOOLS_DENY": "delete_*",
        "KHALA_FETCH_ALLOW": "10.0.0.0/8, ::1",
        "KHALA_REPOSITORY_HOSTS": "gitea=https://Git.Example.org:8443/, gitlab=http://lab",
    }).tools.options  # fmt: skip
    assert found.offered == ("read_*", "grep")
    assert [(rule.pattern, rule.action) for rule in found.rules] == [("fetch_url", "ask"), ("delete_*", "deny")]
    assert [str(network) for network in found.fetch_allow] == ["10.0.0.0/8", "::1/128"]
    assert found.repository_hosts[: len(PUBLIC_HOSTS)] == PUBLIC_HOSTS
    assert [(host.kind, host.origin) for host in found.repository_hosts[len(PUBLIC_HOSTS) :]] == [
        ("gitea", "https://git.example.org:8443"), ("gitlab", "http://lab"),
    ]  # fmt: skip
    for name, value in (
        ("KHALA_FETCH_ALLOW", "everywhere"), ("KHALA_TOOLS_DENY", "x" * 201),
        ("KHALA_REPOSITORY_HOSTS", "https://git.example.org"), ("KHALA_REPOSITORY_HOSTS", "svn=https://a.example"),
        ("KHALA_REPOSITORY_HOSTS", "gitea=file:///etc"), ("KHALA_REPOSITORY_HOSTS", "gitea=https://a.example/b"),
        ("KHALA_REPOSITORY_HOSTS", "gitea=https://user:word@a.example"),
    ):  # fmt: skip
        with pytest.raises(SettingError, match=name):
            from_environment({name: value})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment without settings."""
    for definition in definitions():
        for name in definition.variables:
            # Set first, so that monkeypatch also removes what `load` adds.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_environment_wins_over_dotenv_and_dotenv_over_toml(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "khala.toml").write_text(
        'server = { port = 1, host = "::1", origins = ["https://a.example"] }\nprocess = { log_format = "json" }\n'
        "[limits]\nrun_usd = 0.3\nrequests_per_minute = 5\n"
        '[accounts]\nregistration = "closed"\n[providers.openai]\nkey = "sk-1"\n[models]\nstore_reasoning = true\n'
    )
    (folder / ".env").write_text('PORT=2\nKHALA_LOG="text"\nKHALA_REQUESTS_PER_MINUTE=6\nAWS_REGION=eu-1\n')
    monkeypatch.setenv("PORT", "3")
    monkeypatch.setenv("KHALA_REQUESTS_PER_MINUTE", "")
    found = load()
    assert (found.server.port, found.process.log_format, found.server.host) == (3, "text", "::1")
    assert found.limits.requests_per_minute == 600, "an empty variable stands for the default"
    assert str(found.limits.run_usd) == "0.3"
    assert (found.server.origins, found.accounts.registration) == (("https://a.example",), "closed")
    assert found.models.store_reasoning
    assert found.model_chain[0].provider == "openai"
    assert os.environ["AWS_REGION"] == "eu-1", "variables of libraries are exported, too"
    assert from_environment({}).server.port == 8000


def test_without_files_the_environment_alone_counts(folder: Path) -> None:
    assert load() == load(folder) == from_environment()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[server]\nport = 70000", r"^server.port in khala.toml must be between 0 and 65535, not 70000\.$"),
        ("[server]\nprot = 1", r"^khala.toml: there is no setting server.prot: did you mean server.port\?$"),
        ("[sever]\nport = 1", r"^khala.toml: there is no setting sever: did you mean server\?$"),
        ("[server]\nport = true", r"^server.port in khala.toml must be a number, not True\.$"),
        ("[server]\norigins = 1", r"^server.origins in khala.toml must be a list of texts, not 1\.$"),
        ("[server", r"^khala.toml cannot be read: .*"),
        ("server = 1", r"^server in khala.toml must be a table, not 1\.$"),
        ("[providers.acme]\nkey = 'k'", r"^providers in khala.toml has no provider 'acme': there are anthropic"),
        ("[providers.openai]\nkez = 'k'", r"^providers in khala.toml .*kez"),
        ("[providers]\nopenai = 'k'", r"^providers in khala.toml must have a table for openai"),
        ("[models]\nmodel = 'x'", r"^models.model in khala.toml: Unknown model 'x'"),
        ("[models.titles]\n'x:y' = 'X'", r"^models.titles in khala.toml: Unknown model 'x:y'"),
        ("[models.titles]\n'openai:y' = 1", r"^models.titles in khala.toml must have one line of 1 to 60 characters"),
        ("[models]\ntitles = 'openai:y'", r"^models.titles in khala.toml must have entries like openai:gpt-5-mini="),
        ("[models]\ntitles = 1", r"^models.titles in khala.toml must be a table of texts by model, not 1\.$"),
        ("[database]\nurl = 'mysql://u:secret@h/d'", r"^database.url in khala.toml must be like postgresql://"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_place(folder: Path, toml: str, message: str) -> None:
    (folder / "khala.toml").write_text(toml)
    with pytest.raises(SettingError, match=message) as refused:
        load()
    assert "secret" not in str(refused.value)


def test_a_mistake_in_a_variable_is_reported_with_its_name_also_with_a_file(folder: Path) -> None:
    (folder / "khala.toml").write_text("[server]\nport = 1")
    (folder / ".env").write_text("PORT=70000")
    with pytest.raises(SettingError, match=r"^PORT must be between 0 and 65535, not 70000\.$"):
        load()


def test_the_documentation_of_settings_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration.page()


def test_every_setting_has_one_place_and_distinct_variables() -> None:
    known = definitions()
    variables = [name for definition in known for name in definition.variables]
    assert len(variables) == len(set(variables))
    assert len({definition.path for definition in known}) == len(known)
    assert all(definition.description.endswith(".") for definition in known)


@pytest.mark.parametrize(
    "value",
    ["https://a.example/", "https://a.example/app", "a.example", "null", "https://A.example", "https://me@a.example"],
)
def test_an_origin_that_no_browser_sends_is_refused(value: str) -> None:
    with pytest.raises(SettingError, match="KHALA_ORIGINS must be origins like"):
        from_environment({"KHALA_ORIGINS": value})


def test_origins_of_apps_and_ports_and_any_origin_are_accepted() -> None:
    origins = ("http://localhost:3000", "https://[::1]:8443", "capacitor://localhost", "chrome-extension://abcdef", "*")
    assert from_environment({"KHALA_ORIGINS": ",".join(origins)}).server.origins == origins


def test_frame_ancestors_are_origins_and_nothing_else() -> None:
    found = from_environment({"KHALA_FRAME_ANCESTORS": "https://shop.example.com, https://*.example.org:8443"})
    assert found.server.frame_ancestors == ("https://shop.example.com", "https://*.example.org:8443")
    for value in ("*", "example.com", "https://a.example/path", "https://a.example; script-src *", "javascript://a"):
        with pytest.raises(SettingError, match="KHALA_FRAME_ANCESTORS"):
            from_environment({"KHALA_FRAME_ANCESTORS": value})
