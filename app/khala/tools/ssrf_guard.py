"""The SSRF guard: connects only to public addresses. It connects to exactly the addresses that it has checked."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

import httpcore
import structlog

from khala.tools.port import ToolError

log = structlog.get_logger()

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPNetwork: TypeAlias = IPv4Network | IPv6Network
AddressAndPort: TypeAlias = tuple[IPAddress, int]
ResolveHost: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port, as text."""

PORTS = frozenset({80, 443})
MAX_ADDRESSES = 4
"""Addresses of one host that are tried."""
MAX_LOOKUPS = 8
"""Concurrent lookups of names. Each occupies a thread until the name server responds."""
IPV6_UNICAST = IPv6Network("2000::/3")
NOT_PUBLIC: tuple[IPNetwork, ...] = (
    # The metadata service of a cloud, at an address that looks public.
    IPv4Network("168.63.129.16/32"),
    # Protocol assignments, among them the metadata service of another cloud. Not every Python counts all as private.
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
    IPv6Network("5f00::/16"),
)
NAT64 = IPv6Network("64:ff9b::/96")
"""Leads to IPv4 addresses of the internet. Its counterpart for local use, 64:ff9b:1::/48, is outside of `IPV6_UNICAST`:
where it leads, and how it embeds addresses, is each network's own choice (RFC 8215)."""


class HostResolver:
    """Looks up the addresses of hosts with the name servers of this machine."""

    def __init__(self) -> None:
        self._lookup_slots = asyncio.Semaphore(MAX_LOOKUPS)

    async def __call__(self, host: str, port: int) -> list[str]:
        """Look up the addresses. Raises `OSError`."""
        async with self._lookup_slots:
            addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in addresses]


def parse_networks(words: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Parse the operator's addresses and networks. Raises `ValueError`."""
    return tuple(ip_network(word, strict=False) for word in words)


def is_public(address: IPAddress) -> bool:
    """Whether the address is public, and embeds no other address that is not."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
        if address not in IPV6_UNICAST or address.scope_id is not None:
            return False
    if any(address in network for network in NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that is embedded in this one."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class SsrfGuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to public addresses, to addresses in the networks that the operator allows, and to these `endpoints`.

    It looks a name up once for each connection, and connects to a checked address. So a name with changing addresses
    (DNS rebinding) gains nothing. All addresses of a name must be allowed. Without `reaches_public`, public addresses
    are refused, too.
    """

    def __init__(
        self,
        allow: Sequence[IPNetwork],
        resolve: ResolveHost,
        endpoints: Collection[AddressAndPort] = (),
        *,
        reaches_public: bool = True,
    ) -> None:
        self._allow = allow
        self._reaches_public = reaches_public
        self._endpoints = frozenset(endpoints)
        self._resolve = resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of the host's addresses. Raises `ToolError` (`forbidden`) for a host that is not allowed."""
        last_error: Exception | None = None
        for address in (await self._addresses(host, port))[:MAX_ADDRESSES]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last_error = error
        raise ToolError(f"{host} does not accept connections.", code="unavailable") from last_error

    async def is_in_allowed_network(self, host: str, port: int) -> bool:
        """Whether the host is in the operator's networks. Raises `ToolError` for one that may not be reached."""
        return all(self._allowed(address, port) for address in await self._addresses(host, port))

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        try:
            addresses = [ip_address(text) for text in await self._resolve(host, port)]
        except (OSError, UnicodeError, ValueError) as error:
            log.info("host_not_resolved", host=host, reason=str(error))
            raise _refused(host) from error
        if not addresses:
            raise _refused(host)
        for address in addresses:
            if self._allowed(address, port):
                continue
            if not is_public(address):
                log.info("private_address_refused", host=host, address=str(address))
                raise _refused(host)
            if not self._reaches_public:
                raise ToolError(f"{host} is not in the networks of KHALA_FETCH_ALLOW: use https.", code="forbidden")
            if port not in PORTS:
                raise ToolError(f"Port {port} is not allowed; use 80 or 443.", code="forbidden")
        return addresses

    def _allowed(self, address: IPAddress, port: int) -> bool:
        bare = (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
        return (bare, port) in self._endpoints or any(bare in network for network in self._allow)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Raise `ToolError`: Unix sockets belong to this machine, and are not public."""
        raise ToolError("Unix sockets can't be fetched from.", code="forbidden")

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        await asyncio.sleep(seconds)


def _refused(host: str) -> ToolError:
    """The refusal of a host. It is the same for a name that does not exist and for one that is not public.

    Otherwise anybody who may name a host could find out which names of the inner network exist.
    """
    reason = "has" if _is_address(host) else "does not exist, or has"
    return ToolError(
        f"{host} {reason} an address that is not public, so no request is sent to it. The operator can allow its "
        f"network with KHALA_FETCH_ALLOW.",
        code="forbidden",
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
