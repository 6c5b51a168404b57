"""Settings: every variable is read, has a safe default, and when it can't be used the error names it."""

from pathlib import Path

import pytest

from khala import settings
from khala.api.http.request_origin import Origins, networks
from khala.domain.flush_policy import FlushPolicy
from khala.live.nats_url import WakeUrl
from khala.models.model_names import ModelRef
from khala.settings import BadSetting, Settings, from_environment
from khala.store.blobs.blobs import StorageQuota
from khala.store.threads.sends import Limits
from khala.tools.tool_registry import ToolRegistryOptions


def test_the_way_past_a_pooler_goes_with_the_way_through_it() -> None:
    way = {"DATABASE_URL": "postgres://pooler/d", "DATABASE_DIRECT_URL": "postgres://h/d"}
    assert from_environment(way).database_direct_url == "postgres://h/d"
    with pytest.raises(BadSetting, match="DATABASE_DIRECT_URL"):
        from_environment(way | {"DATABASE_URL": ""})


def test_an_empty_environment_gives_what_the_protocol_says() -> None:
    found = from_environment({})
    assert (found.host, found.port, found.database_url) == ("127.0.0.1", 8000, None)
    assert found.flush == FlushPolicy(milliseconds=350, chars=1200, parts=32)
    assert found.limits == Limits(per_owner=20, waiting=1000)
    assert found.models == (ModelRef("demo", "demo"),)
    assert (found.allowed_models, found.reasoning) == ((), False)
    assert found.origins == Origins(), "nobody is trusted that nobody has named"
    assert (found.concurrency, found.context_tokens, found.pool_size) == (200, 32_000, 16)
    assert (found.lease, found.grace) == (10.0, 20.0)
    assert found.keep_alive > 60, "load balancers keep one for 60 seconds, mostly, and have to be the first to close"
    assert found.lease <= 15, "a dead executor's run is taken over within 15 seconds"
    assert (found.welcome, found.system) == (settings.WELCOME, settings.SYSTEM)
    assert found.log_format in {"text", "json"}
    assert found.home.is_absolute()


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("HOST", "0.0.0.0", "host", "0.0.0.0"),
        ("HOST", " ::1 ", "host", "::1"),
        ("PORT", "0", "port", 0),
        ("PORT", "65535", "port", 65_535),
        ("PORT", " 80 ", "port", 80),
        ("PORT", "", "port", 8000),
        ("KHALA_HOME", "/srv/khala", "home", Path("/srv/khala")),
        ("KHALA_HOME", "~/khala", "home", Path.home() / "khala"),
        ("KHALA_HOME", "khala", "home", Path.cwd() / "khala"),
        ("DATABASE_URL", "postgres://u:p@h/d", "database_url", "postgres://u:p@h/d"),
        ("DATABASE_URL", "  ", "database_url", None),
        ("BLOB_URL", "s3://bucket/prefix", "blob_url", "s3://bucket/prefix"),
        ("BLOB_URL", "", "blob_url", None),
        ("KHALA_DRAIN_SECONDS", "2.5", "drain", 2.5),
        ("KHALA_KEEP_ALIVE_SECONDS", "620", "keep_alive", 620),
        ("KHALA_WAKE_URL", "nats://h", "wake_url", WakeUrl(servers=("nats://h:4222",))),
        (
            "KHALA_WAKE_URL",
            "nats://t%3a@[::1]:1/p",
            "wake_url",
            WakeUrl(servers=("nats://[::1]:1",), prefix="p", token="t:"),
        ),
        (
            "KHALA_WAKE_URL",
            "nats://n:p%40@h, nats://i:5",
            "wake_url",
            WakeUrl(servers=("nats://h:4222", "nats://i:5"), name="n", password="p@"),
        ),
        ("KHALA_UPLOAD_MB", "1", "most_upload", 1 << 20),
        ("KHALA_THREAD_BLOB_MB", "2", "room", StorageQuota(thread=2 << 20, guest=64 << 20)),
        ("KHALA_MODEL", "demo", "models", (ModelRef("demo", "demo"),)),
        ("KHALA_MODELS", "openai:gpt-*, demo,,", "allowed_models", ("openai:gpt-*", "demo")),
        ("KHALA_FLUSH_MS", "10", "flush", FlushPolicy(milliseconds=10)),
        ("KHALA_FLUSH_CHARS", "1", "flush", FlushPolicy(chars=1)),
        ("KHALA_FLUSH_PARTS", "1", "flush", FlushPolicy(parts=1)),
        ("KHALA_RUNS_PER_OWNER", "1", "limits", Limits(per_owner=1)),
        ("KHALA_QUEUE_LIMIT", "5", "limits", Limits(waiting=5)),
        ("KHALA_SYSTEM_PROMPT", "Be brief.", "system", "Be brief."),
        ("KHALA_SYSTEM_PROMPT", "", "system", settings.SYSTEM),
        ("KHALA_WELCOME", "En taro.", "welcome", "En taro."),
        ("KHALA_WELCOME", "", "welcome", ""),
        (
            "KHALA_ORIGINS",
            "https://a.example ,https://b.example",
            "origins",
            Origins(allowed=("https://a.example", "https://b.example")),
        ),
        ("KHALA_HOSTS", "A.example, *.b.example", "hosts", ("a.example", "*.b.example")),
        ("KHALA_BODY_SECONDS", "5", "body_pause", 5.0),
        ("KHALA_PUBLIC_URL", "https://a.example/", "origins", Origins(public_url="https://a.example")),
        ("KHALA_TRUSTED_PROXIES", "10.0.0.0/8", "origins", Origins(proxies=networks(["10.0.0.0/8"]))),
        ("KHALA_REGISTRATION", "closed", "registration", False),
        ("KHALA_PUBLIC_THREADS", "1", "public_threads", True),
        ("KHALA_ANON_DAYS", "0.5", "anon_days", 0.5),
        ("KHALA_CONCURRENCY", "1", "concurrency", 1),
        ("KHALA_CONTEXT_TOKENS", "500", "context_tokens", 500),
        ("KHALA_LEASE_SECONDS", "1.5", "lease", 1.5),
        ("KHALA_GRACE_SECONDS", "0", "grace", 0.0),
        ("KHALA_REASONING", "1", "reasoning", True),
        ("KHALA_POOL_SIZE", "4", "pool_size", 4),
        ("KHALA_WATCHDOG_SECONDS", "0", "watchdog", 0.0),
        ("KHALA_WATCHDOG_SECONDS", "1.5", "watchdog", 1.5),
        ("KHALA_ISOLATED_RUNS", "5", "isolated", 5),
        ("KHALA_LOG", "json", "log_format", "json"),
        ("KHALA_LOG", "text", "log_format", "text"),
    ],
)
def test_a_variable_sets_its_field_and_no_other(name: str, value: str, field: str, expected: object) -> None:
    changed, default = from_environment({name: value}), from_environment({})
    assert getattr(changed, field) == expected
    for other in set(Settings.__struct_fields__) - {field}:
        assert getattr(changed, other) == getattr(default, other)


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
        *[("KHALA_BODY_SECONDS", value) for value in ("0", "601", "nan")],
        *[("KHALA_WATCHDOG_SECONDS", value) for value in ("0.5", "-1", "3601", "nan", "off")],
        *[("KHALA_ISOLATED_RUNS", value) for value in ("0", "65", "1.5")],
        *[("KHALA_LOG", value) for value in ("JSON", "yaml")],
        *[("KHALA_MODEL_TIMEOUT", value) for value in ("0", "-1", "nan", "soon")],
        *[("KHALA_MODEL", value) for value in ("gpt-6", "openai", "openai:", "other:model")],
        *[("KHALA_FALLBACK_MODELS", value) for value in ("gpt-6", "demo, openai:")],
    ],
)
def test_a_value_that_cannot_be_used_is_an_error_that_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(BadSetting) as refused:
        from_environment({name: value})
    assert name in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_of_the_wake_url_is_in_no_text_that_is_made_of_it() -> None:
    found = from_environment({"KHALA_WAKE_URL": "nats://name:secret@h, nats://name:secret@i"}).wake_url
    assert found is not None
    assert found.password == "secret"
    assert f"{found}" == "nats://h:4222,nats://i:4222"
    assert "secret" not in f"{found!r} {[found]}"


def test_an_error_says_what_would_do() -> None:
    with pytest.raises(BadSetting, match=r"^PORT must be between 0 and 65535, not 70000\.$"):
        from_environment({"PORT": "70000"})
    with pytest.raises(BadSetting, match=r"^KHALA_LOG must be one of text, json, not 'xml'\.$"):
        from_environment({"KHALA_LOG": "xml"})


@pytest.mark.parametrize(
    ("models", "asked", "allowed"),
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
def test_callers_may_ask_for_what_is_configured_and_what_is_named(models: str, asked: str, allowed: bool) -> None:
    env = {"KHALA_MODEL": "anthropic:primary", "KHALA_FALLBACK_MODELS": "openai:second", "KHALA_MODELS": models}
    assert from_environment(env).allows(asked) is allowed


def test_home_is_the_systems_for_root_and_the_users_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert settings.default_home({}) == "/var/lib/khala"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("sys.platform", "linux")
    assert settings.default_home({}) == "~/.local/share/khala"
    assert settings.default_home({"XDG_DATA_HOME": "/data"}) == "/data/khala"
    monkeypatch.setattr("sys.platform", "darwin")
    assert settings.default_home({}) == "~/Library/Application Support/khala"


def test_settings_are_read_from_what_is_given_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "no number")
    assert from_environment({"PORT": "1"}).port == 1
    monkeypatch.setenv("PORT", "2")
    assert from_environment().port == 2


def test_tools_are_all_offered_unless_said_otherwise_and_the_operators_rules_are_read() -> None:
    assert from_environment({}).tools == ToolRegistryOptions()
    assert from_environment({"KHALA_TOOLS": ""}).tools.offered == ()
    found = from_environment({
        "KHALA_TOOLS": "read_*, grep", "KHALA_TOOLS_ASK": "fetch_url", "KHALA_TOOLS_DENY": "delete_*",
        "KHALA_FETCH_ALLOW": "10.0.0.0/8, ::1",
    }).tools  # fmt: skip
    assert found.offered == ("read_*", "grep")
    assert [(rule.pattern, rule.action) for rule in found.rules] == [("fetch_url", "ask"), ("delete_*", "deny")]
    assert [str(network) for network in found.fetch_allow] == ["10.0.0.0/8", "::1/128"]
    for name, value in (("KHALA_FETCH_ALLOW", "everywhere"), ("KHALA_TOOLS_DENY", "x" * 201)):
        with pytest.raises(BadSetting, match=name):
            from_environment({name: value})
