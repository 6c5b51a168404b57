"""The configuration of MCP servers: errors name their place, and never contain a secret."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from khala.domain.tools import SEPARATOR, TOOL_NAME
from khala.settings import SettingError, from_environment
from khala.tools.config_files import ConfigFileError
from khala.tools.mcp import McpConfig, tool_names

TWELVE = {
    "core", "files", "tasks", "web", "code", "data", "memory", "agents", "planning", "browser", "security", "devtools",
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


def read(path: Path, content: Any, **env: str) -> McpConfig:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return McpConfig.read(path, env)


def test_without_a_file_there_are_twelve_groups_and_no_servers() -> None:
    config = McpConfig.read(None, {})
    assert (config.servers, set(config.groups)) == ({}, TWELVE)
    assert all(group.title and group.description and group.tools for group in config.groups.values())
    assert config.groups["tasks"].has("todo_add")
    assert not config.groups["tasks"].has("read_file")


def test_servers_are_read_in_the_customary_format(path: Path) -> None:
    local = {
        "command": "python",
        "args": ["-m", "${WHAT:-tool}"],
        "env": {"TOKEN": "${SECRET}"},
        "cwd": str(path.parent),
    }
    remote = {"url": "https://x.example/mcp", "headers": {"Authorization": "Bearer ${SECRET}"}, "timeout": 5}
    off = {"command": "${NOT_SET}", "disabled": True}
    more = {"anonymous": True, "idempotent": ["get_*"], "readOnly": ["list_*"], "type": "http"}
    config = read(path, {"mcpServers": {"local": local, "remote": remote | more, "off": off}}, SECRET="hush")
    assert list(config.servers) == ["local", "remote"]
    local_server, other = config.servers["local"], config.servers["remote"]
    assert (local_server.transport, local_server.args, local_server.env, local_server.timeout) == (
        "stdio",
        ("-m", "tool"),
        {"TOKEN": "hush"},
        30.0,
    )
    assert (other.transport, other.headers, other.timeout) == ("http", {"Authorization": "Bearer hush"}, 5)
    assert (other.anonymous, other.may_repeat("get_x"), other.may_repeat("list_x"), other.may_repeat("put")) == (
        True, True, True, False,
    )  # fmt: skip
    assert (other.only_reads("list_x"), other.only_reads("get_x")) == (True, False)


def test_an_oauth_client_is_read_with_its_secret_from_a_variable(path: Path) -> None:
    oauth = {"clientId": "khala", "clientSecret": "${SECRET}", "issuer": "https://login.example", "scope": "mcp"}
    server = {"url": "https://x.example/mcp", "oauth": oauth}
    read_oauth = read(path, {"mcpServers": {"a": server}}, SECRET="hush").servers["a"].oauth
    assert read_oauth is not None
    assert (read_oauth.client_secret, read_oauth.auth_method) == ("hush", "client_secret_basic")
    for changed, place in (
        ({"oauth": {**oauth, "issuer": "login"}}, "mcpServers.a.oauth.issuer: must be an address"),
        ({"oauth": {**oauth, "origins": ["x"]}}, "mcpServers.a.oauth.origins[0]: must be an address"),
        ({"oauth": {"clientId": "khala"}}, "mcpServers.a.oauth"),
        ({"url": "http://x.example/mcp"}, "mcpServers.a.url: must begin with https://"),
        ({"oauth": {**oauth, "issuer": "http://login.example"}}, "mcpServers.a.oauth.issuer: must begin with https://"),
        ({"oauth": {**oauth, "origins": ["http://10.0.0.1"]}}, "mcpServers.a.oauth.origins[0]: must begin with https"),
        ({"headers": {"authorization": "x"}}, "mcpServers.a.oauth: remove the header Authorization"),
        ({"url": None, "command": "x"}, "mcpServers.a.oauth: only a server with a url"),
    ):
        given = {key: value for key, value in (server | changed).items() if value is not None}
        with pytest.raises(ConfigFileError, match=re.escape(place)):
            read(path, {"mcpServers": {"a": given}}, SECRET="hush")


def test_groups_are_overridden_extended_and_removed(path: Path) -> None:
    groups = {"web": {"title": "The web"}, "files": ["read_file"], "browser": None, "ours": {"tools": ["x_*"]}}
    config = read(path, {"groups": groups})
    assert set(config.groups) == TWELVE - {"browser"} | {"ours"}
    assert config.groups["web"].title == "The web"
    assert config.groups["web"].has("fetch_url")
    assert config.groups["files"].tools == ("read_file",)
    assert (config.groups["ours"].name, config.groups["ours"].title, config.groups["ours"].has("x_y")) == (
        "ours", "Ours", True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{", "the file is not valid JSON"),
        ("[]", "the file: must be an object"),
        ({"servers": {}}, "servers: unknown setting"),
        ({"mcpServers": []}, "mcpServers: must be an object"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a: set either command"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "mcpServers.a: set either command"),
        ({"mcpServers": {"a": {"comand": "x"}}}, "mcpServers.a: Object contains unknown field `comand`"),
        ({"mcpServers": {"a": {"command": "x", "timeout": 0}}}, "mcpServers.a.timeout"),
        ({"mcpServers": {"a": {"command": "x", "args": [1]}}}, "mcpServers.a.args[0]"),
        ({"mcpServers": {"a": {"command": "x", "env": {"T": "${HUSH}"}}}}, "mcpServers.a.env.T: the variable HUSH"),
        ({"mcpServers": {"a": {"command": "x", "cwd": "/no/such/folder"}}}, "mcpServers.a.cwd"),
        ({"mcpServers": {"a": {"command": "x", "headers": {"A": "b"}}}}, "mcpServers.a.headers"),
        ({"mcpServers": {"a": {"command": "x", "type": "http"}}}, "mcpServers.a.type"),
        ({"mcpServers": {"a": {"url": "ftp://x"}}}, "mcpServers.a.url"),
        ({"mcpServers": {"a": {"url": "http://[x"}}}, "mcpServers.a.url"),
        ({"mcpServers": {"a": {"url": "http://x", "headers": {"A": "b\r\nC: d"}}}}, "mcpServers.a.headers.A"),
        ({"mcpServers": {"a": {"url": "http://x", "env": {"A": "b"}}}}, "mcpServers.a: only a server with a command"),
        ({"mcpServers": {"builtin": {"command": "x"}}}, "mcpServers.builtin: this name is reserved"),
        ({"mcpServers": {"a/b": {"command": "x"}}}, "mcpServers.a/b: a name has"),
        ({"mcpServers": {str(n): {"command": "x"} for n in range(51)}}, "mcpServers: at most 50"),
        ({"groups": {"Web": []}}, "groups.Web: a group's name"),
        ({"groups": {"web": {"tools": [""]}}}, "groups.web.tools[0]"),
        ({"groups": {"web": "x"}}, "groups.web: must be an object"),
    ],
)  # fmt: skip
def test_an_error_names_its_place(path: Path, content: Any, place: str) -> None:
    with pytest.raises(ConfigFileError) as bad:
        read(path, content, OTHER="hush-hush")
    assert place in str(bad.value)
    assert str(path) in str(bad.value)


def test_a_secret_is_never_repeated(path: Path) -> None:
    with pytest.raises(ConfigFileError) as bad:
        read(path, {"mcpServers": {"a": {"url": "ftp://x?token=${SECRET}"}}}, SECRET="hush-hush")
    assert "hush" not in str(bad.value)


def test_the_file_is_the_configured_one_or_the_one_in_the_home(tmp_path: Path) -> None:
    home, named = tmp_path / "mcp.json", tmp_path / "other.json"
    assert from_environment({"KHALA_HOME": str(tmp_path)}).mcp.servers == {}
    home.write_text('{"mcpServers": {"at-home": {"command": "x"}}}')
    named.write_text('{"mcpServers": {"named": {"command": "x"}}}')
    assert list(from_environment({"KHALA_HOME": str(tmp_path)}).mcp.servers) == ["at-home"]
    env = {"KHALA_HOME": str(tmp_path), "KHALA_MCP_CONFIG": str(named)}
    assert list(from_environment(env).mcp.servers) == ["named"]
    with pytest.raises(SettingError, match=r"KHALA_MCP_CONFIG: .*missing"):
        from_environment(env | {"KHALA_MCP_CONFIG": str(tmp_path / "missing.json")})


@given(
    st.lists(st.text(max_size=100), unique=True, max_size=20), st.lists(st.text(max_size=100), unique=True, max_size=9)
)
@example([""], ["0000000000000:0000000000"])
def test_names_are_valid_and_distinct_for_any_names_of_servers_and_tools(tools: list[str], servers: list[str]) -> None:
    prefixes = tool_names.prefixes(servers)
    full = [name for prefix in prefixes.values() for name in tool_names.full_names(prefix, tools).values()]
    assert len(set(full)) == len(full) == len(servers) * len(tools)
    assert all(TOOL_NAME.fullmatch(name) for name in full)
    assert all(name.count(SEPARATOR) == 1 for name in full)


@given(st.from_regex(r"[a-z]([a-z0-9-]|_[a-z0-9]){0,30}", fullmatch=True))
def test_a_valid_name_is_kept_whatever_other_names_there_are(tool: str) -> None:
    assert tool_names.full_names("server", [f"{tool}.", tool, f"_{tool}"])[tool] == f"server__{tool}"


def test_a_server_of_peoples_accounts_needs_no_client_and_keys_for_their_tokens(path: Path) -> None:
    def server(oauth: dict[str, Any], **more: Any) -> dict[str, Any]:
        given = {"url": "https://x.example/mcp", "oauth": {"flow": "authorization_code", **oauth}, **more}
        return {"mcpServers": {"a": given}}

    config = read(path, server({}))
    assert config.servers["a"].is_per_account
    for loopback in ("http://localhost:8000/mcp", "http://127.1.2.3/mcp", "http://[::1]:8000/mcp"):
        assert read(path, server({"issuer": loopback}, url=loopback)).servers["a"].url == loopback
    for oauth, more, message in (
        ({"clientId": "khala"}, {}, "mcpServers.a.oauth.issuer: required with the flow authorization_code"),
        ({"clientSecret": "hush"}, {}, "mcpServers.a.oauth.clientId: a clientSecret belongs"),
        ({"origins": ["https://y.example"]}, {}, "mcpServers.a.oauth.issuer: origins are those of an issuer"),
        ({}, {"anonymous": True}, "mcpServers.a.anonymous: people without an account"),
        ({}, {"url": "http://10.0.0.1/mcp"}, "mcpServers.a.url: must begin with https://"),
        ({}, {"url": "http://localhost.example/mcp"}, "mcpServers.a.url: must begin with https://"),
    ):
        with pytest.raises(ConfigFileError) as refused:
            read(path, server(oauth, **more))
        assert message in str(refused.value)
    path.write_text(json.dumps(server({})))
    env = {"KHALA_MCP_CONFIG": str(path), "DATABASE_URL": "postgresql://localhost/khala"}
    with pytest.raises(SettingError, match="authorization_code needs KHALA_SECRET_KEYS"):
        from_environment(env)
    with pytest.raises(SettingError, match="KHALA_SECRET_KEYS must be keys of 32 bytes"):
        from_environment(env | {"KHALA_SECRET_KEYS": "c2hvcnQ="})
    key = "a" * 43 + "="
    assert len(from_environment(env | {"KHALA_SECRET_KEYS": f"{key},{key}"}).accounts.secret_keys) == 2
    with pytest.raises(SettingError, match="authorization_code needs a KHALA_PUBLIC_URL with https://"):
        from_environment(env | {"KHALA_SECRET_KEYS": key, "KHALA_PUBLIC_URL": "http://chat.example"})
