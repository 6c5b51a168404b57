"""Khala's metadata as an OAuth client of MCP servers, and the addresses of its routes for that."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

CLIENT_METADATA = "/api/connections/client-metadata"
CLIENT_NAME = "Khala"


def redirect_uri(base_url: str, server: str) -> str:
    """The address for the return from the authorization server of this MCP server.

    Each has its own, so that one cannot pass off the code of another as its own (mix-up, RFC 9700, section 4.4).
    """
    return f"{base_url}/api/connections/{quote(server, safe='')}/callback"


def client_metadata(base_url: str, servers: Iterable[str]) -> dict[str, Any]:
    """Khala's metadata as a client (RFC 7591) for these MCP servers. `base_url` is the address of this server."""
    return {
        "client_name": CLIENT_NAME,
        "client_uri": base_url,
        "redirect_uris": [redirect_uri(base_url, server) for server in servers],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    }


def document_url(public_url: str | None) -> str | None:
    """The address of Khala's client id metadata document; None without a public https address."""
    return public_url + CLIENT_METADATA if public_url is not None and public_url.startswith("https://") else None


def client_document(base_url: str, servers: Iterable[str]) -> dict[str, Any]:
    """The document whose address is Khala's client id (OAuth Client ID Metadata Documents)."""
    return {
        "client_id": base_url + CLIENT_METADATA,
        **client_metadata(base_url, servers),
        "token_endpoint_auth_method": "none",
    }
