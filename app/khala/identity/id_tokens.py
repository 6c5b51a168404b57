"""Verifies signed tokens and returns their claims. Pure: keys and time arrive as arguments."""

import hmac
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, JoseError, UnsupportedAlgorithmError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from khala.domain.errors import Unauthorized

MAX_TOKEN_CHARACTERS = 16 * 1024
"""Characters of a token."""
MAX_HEADER_CHARACTERS = 4 * 1024
LEEWAY_SECONDS = 60
"""Seconds by which the clocks of provider and server may differ."""
MAX_SUBJECT_CHARACTERS = 255
"""OpenID Connect Core 1.0, section 2."""
MAX_KEYS = 100
LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# No HS*: its key would be the public key or the client secret. No `none`. EdDSA has two names (RFC 8037, RFC 9864).
ALGORITHMS = dict.fromkeys(_RSA, "RSA") | dict.fromkeys(("ES256", "ES384", "ES512"), "EC")
ALGORITHMS |= dict.fromkeys(("EdDSA", "Ed25519"), "OKP")
"""The accepted signature algorithms, each with the type of its key."""
ID_TOKEN_TYPES = ("jwt",)
BEARER_TOKEN_TYPES = ("jwt", "at+jwt", "application/at+jwt")
"""RFC 9068, section 4. A token of another type was issued for something else (RFC 8725, section 3.11)."""

PublicKey: TypeAlias = RSAKey | ECKey | OKPKey


class TokenHeader(msgspec.Struct, frozen=True):
    """The header of a token, which describes its signature."""

    alg: str
    kid: str | None = None
    typ: str = "JWT"
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class TokenExpectations(msgspec.Struct, frozen=True):
    """The required claims of a token. `party` is the client that it must have been issued to; None for any client."""

    issuer: str
    audience: str
    party: str | None
    types: tuple[str, ...] = ID_TOKEN_TYPES
    nonce: str | None = None


class TokenClaims(msgspec.Struct, frozen=True):
    """The claims of a token that are used."""

    sub: str
    exp: float
    aud: str | tuple[str, ...]
    azp: str | None = None
    nonce: str | None = None
    email: Any = None
    email_verified: Any = None
    name: Any = None
    events: Any = None
    scope: Any = None

    @property
    def party(self) -> str | None:
        """The client that the token was issued to (OpenID Connect Core 1.0, section 3.1.3.7)."""
        audience = (self.aud,) if isinstance(self.aud, str) else self.aud
        return audience[0] if self.azp is None and len(audience) == 1 else self.azp

    @property
    def expires_at(self) -> datetime:
        """The expiry of the token."""
        return datetime.fromtimestamp(min(self.exp, LAST_INSTANT.timestamp()), UTC)


class AlgorithmRegistry(JWSRegistry):
    """The accepted algorithms, a subset of the library's. Unknown headers are ignored (RFC 7515, section 4)."""

    max_header_length = MAX_HEADER_CHARACTERS

    def __init__(self) -> None:
        super().__init__(algorithms=tuple(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """The algorithm. The parent's look-up would warn of the name EdDSA."""
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


_REGISTRY = AlgorithmRegistry()
_LIBRARY_ERRORS = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors that the libraries raise for unexpected values."""


def decode_header(token: str) -> TokenHeader:
    """The header of a well-formed token. Raises Unauthorized for any other string."""
    first = token[: MAX_HEADER_CHARACTERS + 1].partition(".")[0]
    if (
        len(token) > MAX_TOKEN_CHARACTERS
        or len(first) > MAX_HEADER_CHARACTERS
        or not token.isascii()
        or token.count(".") != 2
    ):
        raise invalid_token_error()
    try:
        header = msgspec.json.decode(urlsafe_b64decode(first + "=" * (-len(first) % 4)), type=TokenHeader)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise invalid_token_error() from error
    if header.alg not in ALGORITHMS or header.crit is not msgspec.UNSET:
        raise invalid_token_error()
    return header


def read_keys(documents: Iterable[dict[str, Any]]) -> tuple[PublicKey, ...]:
    """The public keys of a key set (RFC 7517, section 5). Unreadable and unsuitable keys are skipped."""
    keys = (_key(document) for document in list(documents)[:MAX_KEYS])
    return tuple(key for key in keys if key is not None)


def select_key(header: TokenHeader, known: Iterable[PublicKey]) -> PublicKey | None:
    """The key that the token's header names. Without a key id, the only suitable key; None if there are several."""
    suitable = [key for key in known if _is_suitable(key, header)]
    return suitable[0] if len(suitable) == 1 or (suitable and header.kid is not None) else None


def verify_claims(
    token: str, header: TokenHeader, key: PublicKey, expected: TokenExpectations, now: float
) -> TokenClaims:
    """The verified claims of the token at `now`, in seconds of the epoch. Raises Unauthorized if anything is wrong."""
    if header.typ.lower() not in expected.types:
        raise invalid_token_error()
    claims = _decode_claims(token, header.alg, key, expected, now)
    valid_subject = 0 < len(claims.sub) <= MAX_SUBJECT_CHARACTERS and claims.sub.isprintable()
    if not valid_subject or claims.events is not None:
        raise invalid_token_error()
    if expected.party is not None and claims.party != expected.party:
        raise invalid_token_error()
    if expected.nonce is not None and not hmac.compare_digest(_bytes(expected.nonce), _bytes(claims.nonce or "")):
        raise invalid_token_error()
    return claims


def invalid_token_error() -> Unauthorized:
    """The error for an invalid token. It is the same for every reason, so that an attacker learns nothing."""
    return Unauthorized("This sign-in is not valid.")


def _decode_claims(token: str, algorithm: str, key: PublicKey, expected: TokenExpectations, now: float) -> TokenClaims:
    try:
        decoded = jwt.decode(token, key, algorithms=[algorithm], registry=_REGISTRY)
        _claims_registry(expected, now).validate(decoded.claims)
        return msgspec.convert(decoded.claims, TokenClaims)
    except ExpiredTokenError as error:
        raise Unauthorized("This sign-in has expired. Please sign in again.") from error
    except (JoseError, msgspec.ValidationError, UnsupportedAlgorithm, *_LIBRARY_ERRORS) as error:
        raise invalid_token_error() from error


def _claims_registry(expected: TokenExpectations, now: float) -> jwt.JWTClaimsRegistry:
    return jwt.JWTClaimsRegistry(
        now=int(now),
        leeway=LEEWAY_SECONDS,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "value": expected.audience},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )


def _key(document: dict[str, Any]) -> PublicKey | None:
    if document.get("kty") not in ALGORITHMS.values() or document.get("use", "sig") != "sig":
        return None
    try:
        key = JWKRegistry.import_key(document)
    # An unreadable key must not invalidate the others: RFC 7517, section 5.
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, PublicKey) else None


def _is_suitable(key: PublicKey, header: TokenHeader) -> bool:
    named = header.kid is None or key.kid == header.kid
    return named and key.key_type == ALGORITHMS[header.alg] and key.alg in (None, header.alg)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
