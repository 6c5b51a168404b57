"""What a signed token says, once everything about it has been checked. Pure: keys and time arrive as arguments."""

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

LARGEST = 16 * 1024
"""Characters of a token."""
LARGEST_HEADER = 4 * 1024
LEEWAY = 60
"""Seconds by which the provider's clock and ours may differ."""
LONGEST_SUBJECT = 255
"""OpenID Connect Core 1.0, section 2."""
MOST_KEYS = 100
LAST_INSTANT = datetime(9999, 12, 31, tzinfo=UTC)

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# No HS*: their key would be the public one, or our own secret. No none. EdDSA goes by two names (RFC 8037, RFC 9864).
ALGORITHMS = dict.fromkeys(_RSA, "RSA") | dict.fromkeys(("ES256", "ES384", "ES512"), "EC")
ALGORITHMS |= dict.fromkeys(("EdDSA", "Ed25519"), "OKP")
"""The algorithms of a signature that count, each with the type of its key."""
TYPES = ("jwt",)
BEARER_TYPES = ("jwt", "at+jwt", "application/at+jwt")
"""RFC 9068, section 4. A token of another type was issued for something else (RFC 8725, section 3.11)."""

Key: TypeAlias = RSAKey | ECKey | OKPKey


class Header(msgspec.Struct, frozen=True):
    """What a token claims about its signature."""

    alg: str
    kid: str | None = None
    typ: str = "JWT"
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Expected(msgspec.Struct, frozen=True):
    """What has to be true of a token. `party`: who it must have been issued to, where that matters."""

    issuer: str
    audience: str
    party: str | None
    types: tuple[str, ...] = TYPES
    nonce: str | None = None


class Claims(msgspec.Struct, frozen=True):
    """What a token says of somebody, as far as it can be used."""

    sub: str
    exp: float
    aud: str | tuple[str, ...]
    azp: str | None = None
    nonce: str | None = None
    email: Any = None
    email_verified: Any = None
    name: Any = None
    events: Any = None

    @property
    def party(self) -> str | None:
        """Who the token was issued to (OpenID Connect Core 1.0, section 3.1.3.7)."""
        audience = (self.aud,) if isinstance(self.aud, str) else self.aud
        return audience[0] if self.azp is None and len(audience) == 1 else self.azp

    @property
    def expires_at(self) -> datetime:
        """From then on the token is worth nothing."""
        return datetime.fromtimestamp(min(self.exp, LAST_INSTANT.timestamp()), UTC)


class Registry(JWSRegistry):
    """The algorithms that count, whatever else the library knows; unknown headers are ignored (RFC 7515, section 4)."""

    max_header_length = LARGEST_HEADER

    def __init__(self) -> None:
        super().__init__(algorithms=tuple(ALGORITHMS), strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """The algorithm; not the parent's look-up, which warns of EdDSA for its name alone."""
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError
        return self.algorithms[name]


_REGISTRY = Registry()
_ODD = (ValueError, TypeError, OverflowError, RecursionError)
"""What libraries say of a value that they didn't think of."""


def header(token: str) -> Header:
    """The header of a token that deserves a look at its signature; else Unauthorized."""
    first = token[: LARGEST_HEADER + 1].partition(".")[0]
    if len(token) > LARGEST or len(first) > LARGEST_HEADER or not token.isascii() or token.count(".") != 2:
        raise invalid()
    try:
        found = msgspec.json.decode(urlsafe_b64decode(first + "=" * (-len(first) % 4)), type=Header)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise invalid() from error
    if found.alg not in ALGORITHMS or found.crit is not msgspec.UNSET:
        raise invalid()
    return found


def keys(documents: Iterable[dict[str, Any]]) -> tuple[Key, ...]:
    """The public keys of a key set (RFC 7517, section 5); what can't be read, or is no such key, is left out."""
    found = (_key(document) for document in list(documents)[:MOST_KEYS])
    return tuple(key for key in found if key is not None)


def key_for(found: Header, known: Iterable[Key]) -> Key | None:
    """The key by which the token says it was signed. A token that names none may have only one to choose from."""
    fitting = [key for key in known if _fits(key, found)]
    return fitting[0] if len(fitting) == 1 or (fitting and found.kid is not None) else None


def claims(token: str, found: Header, key: Key, expected: Expected, now: float) -> Claims:
    """What the token says, if its signature and all claims hold at `now`, seconds of the epoch; else Unauthorized."""
    if found.typ.lower() not in expected.types:
        raise invalid()
    said = _said(token, found.alg, key, expected, now)
    if not said.sub or len(said.sub) > LONGEST_SUBJECT or not said.sub.isprintable() or said.events is not None:
        raise invalid()
    if expected.party is not None and said.party != expected.party:
        raise invalid()
    if expected.nonce is not None and not hmac.compare_digest(_bytes(expected.nonce), _bytes(said.nonce or "")):
        raise invalid()
    return said


def invalid() -> Unauthorized:
    """The one answer to every token that isn't what it should be: a forger learns nothing from it."""
    return Unauthorized("This sign-in is not valid.")


def _said(token: str, algorithm: str, key: Key, expected: Expected, now: float) -> Claims:
    try:
        decoded = jwt.decode(token, key, algorithms=[algorithm], registry=_REGISTRY)
        _claims_registry(expected, now).validate(decoded.claims)
        return msgspec.convert(decoded.claims, Claims)
    except ExpiredTokenError as error:
        raise Unauthorized("This sign-in has expired. Please sign in again.") from error
    except (JoseError, msgspec.ValidationError, UnsupportedAlgorithm, *_ODD) as error:
        raise invalid() from error


def _claims_registry(expected: Expected, now: float) -> jwt.JWTClaimsRegistry:
    return jwt.JWTClaimsRegistry(
        now=int(now),
        leeway=LEEWAY,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "value": expected.audience},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )


def _key(document: dict[str, Any]) -> Key | None:
    if document.get("kty") not in ALGORITHMS.values() or document.get("use", "sig") != "sig":
        return None
    try:
        key = JWKRegistry.import_key(document)
    # A key that can't be read must not take the others with it: RFC 7517, section 5.
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, Key) else None


def _fits(key: Key, found: Header) -> bool:
    named = found.kid is None or key.kid == found.kid
    return named and key.key_type == ALGORITHMS[found.alg] and key.alg in (None, found.alg)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
