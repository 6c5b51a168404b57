"""Which MCP servers there are and which groups tools come in: read from one JSON file, checked place by place."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from khala.domain.tools import matches_any

MOST_BYTES = 1 << 20
"""Bytes of the file."""
MOST_SERVERS = 50
MOST_GROUPS = 100
SERVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
GROUP_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
RESERVED = ("builtin", "user")
"""What the source of tools is called that come from no server."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
SHIPPED = Path(__file__).with_name("groups.json")

T = TypeVar("T")
ToolNamePattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
ToolNamePatterns: TypeAlias = Annotated[tuple[ToolNamePattern, ...], Meta(max_length=200)]


class McpConfigError(ValueError):
    """The configuration can't be used; the message names the place, and never what a secret is."""


class McpServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A server: a program that is started (`command`), or an address (`url`).

    `timeout` is seconds that one call may take; `idempotent` and `read_only` are patterns of the server's own names of
    tools that may be repeated, and that change nothing; `anonymous` lets people without an account use it.
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
    timeout: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    anonymous: bool = False
    idempotent: ToolNamePatterns = ()
    read_only: ToolNamePatterns = ()

    @property
    def transport(self) -> Literal["stdio", "http"]:
        """How it is spoken to."""
        return "http" if self.command is None else "stdio"

    def only_reads(self, tool: str) -> bool:
        """Whether the operator says that the tool changes nothing."""
        return matches_any(tool, self.read_only)

    def may_repeat(self, tool: str) -> bool:
        """Whether the operator says that a call may be repeated under its key."""
        return self.only_reads(tool) or matches_any(tool, self.idempotent)


class ToolGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Tools that belong together, by patterns of their names."""

    name: str = ""
    title: Annotated[str, Meta(max_length=100)] = ""
    description: Annotated[str, Meta(max_length=1000)] = ""
    tools: ToolNamePatterns = ()

    def has(self, tool: str) -> bool:
        """Whether the tool belongs to it."""
        return matches_any(tool, self.tools)


class McpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All servers that are not switched off, and all groups, by name, in order."""

    servers: dict[str, McpServerConfig] = {}
    groups: dict[str, ToolGroup] = {}

    @classmethod
    def read(cls, path: Path | None, env: Mapping[str, str] = os.environ) -> "McpConfig":
        """What the file says, beside the groups that Khala has anyway; None is no file. Raises `McpConfigError`.

        `${NAME}` and `${NAME:-default}` stand for variables of `env`, in a server's command, arguments, environment,
        address and headers.
        """
        shipped = _groups(_object(_decoded(SHIPPED), str(SHIPPED.name)), {})
        if path is None:
            return cls(groups=shipped)
        try:
            return cls._parsed(_object(_decoded(path), "the file"), shipped, env)
        except McpConfigError as error:
            raise McpConfigError(f"{path}: {error}") from error

    @classmethod
    def _parsed(cls, said: dict[str, Any], shipped: dict[str, ToolGroup], env: Mapping[str, str]) -> "McpConfig":
        if unknown := sorted(set(said) - {"mcpServers", "groups"}):
            raise McpConfigError(f"{unknown[0]}: there is no such setting; there are mcpServers and groups.")
        servers = _object(said.get("mcpServers", {}), "mcpServers")
        if len(servers) > MOST_SERVERS:
            raise McpConfigError(f"mcpServers: there may be {MOST_SERVERS} at most.")
        read = [_server(name, one, env) for name, one in servers.items()]
        groups = _groups(_object(said.get("groups", {}), "groups"), shipped)
        return cls(servers={one.name: one for one in read if not one.disabled}, groups=groups)


def _decoded(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise McpConfigError(f"it can't be read: {error.strerror or error}.") from error
    if len(content) > MOST_BYTES:
        raise McpConfigError(f"it has more than {MOST_BYTES:,} bytes.")
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise McpConfigError(f"it is no JSON: {error}.") from error


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise McpConfigError(f"{place}: this must be an object.")
    return value


def _server(name: str, said: Any, env: Mapping[str, str]) -> McpServerConfig:
    place = f"mcpServers.{name}"
    if not SERVER_NAME.fullmatch(name):
        raise McpConfigError(f"{place}: a name has 1 to 64 letters, digits, spaces, dots, dashes and underscores.")
    if name.lower() in RESERVED:
        raise McpConfigError(f"{place}: this name is taken by Khala's own tools.")
    if "name" in _object(said, place):
        raise McpConfigError(f"{place}.name: the name is what the server stands under.")
    server = _converted(said, McpServerConfig, place)
    if server.disabled:
        return msgspec.structs.replace(server, name=name)
    server = _expanded(msgspec.structs.replace(server, name=name), place, env)
    _check(server, place)
    return server


def _check(server: McpServerConfig, place: str) -> None:
    if (server.command is None) == (server.url is None):
        raise McpConfigError(f"{place}: give either command (a program to start) or url (an address), and not both.")
    if server.type is not None and (server.type == "stdio") != (server.transport == "stdio"):
        raise McpConfigError(f"{place}.type: {server.type} does not go with {'command' if server.command else 'url'}.")
    if server.url is not None:
        _check_http(server, server.url, place)
        return
    if server.headers:
        raise McpConfigError(f"{place}.headers: only a server with a url has headers.")
    for key, words in {"command": [server.command or ""], "args": server.args, "cwd": [server.cwd or ""]}.items():
        if any("\0" in word for word in words):
            raise McpConfigError(f"{place}.{key}: there may be no NUL character.")
    for name, value in server.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise McpConfigError(f"{place}.env.{name}: this can't be a variable of the environment.")
    if server.cwd is not None and not Path(server.cwd).expanduser().is_dir():
        raise McpConfigError(f"{place}.cwd: there is no such folder.")


def _check_http(server: McpServerConfig, url: str, place: str) -> None:
    try:
        split = urlsplit(url)
        sound = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0 and not split.fragment
    except ValueError:
        sound = False
    if not sound or any(ord(one) <= 32 for one in url):
        raise McpConfigError(f"{place}.url: this must be like https://tools.example.com/mcp.")
    if server.args or server.env or server.cwd:
        raise McpConfigError(f"{place}: only a server with a command has args, env and cwd.")
    for name, value in server.headers.items():
        if not HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise McpConfigError(f"{place}.headers.{name}: this can't be a header.")


def _expanded(server: McpServerConfig, place: str, env: Mapping[str, str]) -> McpServerConfig:
    def one(text: str, key: str) -> str:
        return REFERENCE.sub(lambda found: _variable(found, f"{place}.{key}", env), text)

    return msgspec.structs.replace(
        server,
        command=None if server.command is None else one(server.command, "command"),
        args=tuple(one(word, f"args[{index}]") for index, word in enumerate(server.args)),
        env={name: one(value, f"env.{name}") for name, value in server.env.items()},
        cwd=None if server.cwd is None else one(server.cwd, "cwd"),
        url=None if server.url is None else one(server.url, "url"),
        headers={name: one(value, f"headers.{name}") for name, value in server.headers.items()},
    )


def _variable(found: re.Match[str], place: str, env: Mapping[str, str]) -> str:
    name, default = found[1], found[2]
    value = env.get(name) or default
    if value is None:
        raise McpConfigError(f"{place}: the variable {name} is not set.")
    return value


def _groups(said: dict[str, Any], shipped: dict[str, ToolGroup]) -> dict[str, ToolGroup]:
    """The shipped groups, changed by what is said: a list is a group's patterns, null takes a group away."""
    groups = dict(shipped)
    for name, one in said.items():
        place = f"groups.{name}"
        if not GROUP_NAME.fullmatch(name):
            raise McpConfigError(f"{place}: a group's name has 1 to 64 small letters, digits and dashes.")
        if one is None:
            groups.pop(name, None)
            continue
        changes = {"tools": one} if isinstance(one, list) else _object(one, place)
        if "name" in changes:
            raise McpConfigError(f"{place}.name: the name is what the group stands under.")
        before = msgspec.to_builtins(groups.get(name, ToolGroup(title=name.capitalize())))
        groups[name] = _converted(before | changes | {"name": name}, ToolGroup, place)
    if len(groups) > MOST_GROUPS:
        raise McpConfigError(f"groups: there may be {MOST_GROUPS} at most.")
    return groups


def _converted(said: Any, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise McpConfigError(f"{place}{where.rstrip('`')}: {what}.") from error
