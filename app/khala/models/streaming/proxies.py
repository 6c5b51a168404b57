"""Finds the proxy for an address in the environment variables that most programs read."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.request import getproxies, proxy_bypass

from yarl import URL


def find_proxy(url: URL) -> URL | None:
    """The proxy of `http_proxy`, `https_proxy` or `all_proxy`, unless `no_proxy` excepts the host or its network.

    Raises `ValueError` for a proxy that doesn't speak HTTP.
    """
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or not url.host or _is_excepted(url, proxies):
        return None
    proxy = URL(address if "://" in address else f"http://{address}")
    if proxy.scheme not in ("http", "https"):
        raise ValueError(f"{proxy.scheme} proxies can't be used: name one that speaks HTTP, or except {url.host}.")
    return proxy


def _is_excepted(url: URL, proxies: Mapping[str, str]) -> bool:
    return proxy_bypass(f"{url.host}:{url.port}") or any(
        _is_in_network(url.host or "", network.strip()) for network in proxies.get("no", "").split(",")
    )


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        return False
