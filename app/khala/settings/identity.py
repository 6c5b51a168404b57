"""The configuration of an application's own users, from one file: issuers of JWTs, and plans of budgets.

Error messages name the place in the file, and never contain a secret.
"""

import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
from joserfc.jwk import OctKey
from msgspec import Meta

from khala.domain.budgets import ACCOUNT_LIMITS, BudgetLimit
from khala.domain.secure_urls import is_secure
from khala.identity.jwt_claims import MAX_PLAN_CHARACTERS, MIN_SECRET_BYTES, PUBLIC_ALGORITHMS, SECRET_ALGORITHMS
from khala.identity.jwt_issuers import JwtIssuer
from khala.tools.config_files import ConfigFileError, convert, read_bytes, require_object

MAX_ISSUERS = 50
MAX_PLANS = 100
NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
FIELDS = ("issuers", "plans", "defaultPlan")

PlanAmount = Annotated[float, Meta(ge=0, le=1_000_000_000)]


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The limits of one account with this plan. 0 switches a limit off. A missing one is that of all accounts."""

    runs_per_hour: PlanAmount | None = None
    usd_per_day: PlanAmount | None = None
    tokens_per_day: PlanAmount | None = None
    thread_blob_mb: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """MiB of all blobs of one thread that the account owns."""


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    issuers: tuple[JwtIssuer, ...] = ()
    plans: Mapping[str, BudgetPlan] = {}
    default_plan: str | None = None

    def thread_bytes(self, default: int) -> dict[str, int]:
        """The bytes that one thread stores, by the plan of its owner. `default` is that of accounts without a plan."""
        return {
            name: default if plan.thread_blob_mb is None else plan.thread_blob_mb << 20
            for name, plan in self.plans.items()
        }

    def limits(self, accounts: tuple[BudgetLimit, ...]) -> dict[str, tuple[BudgetLimit, ...]]:
        """The limits of an account by plan. `accounts` are those of accounts without a plan."""
        return {name: _plan_limits(plan, accounts) for name, plan in self.plans.items()}


def read_identity_config(source: str | None, env: Mapping[str, str]) -> IdentityConfig:
    """Read the configuration: a path of a TOML or JSON file, or the JSON itself. Without a source it is empty.

    Raises `ConfigFileError`. `env` has the variables that `secretEnv` names.
    """
    if source is None:
        return IdentityConfig()
    if source.lstrip().startswith("{"):
        return _parse(_decode(source.encode(), is_json=True), env)
    path = Path(source).expanduser()
    try:
        return _parse(_decode(read_bytes(path), is_json=path.suffix == ".json"), env)
    except ConfigFileError as error:
        raise ConfigFileError(f"{path}: {error}") from error


def _decode(content: bytes, *, is_json: bool) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(content) if is_json else tomllib.loads(content.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigFileError(f"not valid {'JSON' if is_json else 'TOML'}: {error}.") from error
    return require_object(value, "the configuration")


def _parse(content: dict[str, Any], env: Mapping[str, str]) -> IdentityConfig:
    if unknown := sorted(set(content) - set(FIELDS)):
        raise ConfigFileError(f"{unknown[0]}: unknown setting. There are {', '.join(FIELDS)}.")
    issuers = _named(content, "issuers", MAX_ISSUERS)
    plans = _named(content, "plans", MAX_PLANS)
    config = IdentityConfig(
        issuers=tuple(_issuer(name, value, env) for name, value in issuers.items()),
        plans={name: convert(value, BudgetPlan, f"plans.{name}") for name, value in plans.items()},
        default_plan=convert(content.get("defaultPlan"), str | None, "defaultPlan"),  # type: ignore[arg-type]
    )
    if config.default_plan is not None and config.default_plan not in config.plans:
        raise ConfigFileError(f"defaultPlan: there is no plan {config.default_plan!r}.")
    names = [issuer.issuer for issuer in config.issuers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigFileError(f"issuers: {twice[0]} is named twice.")
    return config


def _named(content: dict[str, Any], field: str, most: int) -> dict[str, Any]:
    values = require_object(content.get(field, {}), field)
    if len(values) > most:
        raise ConfigFileError(f"{field}: at most {most} are allowed.")
    limit = MAX_PLAN_CHARACTERS if field == "plans" else 40
    for name in values:
        if not (NAME.fullmatch(name) if field == "issuers" else name.isprintable() and 0 < len(name) <= limit):
            raise ConfigFileError(f"{field}.{name}: a name has 1 to {limit} letters, digits, _ and -.")
    return values


def _issuer(name: str, value: Any, env: Mapping[str, str]) -> JwtIssuer:
    place = f"issuers.{name}"
    for field in ("name", "secrets"):
        if field in require_object(value, place):
            raise ConfigFileError(f"{place}.{field}: unknown setting.")
    issuer = convert(value, JwtIssuer, place)
    sources = [field for field in ("jwks_url", "secret_env", "secret_file") if getattr(issuer, field) is not None]
    if len(sources) != 1:
        raise ConfigFileError(f"{place}: must have one of jwksUrl, secretEnv and secretFile.")
    by_keys = issuer.jwks_url is not None
    allowed = PUBLIC_ALGORITHMS if by_keys else SECRET_ALGORITHMS
    for algorithm in issuer.algorithms:
        if algorithm not in allowed:
            kind = "a JWKS address" if by_keys else "a shared secret"
            message = f"{algorithm!r} can't be used with {kind}; use {', '.join(allowed)}"
            raise ConfigFileError(f"{place}.algorithms: {message}.")
    if issuer.jwks_url is not None and not is_secure(issuer.jwks_url):
        raise ConfigFileError(f"{place}.jwksUrl: must begin with https://.")
    return msgspec.structs.replace(issuer, name=name, secrets=_secrets(issuer, place, env))


def _secrets(issuer: JwtIssuer, place: str, env: Mapping[str, str]) -> tuple[bytes, ...]:
    if issuer.secret_file is not None:
        try:
            found = {f"{place}.secretFile": read_bytes(Path(issuer.secret_file).expanduser()).rstrip(b"\r\n")}
        except ConfigFileError as error:
            raise ConfigFileError(f"{place}.secretFile: {error}") from error
    else:
        names = (issuer.secret_env,) if isinstance(issuer.secret_env, str) else issuer.secret_env or ()
        found = {}
        for variable in names:
            if variable not in env:
                raise ConfigFileError(f"{place}.secretEnv: the variable {variable} is not set.")
            found[f"{place}.secretEnv: {variable}"] = env[variable].encode()
    for where, secret in found.items():
        if len(secret) < MIN_SECRET_BYTES:
            raise ConfigFileError(f"{where}: a secret has at least {MIN_SECRET_BYTES} bytes.")
        try:
            OctKey.import_key(secret)
        except ValueError as error:
            raise ConfigFileError(f"{where}: a public key is no secret. Use jwksUrl.") from error
    return tuple(found.values())


def _plan_limits(plan: BudgetPlan, accounts: tuple[BudgetLimit, ...]) -> tuple[BudgetLimit, ...]:
    limits = {limit.measure: limit for limit in accounts}
    for field, (measure, window) in ACCOUNT_LIMITS.items():
        amount = getattr(plan, field)
        if amount is not None:
            most = Decimal(str(amount))
            limits[measure] = BudgetLimit(scope="user", measure=measure, most=most, window=window)
    return tuple(limit for limit in limits.values() if limit.most)
