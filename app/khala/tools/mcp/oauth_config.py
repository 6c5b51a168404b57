"""The configuration of access tokens for an MCP server: for Khala itself, or for each account."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from khala.domain.secure_urls import is_secure
from khala.tools.config_files import ConfigFileError

NEEDS_TLS = "must begin with https://, except for localhost, 127.0.0.0/8 and ::1: secrets are sent there."


class McpOAuthConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The client that Khala is for the authorization server of an MCP server.

    With the flow `client_credentials`, the operator has registered the client, and all people act as this client. With
    `authorization_code`, each account connects its own account at the server. The client may be registered there,
    too; without a `client_id`, Khala names its metadata document, or registers itself. Without an `issuer`, the
    authorization server is on the origin of the MCP server.

    The secret is sent to the `issuer` alone, or to a token endpoint on one of the `origins` that the issuer names.
    """

    flow: Literal["client_credentials", "authorization_code"] = "client_credentials"
    client_id: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    client_secret: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    issuer: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    scope: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"
    origins: Annotated[tuple[str, ...], Meta(max_length=10)] = ()


def check_oauth(oauth: McpOAuthConfig, headers: Mapping[str, str], place: str) -> None:
    """Raise `ConfigFileError` for an invalid configuration. `headers` are those of the server."""
    _check_keys(oauth, place)
    addresses = {"issuer": oauth.issuer, **{f"origins[{at}]": one for at, one in enumerate(oauth.origins)}}
    for key, address in addresses.items():
        if address is not None and not is_address(address):
            raise ConfigFileError(f"{place}.{key}: must be an address such as https://login.example.com.")
        if address is not None and not is_secure(address):
            raise ConfigFileError(f"{place}.{key}: {NEEDS_TLS}")
    if any(name.lower() == "authorization" for name in headers):
        raise ConfigFileError(f"{place}: remove the header Authorization, which oauth sets.")


def _check_keys(oauth: McpOAuthConfig, place: str) -> None:
    required = {
        "client_credentials": ("clientId", "clientSecret", "issuer"),
        "authorization_code": ("issuer",) if oauth.client_id else (),
    }
    given = {"clientId": oauth.client_id, "clientSecret": oauth.client_secret, "issuer": oauth.issuer}
    for key in required[oauth.flow]:
        if given[key] is None:
            raise ConfigFileError(f"{place}.{key}: required with the flow {oauth.flow}.")
    if oauth.client_secret and not oauth.client_id:
        raise ConfigFileError(f"{place}.clientId: a clientSecret belongs to a clientId.")
    if oauth.origins and not oauth.issuer:
        raise ConfigFileError(f"{place}.issuer: origins are those of an issuer.")


def expand_oauth(oauth: McpOAuthConfig, expand: Callable[[str, str], str]) -> McpOAuthConfig:
    """Replace references to variables. `expand` takes a text and its key."""
    texts = {"client_id": "clientId", "client_secret": "clientSecret", "issuer": "issuer"}
    expanded = {
        name: expand(text, f"oauth.{key}") for name, key in texts.items() if (text := getattr(oauth, name)) is not None
    }
    return msgspec.structs.replace(oauth, **expanded)


def is_address(url: str) -> bool:
    """Whether this is an address of HTTP."""
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0 and not split.fragment
    except ValueError:
        return False
    return valid and not any(ord(character) <= 32 for character in url)
