"""The allowed `Host` names of a server: a defence against DNS rebinding."""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

ANY = "*"
LOOPBACK = "localhost"


class AllowedHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The names and addresses that a `Host` header may have. The loopback names are always allowed.

    The name `*` allows every host, and `*.example.com` every name below `example.com`. Ports are not compared.
    """

    names: tuple[str, ...] = (ANY,)

    @property
    def allows_any(self) -> bool:
        """Whether every host is allowed, and also a request without a `Host` header."""
        return ANY in self.names

    def allows(self, host: str | None) -> bool:
        """Whether a request with this `Host` header is allowed."""
        if self.allows_any:
            return True
        name = None if host is None else host_name(host)
        return name is not None and (is_loopback(name) or any(_matches(name, allowed) for allowed in self.names))


def choose_hosts(configured: Sequence[str], public_url: str | None, *, listening: str) -> AllowedHosts:
    """The allowed hosts of a server that listens at this address. `configured` has passed `validated_host`.

    Without configured names and a public URL, a server that listens on loopback allows only the loopback names. A
    server that other machines can reach allows every host, because its own name is unknown.
    """
    if configured:
        return AllowedHosts(names=tuple(configured))
    if public_url is not None:
        return AllowedHosts(names=(_idna_encoded(urlsplit(public_url).hostname or ""),))
    return AllowedHosts(names=() if is_loopback(host_name(_bracketed(listening)) or "") else (ANY,))


def host_name(host: str) -> str | None:
    """The name or address in a `Host` header, in lower case and without the port; None if it is malformed."""
    name, _, port = host.rpartition(":") if _has_port(host) else (host, "", "")
    if port and not (port.isascii() and port.isdigit()):
        return None
    if name.startswith("[") != name.endswith("]"):
        return None
    name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
    return name if name and name.isascii() and not set(name) & set(" /\\@?#,") else None


def is_loopback(name: str) -> bool:
    """Whether the name is a loopback name or address, which DNS does not resolve."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == LOOPBACK or name.endswith(f".{LOOPBACK}")


def validated_host(given: str) -> str:
    """A host from the configuration, in the normal form for comparison. Raises `ValueError` if it is malformed."""
    name = given if given == ANY else host_name(_bracketed(given))
    if name is None or _has_port(_bracketed(given)) or "*" in (name if name != ANY else "").removeprefix("*."):
        raise ValueError(f"{given!r} is not a host name or address")
    return name


def _idna_encoded(name: str) -> str:
    """The name as browsers send it: non-ASCII names are IDNA-encoded."""
    try:
        return name.encode("idna").decode().removesuffix(".")
    except UnicodeError:
        return name.removesuffix(".")


def _bracketed(given: str) -> str:
    """An IPv6 address in brackets, as in a `Host` header; anything else unchanged."""
    return f"[{given}]" if given.count(":") > 1 and not given.startswith("[") else given


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def _matches(name: str, allowed: str) -> bool:
    return name.endswith(allowed[1:]) if allowed.startswith("*.") else name == allowed
