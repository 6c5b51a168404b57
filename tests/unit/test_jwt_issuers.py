"""The issuers of JWTs: the log says why a token was refused, and the error does not."""

import time

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey
from structlog.testing import capture_logs

from khala.domain.errors import Unauthorized
from khala.identity.jwt_issuers import JwtIssuer, JwtIssuers

SECRET = "0123456789abcdef0123456789abcdef"
ISSUER = JwtIssuer(issuer="app", audience="khala", algorithms=("HS256",), secret_env="X", secrets=(SECRET.encode(),))


def token(secret: str = SECRET, algorithm: str = "HS256", **changed: object) -> str:
    now = int(time.time())
    claims = {"iss": "app", "sub": "alice", "aud": "khala", "exp": now + 24 * 3600} | changed
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": algorithm}, given, OctKey.import_key(secret), algorithms=[algorithm])


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (token(aud="other"), "aud"),
        (token(exp=None), "exp"),
        (token(exp=1), "expired"),
        (token(sub=None), "user id"),
        (token(secret=SECRET[::-1]), "signature"),
        (token(algorithm="HS384"), "algorithm"),
    ],
)
async def test_the_log_says_why_a_token_was_refused(refused: str, reason: str) -> None:
    issuers = JwtIssuers([ISSUER])
    with capture_logs() as logs, pytest.raises(Unauthorized) as error:
        await issuers.verify(refused)
    [entry] = logs
    assert (entry["event"], entry["issuer"]) == ("jwt_refused", "app")
    assert reason in entry["reason"]
    assert "aud" not in error.value.message


async def test_a_good_token_is_not_logged() -> None:
    with capture_logs() as logs:
        identity = await JwtIssuers([ISSUER]).verify(token())
    assert identity is not None
    assert (identity.identity.subject, logs) == ("alice", [])
