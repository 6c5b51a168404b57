"""Khala's metadata as an OAuth client of MCP servers, and the addresses of its routes for that."""

from typing import Any

CALLBACK = "/api/connections/callback"
CLIENT_METADATA = "/api/connections/client-metadata"
CLIENT_NAME = "Khala"


def client_metadata(base_url: str) -> dict[str, Any]:
    """Khala's metadata as a client (RFC 7591). `base_url` is the address of this server."""
    return {
        "client_name": CLIENT_NAME,
        "client_uri": base_url,
        "redirect_uris": [base_url + CALLBACK],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
    }


def document_url(public_url: str | None) -> str | None:
    """The address of Khala's client id metadata document; None without a public https address."""
    return public_url + CLIENT_METADATA if public_url is not None and public_url.startswith("https://") else None


def client_document(base_url: str) -> dict[str, Any]:
    """The document whose address is Khala's client id (OAuth Client ID Metadata Documents)."""
    return {
        "client_id": base_url + CLIENT_METADATA,
        **client_metadata(base_url),
        "token_endpoint_auth_method": "none",
    }
