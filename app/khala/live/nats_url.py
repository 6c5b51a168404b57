"""The URL of the NATS server that carries wake-ups (`KHALA_WAKE_URL`): `nats://name:password@host:4222/prefix`.

A name without a password is a token. Several servers of one cluster are separated by commas; the credentials and the
prefix are those of the first. The connection is encrypted if the server requires it.
"""

import re
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

DEFAULT_PREFIX = "khala"
"""The prefix of subjects, unless the URL has another: databases that share a server need one each."""
DEFAULT_PORT = 4222
EXAMPLE = "must be like nats://name:password@host:4222"


class NatsServers(msgspec.Struct, frozen=True, kw_only=True):
    """NATS servers as URLs without credentials. The credentials are separate fields, which no text form contains."""

    servers: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    name: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return f"WakeUrl({self})"

    def __str__(self) -> str:
        return ",".join(self.servers)


def parse(given: str) -> NatsServers:
    """Parse the URL. Raises `ValueError`, which says what is expected and repeats nothing of the URL."""
    try:
        split = [urlsplit(one.strip()) for one in given.split(",")]
    except ValueError as error:
        raise ValueError(EXAMPLE) from error
    first = split[0]
    prefix = first.path.strip("/")
    if prefix and not re.fullmatch(r"[\w-]{1,64}", prefix, re.ASCII):
        raise ValueError("may end with /prefix only, of letters, digits, - and _")
    servers = tuple(map(_server, split))
    name, password = (unquote(part) if part else None for part in (first.username, first.password))
    return NatsServers(
        servers=servers,
        prefix=prefix or DEFAULT_PREFIX,
        name=name if password else None,
        password=password,
        token=None if password else name,
    )


def _server(one: SplitResult) -> str:
    try:
        host, port = one.hostname, one.port or DEFAULT_PORT
    except ValueError as error:
        raise ValueError("must have a port between 1 and 65535") from error
    if one.scheme != "nats" or not host or one.query or one.fragment:
        raise ValueError(EXAMPLE)
    return f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}"
