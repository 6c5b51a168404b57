"""Sign-in at an OpenID Provider, with this server as the relying party of one issuer."""

import secrets
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from khala.domain.accounts import Identity
from khala.domain.errors import InvalidInput, Unauthorized, Unavailable
from khala.domain.names import claimed_name
from khala.domain.secure_urls import is_secure
from khala.identity import id_tokens
from khala.identity.cached_value import CachedValue
from khala.identity.oidc_http import OidcHttpClient, ProviderEndpoints
from khala.identity.passwords import normalized_email

METADATA_MAX_AGE_SECONDS = 3600.0
"""The maximum age of a provider's cached metadata and keys."""
KEYS_MIN_AGE_SECONDS = 10.0
"""The minimum age of cached keys before an unknown key id refreshes them. It limits refreshes by forged key ids."""
MAX_CODE_CHARACTERS = 4096


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The OpenID Provider, and this server's registration as a client."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    """None for a public client, which is protected by PKCE alone."""
    scopes: str = "openid email profile"
    audience: str | None = None
    """The required audience of bearer tokens. None: `client_id`, and the token must have been issued to this client."""
    name: str
    """The provider's name on the button "Sign in with …"."""


class StartedSignIn(msgspec.Struct, frozen=True):
    """A pending sign-in: the browser goes to `url`. The other fields are secrets of the server and this browser."""

    url: str
    state: str
    nonce: str
    verifier: str


class VerifiedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A user as verified by the provider. The e-mail address belongs to them only if `email_verified`."""

    issuer: str
    subject: str
    email: str | None = None
    email_verified: bool = False
    name: str | None = None

    @property
    def identity(self) -> Identity:
        """The identity that an account stores."""
        email = self.email if self.email_verified else None
        return Identity(issuer=self.issuer, subject=self.subject, email=email, name=self.name)


class CompletedSignIn(VerifiedIdentity, frozen=True, kw_only=True):
    """A completed sign-in. Signing out at the provider needs `id_token`."""

    id_token: str


class BearerIdentity(VerifiedIdentity, frozen=True, kw_only=True):
    """The user of a bearer token, and its scopes."""

    expires_at: datetime
    scopes: frozenset[str] = frozenset()


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class _UserInfo(msgspec.Struct):
    """OpenID Connect Core 1.0, section 5.3.2."""

    sub: str
    email: Any = None
    email_verified: Any = None
    name: Any = None


class OidcProvider:
    """The client of one issuer. `clock` returns seconds of the epoch; `elapsed` is a monotonic clock.

    Raises ValueError for an issuer that is neither https nor loopback. Every method may raise Unavailable, with the
    seconds until a retry.
    """

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        if not is_secure(settings.issuer):
            raise ValueError(f"The issuer {settings.issuer} must begin with https://.")
        self.settings = settings
        self._clock = clock
        self._http = OidcHttpClient(settings.name, settings.client_id, settings.client_secret)
        self._endpoints = CachedValue(self._discover, elapsed)
        self._keys = CachedValue(self._fetch_keys, elapsed)

    async def begin(self, redirect_uri: str) -> StartedSignIn:
        """Start a sign-in, which returns to `redirect_uri` with a code."""
        endpoints = await self._endpoints.get(max_age=METADATA_MAX_AGE_SECONDS)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        url = self._http.authorization_url(
            endpoints.authorization_endpoint,
            verifier,
            redirect_uri=redirect_uri,
            scope=self.settings.scopes,
            state=state,
            nonce=nonce,
        )
        return StartedSignIn(url, state, nonce, verifier)

    async def finish(self, *, code: str, redirect_uri: str, verifier: str, nonce: str) -> CompletedSignIn:
        """Exchange the code for the user's identity. Raises Unauthorized for an invalid code or token."""
        if not 0 < len(code) <= MAX_CODE_CHARACTERS or not (code.isascii() and code.isprintable()):
            raise id_tokens.invalid_token_error()
        endpoints = await self._endpoints.get(max_age=METADATA_MAX_AGE_SECONDS)
        parameters = {"code": code, "redirect_uri": redirect_uri, "code_verifier": verifier}
        response = await self._http.exchange_code(endpoints, **parameters)
        if response.id_token is None:
            raise Unauthorized(f"{self.settings.name} returned no ID token. Sign in again.")
        claims = await self._claims(response.id_token, self._expected(nonce))
        profile = await self._profile(endpoints, claims, response.access_token)
        return CompletedSignIn(**self._verified(claims.sub, profile), id_token=response.id_token)

    async def verify(self, token: str) -> BearerIdentity:
        """The user of this access token or ID token of the issuer. Raises Unauthorized for any other string."""
        return self._bearer(await self._claims(token, self._expected_bearer()))

    async def verify_for(self, token: str, audience: str) -> BearerIdentity:
        """The user of this access token of the issuer for the audience. Raises Unauthorized for any other string."""
        expected = id_tokens.TokenExpectations(self.settings.issuer, audience, None, id_tokens.BEARER_TOKEN_TYPES)
        return self._bearer(await self._claims(token, expected))

    def _bearer(self, claims: id_tokens.TokenClaims) -> BearerIdentity:
        scope = claims.scope if isinstance(claims.scope, str) else ""
        return BearerIdentity(
            **self._verified(claims.sub, claims), expires_at=claims.expires_at, scopes=frozenset(scope.split())
        )

    async def end_session_url(self, id_token: str | None, post_logout_redirect_uri: str) -> str | None:
        """The URL at which the browser also signs out at the provider.

        None if the provider has none or is unavailable: signing out of this server does not depend on it.
        """
        try:
            endpoint = (await self._endpoints.get(max_age=METADATA_MAX_AGE_SECONDS)).end_session_endpoint
        except Unavailable:
            return None
        if endpoint is None:
            return None
        hint = {} if id_token is None else {"id_token_hint": id_token}
        return self._http.end_session_url(endpoint, post_logout_redirect_uri=post_logout_redirect_uri, **hint)

    async def aclose(self) -> None:
        """Close the connections to the provider."""
        await self._http.aclose()

    def _expected(self, nonce: str) -> id_tokens.TokenExpectations:
        client = self.settings.client_id
        return id_tokens.TokenExpectations(self.settings.issuer, client, client, nonce=nonce)

    def _expected_bearer(self) -> id_tokens.TokenExpectations:
        client, audience = self.settings.client_id, self.settings.audience
        party = client if audience is None else None
        return id_tokens.TokenExpectations(
            self.settings.issuer, audience or client, party, id_tokens.BEARER_TOKEN_TYPES
        )

    async def _claims(self, token: str, expected: id_tokens.TokenExpectations) -> id_tokens.TokenClaims:
        header = id_tokens.decode_header(token)
        key = await self._key(header)
        return id_tokens.verify_claims(token, header, key, expected, self._clock())

    async def _key(self, header: id_tokens.TokenHeader) -> id_tokens.PublicKey:
        """The key of this header. An unknown key may be new, because providers rotate keys at any time."""
        for max_age in (METADATA_MAX_AGE_SECONDS, KEYS_MIN_AGE_SECONDS):
            key = id_tokens.select_key(header, await self._keys.get(max_age=max_age))
            if key is not None:
                return key
        raise id_tokens.invalid_token_error()

    async def _profile(
        self, endpoints: ProviderEndpoints, claims: id_tokens.TokenClaims, access_token: str | None
    ) -> "id_tokens.TokenClaims | _UserInfo":
        """The user's profile, from userinfo if the ID token omits it (OpenID Connect Core 1.0, section 5.4)."""
        if claims.email is not None or endpoints.userinfo_endpoint is None or access_token is None:
            return claims
        profile = await self._http.fetch(endpoints.userinfo_endpoint, _UserInfo, access_token=access_token)
        if profile.sub != claims.sub:
            raise id_tokens.invalid_token_error()
        return profile

    def _verified(self, subject: str, profile: "id_tokens.TokenClaims | _UserInfo") -> dict[str, Any]:
        email = _email(profile.email)
        return {
            "issuer": self.settings.issuer,
            "subject": subject,
            "email": email,
            "email_verified": email is not None and profile.email_verified is True,
            "name": claimed_name(profile.name),
        }

    async def _discover(self) -> ProviderEndpoints:
        url = self.settings.issuer.removesuffix("/") + "/.well-known/openid-configuration"
        endpoints = await self._http.fetch(url, ProviderEndpoints)
        used = (endpoints.authorization_endpoint, endpoints.token_endpoint, endpoints.jwks_uri)
        optional = (endpoints.userinfo_endpoint, endpoints.end_session_endpoint)
        if endpoints.issuer != self.settings.issuer or not all(
            is_secure(url) for url in (*used, *filter(None, optional))
        ):
            raise self._http.unavailable() from ValueError(
                f"{url} names another issuer, or has an endpoint without https"
            )
        return endpoints

    async def _fetch_keys(self) -> tuple[id_tokens.PublicKey, ...]:
        endpoints = await self._endpoints.get(max_age=METADATA_MAX_AGE_SECONDS)
        return id_tokens.read_keys((await self._http.fetch(endpoints.jwks_uri, _KeySet)).keys)


def _email(claim: object) -> str | None:
    try:
        return normalized_email(claim) if isinstance(claim, str) else None
    except InvalidInput:
        return None
