"""The URL of the NATS server that carries wake-ups (`KHALA_WAKE_URL`): `nats://name:password@host:4222/prefix`.

A name without a password is a token. Commas separate several servers of one cluster; the credentials and the prefix of
the first URL apply to all. The connection is encrypted if the server requires it.
"""

import re
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

DEFAULT_PREFIX = "khala"
"""The prefix of subjects, unless the URL has another one. Databases that share a server need different prefixes."""
DEFAULT_PORT = 4222
EXAMPLE = "must be like nats://name:password@host:4222"


class NatsServers(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of NATS servers, without credentials, and the credentials, which `str` and `repr` leave out."""

    servers: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    name: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"NatsServers({self})"

    def __str__(self) -> str:
        return ",".join(self.servers)


def parse(text: str) -> NatsServers:
    """Parse the setting. Raises `ValueError`, whose message says what is expected and contains nothing of `text`."""
    try:
        urls = [urlsplit(url.strip()) for url in text.split(",")]
    except ValueError as error:
        raise ValueError(EXAMPLE) from error
    first = urls[0]
    prefix = first.path.strip("/")
    if prefix and not re.fullmatch(r"[\w-]{1,64}", prefix, re.ASCII):
        raise ValueError("may end with /prefix only, of letters, digits, - and _")
    servers = tuple(map(_server, urls))
    name, password = (unquote(part) if part else None for part in (first.username, first.password))
    return NatsServers(
        servers=servers,
        prefix=prefix or DEFAULT_PREFIX,
        name=name if password else None,
        password=password,
        token=None if password else name,
    )


def _server(url: SplitResult) -> str:
    try:
        host, port = url.hostname, url.port or DEFAULT_PORT
    except ValueError as error:
        raise ValueError("must have a port between 1 and 65535") from error
    if url.scheme != "nats" or not host or url.query or url.fragment:
        raise ValueError(EXAMPLE)
    return f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}"
