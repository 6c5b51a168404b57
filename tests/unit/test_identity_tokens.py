"""The verification of signed tokens, without a provider."""

import hmac
import time
from base64 import urlsafe_b64encode
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey

from khala.domain.errors import Unauthorized
from khala.identity import id_tokens
from khala.identity.id_tokens import TokenExpectations

ISSUER = "https://issuer.example"
NOW = 1_800_000_000
SIGN_IN = TokenExpectations(ISSUER, "khala", "khala", nonce="nonce")
BEARER = TokenExpectations(ISSUER, "khala", None, id_tokens.BEARER_TOKEN_TYPES)
KEYS: dict[str, Key] = {
    "RS256": RSAKey.generate_key(2048, {"kid": "rsa"}),
    "ES256": ECKey.generate_key("P-256", {"kid": "ec"}),
    "Ed25519": OKPKey.generate_key("Ed25519", {"kid": "okp"}),
}
PUBLIC = id_tokens.read_keys([dict(key.as_dict(private=False)) for key in KEYS.values()])
HONEST: dict[str, Any] = {"iss": ISSUER, "sub": "alice", "aud": "khala", "exp": NOW + 300, "iat": NOW, "nonce": "nonce"}


def signed(
    algorithm: str = "RS256", header: dict[str, Any] | None = None, key: Key | None = None, **changed: Any
) -> str:
    key = key or KEYS[algorithm]
    claims = {name: value for name, value in (HONEST | changed).items() if value is not None}
    head = {"alg": algorithm, "kid": key.kid, **(header or {})}
    return jwt.encode(head, claims, key, algorithms=[algorithm], registry=id_tokens.AlgorithmRegistry())


def verified_claims(token: str, expected: TokenExpectations = SIGN_IN, now: float = NOW) -> id_tokens.TokenClaims:
    header = id_tokens.decode_header(token)
    key = id_tokens.select_key(header, PUBLIC)
    if key is None:
        raise id_tokens.invalid_token_error()
    return id_tokens.verify_claims(token, header, key, expected, now)


@pytest.mark.parametrize("algorithm", [*KEYS, "PS256", "RS512", "EdDSA"])
def test_a_token_of_each_kind_of_key_is_accepted(algorithm: str) -> None:
    key = KEYS.get(algorithm) or (KEYS["Ed25519"] if algorithm == "EdDSA" else KEYS["RS256"])
    claims = verified_claims(signed(algorithm, key=key))
    assert (claims.sub, claims.expires_at.timestamp()) == ("alice", NOW + 300)


@pytest.mark.parametrize(
    "changed",
    [
        {"iss": ISSUER + "/"},
        {"iss": None},
        {"aud": "somebody"},
        {"aud": ["somebody", "else"]},
        {"aud": None},
        {"aud": 1},
        {"aud": ["khala", "somebody"]},
        {"aud": ["khala", "somebody"], "azp": "somebody"},
        {"azp": "somebody"},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 7},
        {"nonce": "nonc\u00e9"},
        {"exp": NOW - 61},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": float("nan")},
        {"exp": 10**400},
        {"iat": NOW + 61},
        {"iat": None},
        {"nbf": NOW + 61},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": "a\x00b"},
        {"sub": "a" * 256},
        {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
    ],
    ids=str,
)
def test_a_token_with_an_unexpected_claim_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        verified_claims(signed(**changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 59},
        {"iat": NOW + 59},
        {"nbf": NOW + 59},
        {"aud": ["khala"]},
        {"aud": ["khala", "somebody"], "azp": "khala"},
        {"exp": 10**15},
        {"exp": NOW + 0.5},
    ],
    ids=str,
)
def test_clock_skew_of_a_minute_and_all_standard_forms_are_accepted(changed: dict[str, Any]) -> None:
    assert verified_claims(signed(**changed)).sub == "alice"


def test_a_token_is_accepted_only_for_its_purpose() -> None:
    access_token = signed(header={"typ": "at+jwt"}, aud=["khala", "other"], azp="other")
    assert verified_claims(access_token, BEARER).sub == "alice"
    for expected, header in (
        (SIGN_IN, {"typ": "at+jwt"}),
        (SIGN_IN, {"typ": "logout+jwt"}),
        (BEARER, {"typ": "dpop+jwt"}),
    ):
        with pytest.raises(Unauthorized):
            verified_claims(signed(header=header), expected)


def test_critical_headers_are_refused() -> None:
    assert verified_claims(signed(header={"unheard": "of"})).sub == "alice"
    for header in ({"crit": ["exp"], "exp": NOW}, {"crit": ["b64"], "b64": False}, {"crit": None}, {"kid": 5}):
        with pytest.raises(Unauthorized):
            verified_claims(forged({"alg": "RS256", "kid": "rsa", **header}))


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", "HS256", "HS512", "ES256K", "RSA-OAEP", "dir"]
)
def test_an_algorithm_without_a_public_key_never_counts(algorithm: str) -> None:
    for signature in ("", "AAAA"):
        with pytest.raises(Unauthorized):
            verified_claims(forged({"alg": algorithm, "kid": "rsa"}, signature=signature))


def test_a_public_key_is_not_accepted_as_an_hmac_secret() -> None:
    key = KEYS["RS256"]
    assert isinstance(key, RSAKey)
    for secret in (key.as_pem(private=False), key.as_der(private=False), str(key.get("n")).encode()):
        signed_text = forged({"alg": "HS256", "kid": "rsa"}).rpartition(".")[0]
        signature = encoded(hmac.digest(secret, signed_text.encode(), "sha256"))
        with pytest.raises(Unauthorized):
            verified_claims(f"{signed_text}.{signature}")


def test_a_key_of_another_kind_with_the_same_id_is_refused() -> None:
    impostor = ECKey.generate_key("P-256", {"kid": "rsa"})
    with pytest.raises(Unauthorized):
        verified_claims(signed("ES256", key=impostor))
    with pytest.raises(Unauthorized):
        verified_claims(signed(key=RSAKey.generate_key(2048, {"kid": "rsa"})))


def test_a_token_without_a_key_id_needs_a_single_candidate() -> None:
    nameless = id_tokens.decode_header(forged({"alg": "RS256"}))
    assert id_tokens.select_key(nameless, PUBLIC) is PUBLIC[0]
    second = RSAKey.generate_key(2048, {"kid": "another"})
    assert id_tokens.select_key(nameless, (*PUBLIC, second)) is None
    assert id_tokens.select_key(nameless, ()) is None


def test_an_invalid_key_is_left_out_without_affecting_the_others() -> None:
    good = dict(KEYS["RS256"].as_dict(private=False))
    bad: list[dict[str, Any]] = [
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"},
        {"kty": "RSA", "kid": "broken"},
        {"kty": "RSA", "n": 5, "e": "AQAB"},
        {"kty": "RSA", "n": "", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA"},
        {"kty": "EC", "crv": "unheard-of", "x": "AAAA", "y": "AAAA"},
        {"kty": ["RSA"]},
        {"kty": "AKP", "alg": "ML-DSA-44"},
        {**good, "use": "enc"},
        {**good, "key_ops": 5},
    ]
    assert [key.kid for key in id_tokens.read_keys([*bad, good])] == ["rsa"]


TOKEN = signed("ES256")


@given(st.integers(0, len(TOKEN) - 1), st.characters(codec="ascii"))
def test_changing_a_character_of_a_token_never_changes_its_claims(index: int, character: str) -> None:
    changed = TOKEN[:index] + character + TOKEN[index + 1 :]
    try:
        claims = verified_claims(changed)
    except Unauthorized:
        return
    # Unused bits of a part's last character and characters outside of the alphabet may be ignored.
    assert claims == verified_claims(TOKEN)


@given(st.text() | st.builds("{}.{}.{}".format, st.text(), st.text(), st.text()))
@example("." * 2)
@example("a" * 20_000 + "..")
@example("\ud800..")
@example(TOKEN + ".")
@example(TOKEN.replace(".", ".\u00e9", 1))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized):
        verified_claims(text)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
values = st.sampled_from([*id_tokens.ALGORITHMS, "none", "rsa", "ec", "JWT"]) | json


@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x5c"]), values) | json, st.binary())
def test_any_other_header_is_refused(header: Any, signature: bytes) -> None:
    with pytest.raises(Unauthorized):
        verified_claims(forged(header, signature=encoded(signature)))


@given(st.dictionaries(st.sampled_from([*HONEST, "azp", "events"]), json))
def test_any_signed_claims_are_accepted_or_refused_without_a_crash(changed: dict[str, Any]) -> None:
    try:
        claims = verified_claims(signed(**changed))
    except Unauthorized:
        return
    assert claims.sub == changed.get("sub", "alice")


@pytest.mark.parametrize("depth", [900, 2_900])
def test_deeply_nested_tokens_are_refused(depth: int) -> None:
    for header in (b"[" * depth, b'{"alg":"RS256","kid":"rsa","x":' + b"[" * depth + b"]" * depth + b"}"):
        with pytest.raises(Unauthorized):
            verified_claims(f"{encoded(header)}.e30.AAAA")


def test_an_error_quotes_nothing_of_the_token() -> None:
    with pytest.raises(Unauthorized) as error:
        verified_claims(signed(nonce="another"))
    assert error.value.message == "This sign-in is not valid."
    with pytest.raises(Unauthorized, match="expired"):
        verified_claims(signed(), now=time.time() + 10**9)


def forged(header: Any, signature: str = "AAAA") -> str:
    return f"{encoded(msgspec.json.encode(header))}.{encoded(msgspec.json.encode(HONEST))}.{signature}"


def encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).decode().rstrip("=")
