"""OAuth for MCP clients: scopes, redirect URIs, PKCE, the metadata of clients, and the secrets of a grant."""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable
from datetime import datetime
from hashlib import sha256
from typing import Literal, TypeAlias, get_args
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import msgspec

from khala.domain import ids
from khala.domain.access import Scope, key_hash
from khala.domain.chat import WireStruct

OAuthScope: TypeAlias = Literal["khala:read", "khala:write"]
OAUTH_SCOPES: tuple[OAuthScope, ...] = get_args(OAuthScope)
"""The scopes of MCP clients. `khala:write` includes `khala:read`."""

CODE_PREFIX = "khala_code_"
ACCESS_PREFIX = "khala_mcp_"
REFRESH_PREFIX = "khala_refresh_"
"""Prefixes of the secrets of a grant, so that people and secret scanners recognise them."""
MAX_SECRET_CHARACTERS = 256

MAX_URI_CHARACTERS = 2048
MAX_REDIRECT_URIS = 10
MAX_NAME_CHARACTERS = 100
"""Longer names of clients are truncated."""
UNNAMED = "Unnamed app"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
NO_APP_SCHEMES = frozenset(
    {
        "about", "blob", "chrome", "chrome-extension", "content", "data", "file", "filesystem", "ftp", "intent",
        "javascript", "jar", "mailto", "moz-extension", "sms", "tel", "vbscript", "view-source", "ws", "wss",
    }
)  # fmt: skip
"""Schemes that belong to browsers or to no single app. They cannot be the private-use scheme of an app (RFC 8252)."""
CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
"""A code challenge of the method S256 (RFC 7636, section 4.2)."""
VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
"""A code verifier (RFC 7636, section 4.1)."""


class OAuthError(Exception):
    """An error of an OAuth endpoint. `code` is the one of RFC 6749 or RFC 7591; `message` is for developers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class OAuthClient(msgspec.Struct, frozen=True, kw_only=True):
    """A program that may ask accounts for access. It has chosen its name itself."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]

    def allows_redirect(self, uri: str) -> bool:
        """Whether the client has registered this redirect URI; with any port on a loopback host (RFC 8252)."""
        return any(_redirect_matches(registered, uri) for registered in self.redirect_uris)


class ClientMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a client that are used (RFC 7591, section 2). Others are ignored."""

    redirect_uris: tuple[str, ...]
    client_name: str | None = None
    grant_types: tuple[str, ...] = ("authorization_code",)
    response_types: tuple[str, ...] = ("code",)


class ClientGrant(WireStruct, frozen=True, kw_only=True):
    """The access of an MCP client to an account. `resource` is the MCP server that it may use."""

    id: UUID
    client_id: str
    client_name: str
    redirect_host: str
    """The host, or the scheme of the app, to which the client was sent back."""
    resource: str
    scopes: tuple[OAuthScope, ...]
    created_at: datetime
    used_at: datetime | None = None
    expires_at: datetime
    """Unless the client refreshes its access before."""


class GrantSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A code, an access token or a refresh token. `family` is common to all secrets of one grant.

    So a secret that was replaced still identifies its grant, of which only the hashes of current secrets are stored.
    """

    prefix: str
    family: str
    proof: str

    @property
    def text(self) -> str:
        """The secret as the client sends it."""
        return f"{self.prefix}{self.family}.{self.proof}"

    @property
    def family_hash(self) -> bytes:
        """The stored hash that finds the grant."""
        return key_hash(self.family)

    @property
    def proof_hash(self) -> bytes:
        """The stored hash of this secret."""
        return key_hash(f"{self.prefix}{self.proof}")


def new_secret(prefix: str, family: str) -> GrantSecret:
    """A new secret of a grant."""
    return GrantSecret(prefix=prefix, family=family, proof=ids.new_secret())


def parse_secret(prefix: str, text: str) -> GrantSecret | None:
    """The secret in a request; None if it has not the form of one with this prefix."""
    if not text.startswith(prefix) or len(text) > MAX_SECRET_CHARACTERS or not text.isascii():
        return None
    family, dot, proof = text.removeprefix(prefix).partition(".")
    return GrantSecret(prefix=prefix, family=family, proof=proof) if family and dot and proof else None


def requested_scopes(scope: str | None) -> tuple[OAuthScope, ...]:
    """The scopes of a request; all without the parameter. Unknown ones are ignored, as RFC 6749 allows.

    Raises OAuthError if all are unknown.
    """
    words = frozenset((scope or "").split())
    known = _known(words) if words else OAUTH_SCOPES
    if not known:
        raise OAuthError("invalid_scope", f"The scopes of this server are {' and '.join(OAUTH_SCOPES)}.")
    return known


def _known(words: Collection[str]) -> tuple[OAuthScope, ...]:
    """The known scopes among these, with those that they include."""
    if "khala:write" in words:
        return OAUTH_SCOPES
    return tuple(scope for scope in OAUTH_SCOPES if scope in words)


def caller_scopes(scopes: Iterable[str]) -> frozenset[Scope]:
    """The scopes of Khala's own that these scopes of an access token stand for."""
    given: dict[OAuthScope, Scope] = {"khala:read": "read", "khala:write": "write"}
    return frozenset(given[scope] for scope in _known(frozenset(scopes)))


def is_within(resource: str, granted: str) -> bool:
    """Whether a grant for one MCP server covers another: `/mcp` covers all groups, `/mcp/files` only itself."""
    return resource == granted or resource.startswith(f"{granted}/")


def checked_metadata(metadata: ClientMetadata, client_id: str) -> OAuthClient:
    """The client with these metadata. Raises OAuthError."""
    if not 1 <= len(metadata.redirect_uris) <= MAX_REDIRECT_URIS:
        raise OAuthError("invalid_redirect_uri", f"Register 1 to {MAX_REDIRECT_URIS} redirect URIs.")
    for uri in metadata.redirect_uris:
        _check_redirect_uri(uri)
    if "authorization_code" not in metadata.grant_types or "code" not in metadata.response_types:
        raise OAuthError("invalid_client_metadata", "This server supports only the grant type authorization_code.")
    name = "".join(filter(str.isprintable, metadata.client_name or ""))[:MAX_NAME_CHARACTERS].strip()
    return OAuthClient(id=client_id, name=name or UNNAMED, redirect_uris=metadata.redirect_uris)


HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
"""A host and perhaps a port."""


def _check_redirect_uri(uri: str) -> None:
    split = _split(uri)
    if split is None:
        raise OAuthError("invalid_redirect_uri", "A redirect URI is absolute, printable ASCII, and has no fragment.")
    is_web = split.scheme in ("http", "https")
    if is_web and (not split.hostname or split.username is not None or split.password is not None):
        raise OAuthError("invalid_redirect_uri", "A redirect URI needs a host, and no user name.")
    if is_web and not HOST.fullmatch(split.netloc):
        # The host becomes a part of the consent page's policy.
        raise OAuthError(
            "invalid_redirect_uri", "The host of a redirect URI has only letters, digits, dots and dashes."
        )
    if split.scheme == "http" and split.hostname not in LOOPBACK_HOSTS:
        raise OAuthError("invalid_redirect_uri", "A redirect URI with http must be on a loopback host. Use https.")
    if split.scheme in NO_APP_SCHEMES:
        raise OAuthError("invalid_redirect_uri", f"A redirect URI may not have the scheme {split.scheme}.")


def _split(uri: str) -> SplitResult | None:
    """The parts of an absolute URI without a fragment; None for any other text."""
    if len(uri) > MAX_URI_CHARACTERS or not re.fullmatch(r"[!-~]+", uri) or set(uri) & set('#\\"<>^`{|}'):
        return None
    try:
        split = urlsplit(uri)
        _ = split.port
    except ValueError:
        return None
    return split if split.scheme and (split.netloc or split.path) else None


def _redirect_matches(registered: str, requested: str) -> bool:
    if registered == requested:
        return True
    one, other = _split(registered), _split(requested)
    if one is None or other is None or one.scheme != "http" or other.scheme != "http":
        return False
    # The user of a loopback address is part of `netloc`, which is not compared.
    is_loopback = one.hostname in LOOPBACK_HOSTS and "@" not in other.netloc
    return is_loopback and (one.hostname, one.path, one.query) == (other.hostname, other.path, other.query)


def redirect_host(uri: str) -> str:
    """The host and port of a redirect URI that people are shown; for an app, its scheme, as in `com.example.app:`."""
    split = urlsplit(uri)
    return split.netloc if split.scheme in ("http", "https") else f"{split.scheme}:"


def is_on_this_computer(uri: str) -> bool:
    """Whether a program on the person's own computer receives the redirect, which no server can identify."""
    split = urlsplit(uri)
    return split.scheme != "https"


def check_challenge(challenge: str | None, method: str | None) -> str:
    """The code challenge of a request. Raises OAuthError unless its method is S256."""
    if challenge is None or method != "S256" or not CHALLENGE.fullmatch(challenge):
        raise OAuthError("invalid_request", "PKCE is required: send code_challenge with code_challenge_method=S256.")
    return challenge


def verifies(verifier: str, challenge: str) -> bool:
    """Whether the code verifier belongs to the challenge."""
    if not VERIFIER.fullmatch(verifier):
        return False
    digest = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=")
    return hmac.compare_digest(digest, challenge.encode())
