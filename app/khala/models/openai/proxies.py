"""The proxy that the environment names for an address, as most programs read it."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.request import getproxies, proxy_bypass

from yarl import URL


def of(url: URL) -> URL | None:
    """The proxy of `http_proxy`, `https_proxy` or `all_proxy`, unless `no_proxy` excepts the host or its network.

    Raises `ValueError` for a proxy that doesn't speak HTTP.
    """
    found = getproxies()
    named = found.get(url.scheme) or found.get("all")
    if not named or not url.host or _excepted(url, found):
        return None
    proxy = URL(named if "://" in named else f"http://{named}")
    if proxy.scheme not in ("http", "https"):
        raise ValueError(f"{proxy.scheme} proxies can't be used: name one that speaks HTTP, or except {url.host}.")
    return proxy


def _excepted(url: URL, found: Mapping[str, str]) -> bool:
    return proxy_bypass(f"{url.host}:{url.port}") or any(
        _within(url.host or "", name.strip()) for name in found.get("no", "").split(",")
    )


def _within(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return False
