"""The configuration of an application's own users: a mistake is an error that names its place, and never a secret."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from khala.settings import SettingError, from_environment
from khala.settings.identity import read_identity_config
from khala.tools.config_files import ConfigFileError

SECRET = "0123456789abcdef0123456789abcdef"
ENV = {"APP_SECRET": SECRET, "SHORT": "too short"}
BY_KEYS: dict[str, Any] = {
    "issuer": "https://auth.example.com/",
    "jwksUrl": "https://auth.example.com/jwks.json",
    "algorithms": ["RS256", "ES256"],
    "audience": "khala",
}
BY_SECRET: dict[str, Any] = {
    "issuer": "app",
    "secretEnv": "APP_SECRET",
    "algorithms": ["HS256"],
    "audience": ["khala", "app"],
}
TOML = """
defaultPlan = "free"

[issuers.auth]
issuer = "https://auth.example.com/"
jwksUrl = "https://auth.example.com/jwks.json"
algorithms = ["RS256"]
audience = "khala"
adminGroups = ["operators"]
claims = { plan = "app_metadata.plan" }

[plans.free]
runsPerHour = 10
usdPerDay = 0.25

[plans.pro]
tokensPerDay = 0
threadBlobMb = 2048
"""


def without(issuer: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in issuer.items() if name != field}


def test_a_toml_file_has_issuers_and_plans(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    path.write_text(TOML)
    settings = from_environment({"KHALA_JWT": str(path), "KHALA_USER_TOKENS_PER_DAY": "5000"})
    (issuer,) = settings.identity.issuers
    assert (issuer.name, issuer.algorithms, issuer.claims.plan) == ("auth", ("RS256",), "app_metadata.plan")
    policy = settings.budgets
    limits = {
        plan: {limit.measure: limit.most for limit in policy.of_plan(plan).limits if limit.scope == "user"}
        for plan in ("free", "pro", "unknown", None)
    }
    free = {"runs": Decimal(10), "usd": Decimal("0.25"), "tokens": Decimal(5000)}
    pro = {"runs": Decimal(300), "usd": Decimal(10)}
    assert limits == {"free": free, "pro": pro, "unknown": free, None: free}
    quota = settings.storage_quota
    assert (quota.of_plan("pro"), quota.of_plan(None)) == (2048 << 20, quota.thread)


def test_a_secret_is_read_from_a_variable_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    by_file = without(BY_SECRET, "secretEnv") | {"secretFile": str(path), "issuer": "other"}
    config = read_identity_config(json.dumps({"issuers": {"a": BY_SECRET, "b": by_file}}), ENV)
    assert [issuer.secrets for issuer in config.issuers] == [(SECRET.encode(),)] * 2


@pytest.mark.parametrize(
    ("issuer", "message"),
    [
        (BY_KEYS | {"algorithms": ["none"]}, "issuers.a.algorithms: 'none' can't be used"),
        (BY_KEYS | {"algorithms": ["HS256"]}, "issuers.a.algorithms: 'HS256' can't be used with a JWKS address"),
        (BY_SECRET | {"algorithms": ["RS256"]}, "issuers.a.algorithms: 'RS256' can't be used with a shared secret"),
        (BY_SECRET | {"algorithms": ["HS256", "none"]}, "issuers.a.algorithms: 'none' can't be used"),
        (BY_KEYS | {"algorithms": []}, "issuers.a.algorithms: "),
        (without(BY_KEYS, "algorithms"), "issuers.a: Object missing required field `algorithms`"),
        (without(BY_KEYS, "audience"), "issuers.a: Object missing required field `audience`"),
        (BY_KEYS | {"audience": []}, "issuers.a.audience: "),
        (BY_KEYS | {"jwksUrl": "http://auth.example.com/jwks"}, "issuers.a.jwksUrl: must begin with https://"),
        (BY_KEYS | {"secretEnv": "APP_SECRET"}, "issuers.a: must have one of jwksUrl, secretEnv and secretFile"),
        (without(BY_KEYS, "jwksUrl"), "issuers.a: must have one of jwksUrl, secretEnv and secretFile"),
        (BY_SECRET | {"secretEnv": "SHORT"}, "issuers.a.secretEnv: SHORT: a secret has at least 32 bytes"),
        (BY_SECRET | {"secretEnv": "MISSING"}, "issuers.a.secretEnv: the variable MISSING is not set"),
        (without(BY_SECRET, "secretEnv") | {"secretFile": "/nowhere"}, "issuers.a.secretFile: the file can't be read"),
        (BY_KEYS | {"clockSkewSeconds": 301}, "issuers.a.clockSkewSeconds: "),
        (BY_KEYS | {"secrets": ["x"]}, "issuers.a.secrets: unknown setting"),
        (BY_KEYS | {"claims": {"roles": "x"}}, "issuers.a.claims: Object contains unknown field `roles`"),
    ],
)
def test_a_mistake_is_named_by_its_place(issuer: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFileError) as error:
        read_identity_config(json.dumps({"issuers": {"a": issuer}}), ENV)
    assert str(error.value).startswith(message)
    assert SECRET not in str(error.value)
    assert ENV["SHORT"] not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"issuer": {}}, "issuer: unknown setting"),
        ({"issuers": {"a": BY_KEYS, "b": BY_KEYS}}, "issuers: https://auth.example.com/ is named twice"),
        ({"issuers": {"a b": BY_KEYS}}, "issuers.a b: a name has"),
        ({"plans": {"free": {"runsPerDay": 1}}}, "plans.free: Object contains unknown field `runsPerDay`"),
        ({"plans": {"free": {"runsPerHour": -1}}}, "plans.free.runsPerHour: "),
        ({"defaultPlan": "gold"}, "defaultPlan: there is no plan 'gold'"),
    ],
)
def test_a_mistake_outside_of_an_issuer_is_named_too(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFileError) as error:
        read_identity_config(json.dumps(content), ENV)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("source", ["{", "/nowhere/users.toml", "nothing"])
def test_a_source_that_cannot_be_read_is_an_error_of_the_variable(source: str) -> None:
    with pytest.raises(SettingError) as error:
        from_environment({"KHALA_JWT": source})
    assert str(error.value).startswith("KHALA_JWT: ")


def test_a_public_key_is_no_secret() -> None:
    from joserfc.jwk import RSAKey

    pem = RSAKey.generate_key(2048).as_pem(private=False).decode()
    with pytest.raises(ConfigFileError, match="a public key is no secret"):
        read_identity_config(json.dumps({"issuers": {"a": BY_SECRET}}), {"APP_SECRET": pem})
