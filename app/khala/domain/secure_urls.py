"""Addresses over which secrets may be sent: those with TLS, and those of this machine."""

from ipaddress import ip_address
from urllib.parse import urlsplit

LOOPBACK_NAME = "localhost"


def is_secure(url: str) -> bool:
    """Whether the connection is private: https, or http to a loopback host (localhost, 127.0.0.0/8 or ::1)."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)))


def _is_loopback(host: str) -> bool:
    try:
        return host == LOOPBACK_NAME or ip_address(host).is_loopback
    except ValueError:
        return False
