"""The issuers of JWTs with which an application's own users sign in, and the keys of each.

A token is verified by the issuer that it names. Its signature has an algorithm that the issuer's configuration names:
asymmetric ones for keys of a JWKS address, HMAC for shared secrets. So no token can choose how it is verified.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec
import structlog
from joserfc.jwk import OctKey
from msgspec import Meta

from khala.domain.errors import Unauthorized, Unavailable
from khala.identity import id_tokens, jwt_claims
from khala.identity.cached_value import CachedValue
from khala.identity.id_tokens import PublicKey, TokenHeader
from khala.identity.jwt_claims import ClaimNames, JwtExpectations, JwtIdentity, VerificationKey
from khala.identity.oidc_http import OidcHttpClient

log = structlog.get_logger()

KEYS_MAX_AGE_SECONDS = 3600.0
"""The age at which cached keys are fetched again."""
KEYS_MIN_AGE_SECONDS = 10.0
"""The age from which on an unknown key id fetches the keys again. It limits fetches by forged key ids."""
KEYS_MAX_STALE_SECONDS = 24 * 3600.0
"""The age up to which keys are used while their issuer does not answer."""

Text = Annotated[str, Meta(min_length=1, max_length=1000)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=20)]


class JwtIssuer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One issuer of the configuration. Its keys come from `jwks_url`, or are the secrets of `secret_env` or
    `secret_file`.

    With `trust_email`, all addresses count as verified; else only those of tokens whose claim says so. Who is in one of
    `admin_groups` is an administrator.
    """  # noqa: D205

    issuer: Text
    audience: Text | Texts
    algorithms: Texts
    jwks_url: Text | None = None
    secret_env: Text | Texts | None = None
    secret_file: Text | None = None
    clock_skew_seconds: Annotated[int, Meta(ge=0, le=300)] = 60
    claims: ClaimNames = ClaimNames()
    trust_email: bool = False
    admin_groups: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    name: str = ""
    """The name in the configuration. Not a field of it."""
    secrets: tuple[bytes, ...] = ()
    """The values of the secrets. Not a field of the configuration."""

    @property
    def expectations(self) -> JwtExpectations:
        """The conditions that a token of this issuer must meet."""
        return JwtExpectations(
            issuer=self.issuer,
            audience=(self.audience,) if isinstance(self.audience, str) else self.audience,
            algorithms=self.algorithms,
            clock_skew_seconds=self.clock_skew_seconds,
            claims=self.claims,
            trust_email=self.trust_email,
            admin_groups=frozenset(self.admin_groups),
        )


class _KeySet(msgspec.Struct):
    keys: list[dict[str, Any]]


class _Verifier:
    """Verifies tokens of one issuer."""

    def __init__(self, issuer: JwtIssuer, elapsed: Callable[[], float]) -> None:
        self.expectations = issuer.expectations
        self._issuer = issuer
        self._secrets = tuple(OctKey.import_key(secret) for secret in issuer.secrets)
        self._http = None if issuer.jwks_url is None else OidcHttpClient(issuer.name, "", None)
        self._keys = CachedValue(self._fetch, elapsed)

    async def keys(self, header: TokenHeader) -> Iterable[VerificationKey]:
        """The keys that may have signed a token with this header. Raises Unauthorized and Unavailable."""
        if self._http is None:
            return self._secrets
        key = id_tokens.select_key(header, await self._known_keys())
        if key is None:
            # An unknown key may be new, because issuers rotate keys at any time.
            key = id_tokens.select_key(header, await self._keys.get(max_age=KEYS_MIN_AGE_SECONDS))
        if key is None:
            raise id_tokens.invalid_token_error()
        return (key,)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()

    async def _known_keys(self) -> tuple[PublicKey, ...]:
        """The keys, which may be old while they can't be fetched, and while another request fetches them."""
        known = self._keys.last(max_age=KEYS_MAX_STALE_SECONDS)
        if known is not None and self._keys.fetching:
            return known
        try:
            return await self._keys.get(max_age=KEYS_MAX_AGE_SECONDS)
        except Unavailable as error:
            if known is None:
                raise
            log.warning("jwt_keys_not_fetched", issuer=self._issuer.name, error=str(error.__cause__))
            return known

    async def _fetch(self) -> tuple[PublicKey, ...]:
        assert self._http is not None
        assert self._issuer.jwks_url is not None
        return id_tokens.read_keys((await self._http.fetch(self._issuer.jwks_url, _KeySet)).keys)


class JwtIssuers:
    """All issuers. `clock` returns seconds of the epoch; `elapsed` is a monotonic clock."""

    def __init__(
        self,
        issuers: Sequence[JwtIssuer] = (),
        *,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._verifiers = {issuer.issuer: _Verifier(issuer, elapsed) for issuer in issuers}

    async def verify(self, token: str) -> JwtIdentity | None:
        """The user of this token; None if no issuer has the name that it claims.

        Raises Unauthorized for an invalid token, and Unavailable if the issuer's keys can't be fetched. The error says
        no reason; the log does.
        """
        if not self._verifiers:
            return None
        unverified = jwt_claims.decode(token)
        verifier = self._verifiers.get(unverified.issuer)
        if verifier is None:
            return None
        failing = "its algorithm, type or critical header"
        try:
            header = jwt_claims.checked_header(unverified, verifier.expectations)
            failing = "its key, signature or user id"
            keys = await verifier.keys(header)
            return jwt_claims.verify(token, header, keys, verifier.expectations, self._clock())
        except Unauthorized as error:
            log.info("jwt_refused", issuer=unverified.issuer, reason=str(error.__cause__ or failing))
            raise

    async def aclose(self) -> None:
        """Close all connections."""
        for verifier in self._verifiers.values():
            await verifier.aclose()
