"""Connections to the open internet only: each host's addresses are looked at, and just those are connected to."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

import httpcore

from khala.tools.port import ToolError

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPNetwork: TypeAlias = IPv4Network | IPv6Network
ResolveHost: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host's addresses, as text."""

PORTS = frozenset({80, 443})
MOST_ADDRESSES = 4
"""Addresses of one host that are tried."""
LOOKUPS = 8
"""Names that are looked up at once: each takes a thread for as long as the name server likes."""
UNICAST6 = IPv6Network("2000::/3")
NEVER: tuple[IPNetwork, ...] = (
    # What answers cloud machines about themselves, at an address that looks like any other.
    IPv4Network("168.63.129.16/32"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2001::/23"),
    IPv6Network("2001:db8::/32"),
    IPv6Network("3fff::/20"),
    IPv6Network("5f00::/16"),
)
NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


class HostResolver:
    """A host's addresses, as this machine sees them."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LOOKUPS)

    async def __call__(self, host: str, port: int) -> list[str]:
        """Look them up. Raises `OSError`."""
        async with self._places:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]


def networks(words: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Addresses and networks as an operator names them. Raises `ValueError`."""
    return tuple(ip_network(word, strict=False) for word in words)


def is_public(address: IPAddress) -> bool:
    """Whether it is one of the open internet, and leads to nothing else in disguise."""
    if isinstance(address, IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
        if address not in UNICAST6 or address.scope_id is not None:
            return False
    if any(address in network for network in NEVER):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that this one is a way to."""
    if any(address in network for network in NAT64):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


class SsrfGuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to public addresses, and to those in the networks that the operator allows.

    A name is looked up once for each connection, and the connection goes to an address that was looked at: a name that
    answers otherwise the next time changes nothing. All of a name's addresses must be good.
    """

    def __init__(self, allow: Sequence[IPNetwork], resolve: ResolveHost) -> None:
        self._allow = allow
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
        """A connection to one of the host's addresses. Raises `ToolError` (`forbidden`) where that may not be."""
        refused: Exception | None = None
        for address in (await self._addresses(host, port))[:MOST_ADDRESSES]:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                refused = error
        raise ToolError(f"{host} can't be connected to.", code="unavailable") from refused

    async def _addresses(self, host: str, port: int) -> list[IPAddress]:
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except (OSError, UnicodeError, ValueError) as error:
            raise ToolError(f"There is no host {host}.", code="not_found") from error
        if not found:
            raise ToolError(f"There is no host {host}.", code="not_found")
        for address in found:
            if self._allowed(address):
                continue
            if not is_public(address):
                raise ToolError(f"{host} is not on the open internet, and may not be fetched.", code="forbidden")
            if port not in PORTS:
                raise ToolError(f"Port {port} may not be fetched from, only 80 and 443.", code="forbidden")
        return found

    def _allowed(self, address: IPAddress) -> bool:
        bare = (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
        return any(bare in network for network in self._allow)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise ToolError("Only hosts can be fetched from.", code="forbidden")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)
