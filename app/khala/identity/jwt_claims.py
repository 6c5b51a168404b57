"""Verifies JWTs of configured issuers, and reads users from their claims. Pure: keys and time arrive as arguments."""

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc import jws
from joserfc.errors import BadSignatureError, ExpiredTokenError, JoseError
from joserfc.jwk import OctKey
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry

from khala.domain.accounts import Identity
from khala.domain.errors import InvalidInput, Unauthorized
from khala.domain.names import claimed_name
from khala.identity.id_tokens import (
    ALGORITHMS,
    BEARER_TOKEN_TYPES,
    LAST_INSTANT,
    MAX_HEADER_CHARACTERS,
    MAX_SUBJECT_CHARACTERS,
    MAX_TOKEN_CHARACTERS,
    PublicKey,
    TokenHeader,
    invalid_token_error,
)
from khala.identity.passwords import normalized_email

SECRET_ALGORITHMS = ("HS256", "HS384", "HS512")
PUBLIC_ALGORITHMS = tuple(ALGORITHMS)
MIN_SECRET_BYTES = 32
MAX_PLAN_CHARACTERS = 100
MAX_GROUPS = 1000
"""Groups of a token that are read."""

VerificationKey: TypeAlias = PublicKey | OctKey
Claims: TypeAlias = dict[str, Any]


class ClaimNames(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The claims that describe a user. A name is that of a claim, or else a path of names with dots between them."""

    id: str = "sub"
    name: str = "name"
    email: str = "email"
    email_verified: str = "email_verified"
    groups: str = "groups"
    plan: str | None = None
    admin: str | None = None


class JwtExpectations(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that a token must meet, and the meaning of its claims."""

    issuer: str
    audience: tuple[str, ...]
    algorithms: tuple[str, ...]
    clock_skew_seconds: int
    claims: ClaimNames
    trust_email: bool
    admin_groups: frozenset[str]


class UnverifiedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The header and issuer of a token whose signature was not verified. They may only be used to find the keys."""

    header: Claims
    issuer: str


class JwtIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The verified user of a token. `plan` is UNSET if the issuer names no plans, and None if this token has none."""

    identity: Identity
    plan: str | msgspec.UnsetType | None
    admin: bool
    expires_at: datetime


class _Registry(JWSRegistry):
    """The algorithms of one issuer. Unknown headers are ignored (RFC 7515, section 4): no address in them is used."""

    max_header_length = MAX_HEADER_CHARACTERS
    max_payload_length = MAX_TOKEN_CHARACTERS

    def __init__(self, algorithms: Sequence[str]) -> None:
        super().__init__(algorithms=tuple(algorithms), strict_check_header=False)
        self._names = frozenset(algorithms)

    def get_alg(self, name: str) -> Any:
        """The algorithm. The parent's look-up would warn of the name EdDSA."""
        if name not in self._names:
            raise invalid_token_error()
        return self.algorithms[name]


_ERRORS = (JoseError, UnsupportedAlgorithm, ValueError, TypeError, OverflowError, RecursionError)
"""Errors that the libraries raise for tokens that are not as they should be."""


def decode(token: str) -> UnverifiedToken:
    """The parts of a well-formed token. Raises Unauthorized for any other text, and for one with duplicate names."""
    parts = token.split(".")
    if (
        len(token) > MAX_TOKEN_CHARACTERS
        or len(parts) != 3
        or len(parts[0]) > MAX_HEADER_CHARACTERS
        or not token.isascii()
    ):
        raise invalid_token_error()
    header, claims = _decode_part(parts[0]), _decode_part(parts[1])
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise invalid_token_error()
    return UnverifiedToken(header=header, issuer=issuer)


def checked_header(token: UnverifiedToken, expected: JwtExpectations) -> TokenHeader:
    """The header, if its algorithm is one of the issuer's. Raises Unauthorized."""
    try:
        header = msgspec.convert(token.header, TokenHeader)
    except msgspec.ValidationError as error:
        raise invalid_token_error() from error
    critical = header.crit is not msgspec.UNSET or "b64" in token.header
    if header.alg not in expected.algorithms or critical or header.typ.lower() not in BEARER_TOKEN_TYPES:
        raise invalid_token_error()
    return header


def verify(
    token: str, header: TokenHeader, keys: Iterable[VerificationKey], expected: JwtExpectations, now: float
) -> JwtIdentity:
    """The user of the token at `now`, in seconds of the epoch. One of the keys must have signed it.

    Raises Unauthorized if anything is wrong.
    """
    claims = _signed_claims(token, header, keys, expected)
    try:
        _claims_registry(expected, now).validate(claims)
        return _identity(claims, expected)
    except ExpiredTokenError as error:
        raise Unauthorized("This token has expired. Send a new one.") from error
    except _ERRORS as error:
        raise invalid_token_error() from error


def _signed_claims(
    token: str, header: TokenHeader, keys: Iterable[VerificationKey], expected: JwtExpectations
) -> Claims:
    # Never more than the one algorithm, which is one of the issuer's.
    registry = _Registry([header.alg] if header.alg in expected.algorithms else [])
    for key in keys:
        try:
            signed = jws.deserialize_compact(token, key, registry=registry)
            return _decode_object(signed.payload)
        except BadSignatureError:
            continue
        except _ERRORS as error:
            raise invalid_token_error() from error
    raise invalid_token_error()


def _claims_registry(expected: JwtExpectations, now: float) -> JWTClaimsRegistry:
    """Also checks `nbf` and `iat`, if the token has them."""
    return JWTClaimsRegistry(
        now=int(now),
        leeway=expected.clock_skew_seconds,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "values": list(expected.audience)},
        exp={"essential": True},
    )


def _identity(claims: Claims, expected: JwtExpectations) -> JwtIdentity:
    names = expected.claims
    verified = expected.trust_email or _claim(claims, names.email_verified) is True
    expires_at = min(float(claims["exp"]) + expected.clock_skew_seconds, LAST_INSTANT.timestamp())
    return JwtIdentity(
        identity=Identity(
            issuer=expected.issuer,
            subject=_subject(_claim(claims, names.id)),
            email=_email(_claim(claims, names.email)) if verified else None,
            name=claimed_name(_claim(claims, names.name)),
        ),
        plan=msgspec.UNSET if names.plan is None else _plan(_claim(claims, names.plan)),
        admin=_is_admin(claims, expected),
        expires_at=datetime.fromtimestamp(expires_at, UTC),
    )


def _claim(claims: Claims, name: str) -> Any:
    """The claim with this name, or else at this path; None if there is none."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _subject(claim: Any) -> str:
    text = str(claim) if isinstance(claim, int) and not isinstance(claim, bool) else claim
    if not isinstance(text, str) or not 0 < len(text) <= MAX_SUBJECT_CHARACTERS or not text.isprintable():
        raise invalid_token_error()
    return text


def _email(claim: Any) -> str | None:
    try:
        return normalized_email(claim) if isinstance(claim, str) else None
    except InvalidInput:
        return None


def _plan(claim: Any) -> str | None:
    return claim[:MAX_PLAN_CHARACTERS] if isinstance(claim, str) and claim.isprintable() else None


def _is_admin(claims: Claims, expected: JwtExpectations) -> bool:
    if expected.claims.admin is not None and _claim(claims, expected.claims.admin) is True:
        return True
    groups = _claim(claims, expected.claims.groups)
    listed = groups[:MAX_GROUPS] if isinstance(groups, list) else [groups]
    return any(isinstance(group, str) and group in expected.admin_groups for group in listed)


def _decode_part(part: str) -> Claims:
    try:
        return _decode_object(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, TypeError) as error:
        raise invalid_token_error() from error


def _decode_object(encoded: bytes | bytearray) -> Claims:
    """The JSON object. Duplicate names are refused: programs differ in which of the values counts."""
    try:
        value = json.loads(encoded, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise invalid_token_error() from error
    if not isinstance(value, dict):
        raise invalid_token_error()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> Claims:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("duplicate names")
    return names


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
