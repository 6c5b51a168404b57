"""Signing in at an OpenID Provider: this server as the relying party of one issuer."""

import secrets
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from khala.domain.accounts import Identity
from khala.domain.errors import InvalidInput, Unauthorized, Unavailable
from khala.identity import id_tokens
from khala.identity.cached_value import Kept
from khala.identity.oidc_http import Calls, Endpoints, secure
from khala.identity.passwords import normalized_email

KEPT = 3600.0
"""Seconds for which what a provider says of itself, its keys too, isn't asked for again."""
KEYS_AGAIN = 10.0
"""Seconds at least between two looks for a key that isn't known: invented keys don't become calls to the provider."""
LONGEST_CODE = 4096
LONGEST_NAME = 200
"""Characters; the rest is cut off."""


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where people sign in, and as which client this server sends them there."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    """None for a public client, which PKCE alone protects."""
    scopes: str = "openid email profile"
    audience: str | None = None
    """Whom a Bearer token must be for. None: `client_id`, and then it must have been issued to this client too."""
    name: str
    """As on the button: Sign in with …"""


class Begun(msgspec.Struct, frozen=True):
    """A sign-in on its way: the browser goes to `url`, the rest is kept from everyone but this browser."""

    url: str
    state: str
    nonce: str
    verifier: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whom the provider vouches for. The e-mail address is theirs only where `email_verified`."""

    issuer: str
    subject: str
    email: str | None = None
    email_verified: bool = False
    name: str | None = None

    @property
    def identity(self) -> Identity:
        """As an account remembers it."""
        email = self.email if self.email_verified else None
        return Identity(issuer=self.issuer, subject=self.subject, email=email, name=self.name)


class SignedIn(Verified, frozen=True, kw_only=True):
    """Somebody who has just signed in; `id_token` is what signing out there needs."""

    id_token: str


class Bearer(Verified, frozen=True, kw_only=True):
    """Somebody whose token was sent along with a request."""

    expires_at: datetime


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class _UserInfo(msgspec.Struct):
    """OpenID Connect Core 1.0, section 5.3.2."""

    sub: str
    email: Any = None
    email_verified: Any = None
    name: Any = None


class Provider:
    """One issuer. `clock` tells the time in seconds of the epoch; `elapsed` is never set back.

    ValueError for an issuer that is neither https nor this machine. Every method may raise Unavailable with the
    seconds after which to try again.
    """

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        if not secure(settings.issuer):
            raise ValueError(f"The issuer {settings.issuer} must begin with https://.")
        self.settings = settings
        self._clock = clock
        self._calls = Calls(settings.name, settings.client_id, settings.client_secret)
        self._endpoints = Kept(self._discover, elapsed)
        self._keys = Kept(self._fetch_keys, elapsed)

    async def begin(self, redirect_uri: str) -> Begun:
        """A new sign-in, which will come back to `redirect_uri` with a code."""
        endpoints = await self._endpoints.get(max_age=KEPT)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url = self._calls.authorization_url(
            endpoints.authorization_endpoint,
            verifier,
            redirect_uri=redirect_uri,
            scope=self.settings.scopes,
            state=state,
            nonce=nonce,
        )
        return Begun(url, state, nonce, verifier)

    async def finish(self, *, code: str, redirect_uri: str, verifier: str, nonce: str) -> SignedIn:
        """Who has signed in; Unauthorized where the code or what it is exchanged for doesn't hold."""
        if not 0 < len(code) <= LONGEST_CODE or not (code.isascii() and code.isprintable()):
            raise id_tokens.invalid()
        endpoints = await self._endpoints.get(max_age=KEPT)
        got = await self._calls.exchanged(endpoints, code=code, redirect_uri=redirect_uri, code_verifier=verifier)
        if got.id_token is None:
            raise Unauthorized(f"{self.settings.name} did not say who signed in.")
        claims = await self._claims(got.id_token, self._expected(nonce))
        about = await self._about(endpoints, claims, got.access_token)
        return SignedIn(**self._verified(claims.sub, about), id_token=got.id_token)

    async def verify(self, token: str) -> Bearer:
        """Who sends this token, an access token or ID token of the issuer; Unauthorized for any other string."""
        claims = await self._claims(token, self._expected_bearer())
        return Bearer(**self._verified(claims.sub, claims), expires_at=claims.expires_at)

    async def end_session_url(self, id_token: str | None, post_logout_redirect_uri: str) -> str | None:
        """Where the browser signs out of the provider too.

        None where that can't be done, or the provider is out of reach: signing out here depends on nobody else.
        """
        try:
            endpoint = (await self._endpoints.get(max_age=KEPT)).end_session_endpoint
        except Unavailable:
            return None
        if endpoint is None:
            return None
        hint = {} if id_token is None else {"id_token_hint": id_token}
        return self._calls.end_session_url(endpoint, post_logout_redirect_uri=post_logout_redirect_uri, **hint)

    async def aclose(self) -> None:
        """Close the connections to the provider."""
        await self._calls.aclose()

    def _expected(self, nonce: str) -> id_tokens.Expected:
        client = self.settings.client_id
        return id_tokens.Expected(self.settings.issuer, client, client, nonce=nonce)

    def _expected_bearer(self) -> id_tokens.Expected:
        client, audience = self.settings.client_id, self.settings.audience
        party = client if audience is None else None
        return id_tokens.Expected(self.settings.issuer, audience or client, party, id_tokens.BEARER_TYPES)

    async def _claims(self, token: str, expected: id_tokens.Expected) -> id_tokens.Claims:
        header = id_tokens.header(token)
        key = await self._key(header)
        return id_tokens.claims(token, header, key, expected, self._clock())

    async def _key(self, header: id_tokens.Header) -> id_tokens.Key:
        """The key of this header. One that isn't known may be new: providers change theirs at any time."""
        for max_age in (KEPT, KEYS_AGAIN):
            key = id_tokens.key_for(header, await self._keys.get(max_age=max_age))
            if key is not None:
                return key
        raise id_tokens.invalid()

    async def _about(
        self, endpoints: Endpoints, claims: id_tokens.Claims, access_token: str | None
    ) -> "id_tokens.Claims | _UserInfo":
        """What the provider says of somebody; an ID token may leave it out (OpenID Connect Core 1.0, section 5.4)."""
        if claims.email is not None or endpoints.userinfo_endpoint is None or access_token is None:
            return claims
        said = await self._calls.fetched(endpoints.userinfo_endpoint, _UserInfo, access_token=access_token)
        if said.sub != claims.sub:
            raise id_tokens.invalid()
        return said

    def _verified(self, subject: str, about: "id_tokens.Claims | _UserInfo") -> dict[str, Any]:
        email = _email(about.email)
        return {
            "issuer": self.settings.issuer,
            "subject": subject,
            "email": email,
            "email_verified": email is not None and about.email_verified is True,
            "name": _name(about.name),
        }

    async def _discover(self) -> Endpoints:
        url = self.settings.issuer.removesuffix("/") + "/.well-known/openid-configuration"
        found = await self._calls.fetched(url, Endpoints)
        used = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        optional = (found.userinfo_endpoint, found.end_session_endpoint)
        if found.issuer != self.settings.issuer or not all(secure(url) for url in (*used, *filter(None, optional))):
            raise self._calls.unavailable() from ValueError(
                f"{url} speaks for another issuer, or names an open endpoint"
            )
        return found

    async def _fetch_keys(self) -> tuple[id_tokens.Key, ...]:
        endpoints = await self._endpoints.get(max_age=KEPT)
        return id_tokens.keys((await self._calls.fetched(endpoints.jwks_uri, _KeySet)).keys)


def _email(said: object) -> str | None:
    try:
        return normalized_email(said) if isinstance(said, str) else None
    except InvalidInput:
        return None


def _name(said: object) -> str | None:
    if not isinstance(said, str):
        return None
    return "".join(filter(str.isprintable, said))[:LONGEST_NAME].strip() or None
