"""The configuration of MCP servers and tool groups, from one JSON file. Error messages name the place in the file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from khala.domain.secure_urls import is_secure
from khala.domain.tools import matches_any
from khala.tools.config_files import ConfigFileError, convert, read_json, require_object
from khala.tools.mcp.oauth_config import NEEDS_TLS, McpOAuthConfig, check_oauth, expand_oauth, is_address

MAX_SERVERS = 50
MAX_GROUPS = 100
SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
RESERVED = ("builtin", "user")
"""Sources of tools that come from no server."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
BUILT_IN_GROUPS = Path(__file__).with_name("groups.json")

ToolNamePattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
ToolNamePatterns: TypeAlias = Annotated[tuple[ToolNamePattern, ...], Meta(max_length=200)]


class McpServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An MCP server: a program to start (`command`), or an address (`url`).

    `timeout` bounds one call, in seconds. `idempotent` and `read_only` are patterns of tool names, as the server lists
    them. Calls of an idempotent tool may be repeated. A read-only tool changes nothing. `anonymous` lets people
    without an account use the server. With `share_identity`, calls name the user and the thread. With
    `sampling`, the server may have models called during its calls.
    """

    name: str = ""
    type: Literal["stdio", "http", "streamable-http", "streamableHttp"] | None = None
    description: Annotated[str, Meta(max_length=1000)] = ""
    disabled: bool = False
    command: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    args: Annotated[tuple[str, ...], Meta(max_length=200)] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    headers: dict[str, str] = {}
    oauth: McpOAuthConfig | None = None
    timeout: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    anonymous: bool = False
    share_identity: bool = False
    sampling: bool = False
    elicitation: bool = False
    idempotent: ToolNamePatterns = ()
    read_only: ToolNamePatterns = ()

    @property
    def transport(self) -> Literal["stdio", "http"]:
        """The transport that the settings imply."""
        return "http" if self.command is None else "stdio"

    @property
    def is_per_account(self) -> bool:
        """Whether each account connects its own account at the server, so that calls have tokens of their own."""
        return self.oauth is not None and self.oauth.flow == "authorization_code"

    def only_reads(self, tool: str) -> bool:
        """Whether the operator declares that the tool changes nothing."""
        return matches_any(tool, self.read_only)

    def may_repeat(self, tool: str) -> bool:
        """Whether the operator declares that a call may be repeated under its idempotency key."""
        return self.only_reads(tool) or matches_any(tool, self.idempotent)


class ToolGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A group of tools, by patterns of their names."""

    name: str = ""
    title: Annotated[str, Meta(max_length=100)] = ""
    description: Annotated[str, Meta(max_length=1000)] = ""
    tools: ToolNamePatterns = ()

    def has(self, tool: str) -> bool:
        """Whether the tool belongs to the group."""
        return matches_any(tool, self.tools)


class McpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All enabled servers and all groups, by name, in the order of the file."""

    servers: dict[str, McpServerConfig] = {}
    groups: dict[str, ToolGroup] = {}

    @classmethod
    def read(cls, path: Path | None, env: Mapping[str, str] = os.environ) -> "McpConfig":
        """Read the file, and apply it to the built-in groups. Without a path there are no servers.

        Raises `ConfigFileError`.

        `${NAME}` and `${NAME:-default}` are replaced by variables of `env`, in a server's command, arguments,
        environment, folder, address, headers and OAuth client.
        """
        built_in = _groups(require_object(read_json(BUILT_IN_GROUPS), str(BUILT_IN_GROUPS.name)), {})
        if path is None:
            return cls(groups=built_in)
        try:
            return cls._parsed(require_object(read_json(path), "the file"), built_in, env)
        except ConfigFileError as error:
            raise ConfigFileError(f"{path}: {error}") from error

    @classmethod
    def _parsed(cls, content: dict[str, Any], built_in: dict[str, ToolGroup], env: Mapping[str, str]) -> "McpConfig":
        if unknown := sorted(set(content) - {"mcpServers", "groups"}):
            raise ConfigFileError(f"{unknown[0]}: unknown setting. Use mcpServers and groups.")
        servers = require_object(content.get("mcpServers", {}), "mcpServers")
        if len(servers) > MAX_SERVERS:
            raise ConfigFileError(f"mcpServers: at most {MAX_SERVERS} servers are allowed.")
        parsed = [_server(name, value, env) for name, value in servers.items()]
        groups = _groups(require_object(content.get("groups", {}), "groups"), built_in)
        return cls(servers={server.name: server for server in parsed if not server.disabled}, groups=groups)


def _server(name: str, value: Any, env: Mapping[str, str]) -> McpServerConfig:
    place = f"mcpServers.{name}"
    if not SERVER_NAME.fullmatch(name):
        raise ConfigFileError(f"{place}: a name has 1 to 64 letters, digits, spaces, dots, dashes and underscores.")
    if name.lower() in RESERVED:
        raise ConfigFileError(f"{place}: this name is reserved for Khala's own tools.")
    if "name" in require_object(value, place):
        raise ConfigFileError(f"{place}.name: remove it. The key of the server is its name.")
    server = convert(value, McpServerConfig, place)
    if server.disabled:
        return msgspec.structs.replace(server, name=name)
    server = _expand(msgspec.structs.replace(server, name=name), place, env)
    _check(server, place)
    return server


def _check(server: McpServerConfig, place: str) -> None:
    if (server.command is None) == (server.url is None):
        raise ConfigFileError(f"{place}: set either command (a program to start) or url (an address), not both.")
    if server.type is not None and (server.type == "stdio") != (server.transport == "stdio"):
        raise ConfigFileError(f"{place}.type: {server.type} does not match {'command' if server.command else 'url'}.")
    if server.url is not None:
        _check_http(server, server.url, place)
        return
    for key, given in (("headers", server.headers), ("oauth", server.oauth)):
        if given:
            raise ConfigFileError(f"{place}.{key}: only a server with a url can have {key}.")
    for key, words in {"command": [server.command or ""], "args": server.args, "cwd": [server.cwd or ""]}.items():
        if any("\0" in word for word in words):
            raise ConfigFileError(f"{place}.{key}: NUL characters are not allowed.")
    for name, value in server.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigFileError(f"{place}.env.{name}: not a valid environment variable.")
    if server.cwd is not None and not Path(server.cwd).expanduser().is_dir():
        raise ConfigFileError(f"{place}.cwd: the folder does not exist.")


def _check_http(server: McpServerConfig, url: str, place: str) -> None:
    if not is_address(url):
        raise ConfigFileError(f"{place}.url: must be an address such as https://tools.example.com/mcp.")
    if server.oauth is not None:
        if not is_secure(url):
            raise ConfigFileError(f"{place}.url: {NEEDS_TLS}")
        check_oauth(server.oauth, server.headers, f"{place}.oauth")
    if server.is_per_account and server.anonymous:
        raise ConfigFileError(f"{place}.anonymous: people without an account can't connect theirs, so remove it.")
    if server.args or server.env or server.cwd:
        raise ConfigFileError(f"{place}: only a server with a command can have args, env and cwd.")
    for name, value in server.headers.items():
        if not HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ConfigFileError(f"{place}.headers.{name}: not a valid header.")


def _expand(server: McpServerConfig, place: str, env: Mapping[str, str]) -> McpServerConfig:
    def expand(text: str, key: str) -> str:
        return REFERENCE.sub(lambda match: _variable(match, f"{place}.{key}", env), text)

    return msgspec.structs.replace(
        server,
        command=None if server.command is None else expand(server.command, "command"),
        args=tuple(expand(word, f"args[{index}]") for index, word in enumerate(server.args)),
        env={name: expand(value, f"env.{name}") for name, value in server.env.items()},
        cwd=None if server.cwd is None else expand(server.cwd, "cwd"),
        url=None if server.url is None else expand(server.url, "url"),
        headers={name: expand(value, f"headers.{name}") for name, value in server.headers.items()},
        oauth=server.oauth and expand_oauth(server.oauth, expand),
    )


def _variable(match: re.Match[str], place: str, env: Mapping[str, str]) -> str:
    name, default = match[1], match[2]
    value = env.get(name) or default
    if value is None:
        raise ConfigFileError(f"{place}: the variable {name} is not set.")
    return value


def _groups(changes_by_name: dict[str, Any], built_in: dict[str, ToolGroup]) -> dict[str, ToolGroup]:
    """The built-in groups with the changes of the file. A list replaces a group's patterns, null removes the group."""
    groups = dict(built_in)
    for name, change in changes_by_name.items():
        place = f"groups.{name}"
        if not GROUP_NAME.fullmatch(name):
            raise ConfigFileError(f"{place}: a group's name has 1 to 64 lower-case letters, digits and dashes.")
        if change is None:
            groups.pop(name, None)
            continue
        changes = {"tools": change} if isinstance(change, list) else require_object(change, place)
        if "name" in changes:
            raise ConfigFileError(f"{place}.name: remove it. The key of the group is its name.")
        current = msgspec.to_builtins(groups.get(name, ToolGroup(title=name.capitalize())))
        groups[name] = convert(current | changes | {"name": name}, ToolGroup, place)
    if len(groups) > MAX_GROUPS:
        raise ConfigFileError(f"groups: at most {MAX_GROUPS} groups are allowed.")
    return groups
