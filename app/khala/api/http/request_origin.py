"""The origin of a request: the client's address behind trusted proxies, and the site whose page sent it."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from litestar.connection import ASGIConnection

from khala.domain.errors import Forbidden

Address: TypeAlias = IPv4Address | IPv6Address
Connection: TypeAlias = ASGIConnection[Any, Any, Any, Any]

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
OWN_SITE = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for the server's own page, and for a URL that the user typed or opened."""
IPV4_PREFIX, IPV6_PREFIX = 24, 56
"""Bits of an address that a client cannot easily change: about what a provider assigns to one customer."""
IPV6_HOST_PREFIX = 64
"""Bits of an IPv6 address that identify a home or a machine. The machine chooses the other bits itself."""


class AddressRange(Protocol):
    """An IPv4 or IPv6 network."""

    def __contains__(self, other: object) -> bool:
        """Whether the address is in it."""


class OriginPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The origins whose pages may call, and the proxies that are trusted to name the client's address."""

    allowed: tuple[str, ...] = ()
    public_url: str | None = None
    frame_ancestors: tuple[str, ...] = ()
    """The origins whose pages may show the chat page in a frame."""
    proxies: tuple[AddressRange, ...] = ()
    count_loopback: bool = False
    """Whether limits per network also apply to clients on this machine."""

    def is_named(self, origin: str) -> bool:
        """Whether the operator has allowed this origin by name, not by `*`."""
        return origin in self.allowed

    def is_own(self, origin: str, host: str, *, https: bool) -> bool:
        """Whether the origin is this server's. If the server is reached over TLS, a plain HTTP origin is not."""
        split = urlsplit(origin) if origin.count("/") == 2 else None
        schemes = {"https"} if https else {"http", "https"}
        same = split is not None and split.scheme in schemes and bool(split.netloc) and split.netloc == host
        return same or (self.public_url is not None and origin == _origin_of(self.public_url))


def _origin_of(url: str) -> str:
    split = urlsplit(url)
    return f"{split.scheme}://{split.netloc}"


def refuse_cross_site(connection: Connection, origins: OriginPolicy, *, cookie: bool) -> None:
    """Raise `Forbidden` if a browser says that another site's page sent this request to change something.

    `Sec-Fetch-Site` decides, or `Origin` if that is absent. Programs that are not browsers send neither. Allowing any
    origin (`*`) does not apply to a request with a session cookie.
    """
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    if site in OWN_SITE or (site is None and origin is None):
        return
    if origin is not None and is_trusted_origin(connection, origins):
        return
    if "*" in origins.allowed and not cookie:
        return
    raise Forbidden("Another site's page may not do this.")


def may_open_socket(connection: Connection, origins: OriginPolicy) -> bool:
    """Whether the page may open a socket. Programs that are not browsers send no origin."""
    origin = connection.headers.get("origin")
    return origin is None or "*" in origins.allowed or is_trusted_origin(connection, origins)


def is_trusted_origin(connection: Connection, origins: OriginPolicy) -> bool:
    """Whether the request's cookie can be trusted: the server's own page sent it, or a page of a named origin.

    Browsers send no `Origin` with most GET requests. In that case `Sec-Fetch-Site` decides. Programs send neither.
    """
    origin = connection.headers.get("origin")
    if origin is None:
        return connection.headers.get("sec-fetch-site") in (None, *OWN_SITE)
    host, https = connection.headers.get("host", ""), is_https(connection, origins)
    return origins.is_own(origin, host, https=https) or origins.is_named(origin)


def client_address(connection: Connection, origins: OriginPolicy) -> Address | None:
    """Return the client's address: the peer's, or the last one in `X-Forwarded-For` that is not a trusted proxy's."""
    peer = _parsed(connection.client.host if connection.client else "")
    if peer is None or not _trusted(peer, origins.proxies):
        return peer
    hops = ",".join(connection.headers.getall("x-forwarded-for", [])).split(",")
    for hop in reversed(hops):
        address = _parsed(hop.strip())
        if address is None or not _trusted(address, origins.proxies):
            return address or peer
    return peer


def is_https(connection: Connection, origins: OriginPolicy) -> bool:
    """Whether the client's connection is encrypted, according to a trusted proxy or the operator."""
    peer = _parsed(connection.client.host if connection.client else "")
    if peer is not None and _trusted(peer, origins.proxies) and "x-forwarded-proto" in connection.headers:
        return connection.headers["x-forwarded-proto"].rpartition(",")[2].strip() in ("https", "wss")
    public = origins.public_url is not None and origins.public_url.startswith("https:")
    return public or connection.scope.get("scheme") in ("https", "wss")


def base_url(connection: Connection, origins: OriginPolicy) -> str:
    """Return the URL of this server as the client knows it, without a trailing slash."""
    if origins.public_url is not None:
        return origins.public_url
    return f"{'https' if is_https(connection, origins) else 'http'}://{connection.headers.get('host', '')}"


def client_network(connection: Connection, origins: OriginPolicy) -> str | None:
    """Return the client's network, for limits. None for this machine, unless its clients count."""
    address = client_address(connection, origins)
    if address is None or (is_local(connection, origins) and not origins.count_loopback):
        return None
    bits = IPV4_PREFIX if isinstance(address, IPv4Address) else IPV6_PREFIX
    return str(ip_network((address, bits), strict=False))


def client_machine(connection: Connection, origins: OriginPolicy) -> str | None:
    """Return the client's machine, for limits: an IPv4 address, or the prefix of an IPv6 address."""
    address = client_address(connection, origins)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, IPV6_HOST_PREFIX), strict=False))
    return None if address is None else str(address)


def is_local(connection: Connection, origins: OriginPolicy) -> bool:
    """Whether the client is on this machine, and not behind an undeclared proxy on it."""
    address = client_address(connection, origins)
    return address is not None and address.is_loopback and "x-forwarded-for" not in connection.headers


def parse_networks(words: Iterable[str]) -> tuple[AddressRange, ...]:
    """Parse the operator's addresses and networks. Raises `ValueError`."""
    return tuple(ip_network(word, strict=False) for word in words)


def _trusted(address: Address, proxies: Sequence[AddressRange]) -> bool:
    return any(address in network for network in proxies)


def _parsed(text: str) -> Address | None:
    """Return the address without its port. An IPv4 address mapped to IPv6 becomes IPv4."""
    bare = text.rpartition(":")[0] if text.count(":") == 1 else text.strip("[]").partition("]")[0]
    try:
        address = ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
