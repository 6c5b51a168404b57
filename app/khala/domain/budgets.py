"""Budgets: the limits that apply to a run, and the amounts that it may reserve of each. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import RunBudget, WireStruct
from khala.domain.errors import BudgetExhausted, LimitScope, ReachedLimit

BudgetScope: TypeAlias = Literal["run", "thread", "user", "accounts", "key", "network", "anonymous"]
"""The subject of a limit: one run, thread or user, all users, one anonymous key, one network, or all anonymous use."""
BudgetMeasure: TypeAlias = Literal["usd", "tokens", "runs", "seconds"]

STRIPED_SCOPES: tuple[BudgetScope, ...] = ("accounts", "anonymous")
"""The scopes of limits that all sends share. Their windows are divided into stripes (`khala.store.budgets.stripes`)."""

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS
ACCOUNT_LIMITS: dict[str, tuple[BudgetMeasure, int]] = {
    "runs_per_hour": ("runs", HOUR_SECONDS),
    "usd_per_day": ("usd", DAY_SECONDS),
    "tokens_per_day": ("tokens", DAY_SECONDS),
}
"""The measure and window of each limit that a plan or an administrator sets for an account."""
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
SMALLEST_AMOUNT = Decimal("0.0000000001")
"""The smallest amount that the database stores."""

INITIAL_RESERVATION: dict[BudgetMeasure, Decimal] = {
    "usd": Decimal("0.005"), "tokens": Decimal(2000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""The amount that a send reserves. It is small, because other runs can't use it while the run is queued."""
FURTHER_RESERVATION: dict[BudgetMeasure, Decimal] = {
    "usd": Decimal("0.02"), "tokens": Decimal(4000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""The amount that an active run reserves beyond its current need, so that it reserves every few seconds at most."""
MIN_RESERVATION_FRACTION = Decimal("0.1")
"""A run begins only if this fraction of the initial reservation is available: with less, it would end within its first
sentence."""
RETRY_WHEN_RESERVED_SECONDS = 30.0
"""Seconds until a retry when reservations exhaust a limit. Runs release most of what they reserve."""

EXHAUSTED_MESSAGES: dict[BudgetScope, str] = {
    "run": "This answer has reached its budget.",
    "thread": "The budget of this chat is used up for now.",
    "user": "The budget of this account is used up for now.",
    "accounts": "The budget of this server is used up for now. Try again later.",
    "key": "Your budget is used up for now. Try again later, or sign in.",
    "network": "The budget of your network is used up for now. Try again later, or sign in.",
    "anonymous": "The budget for guests is used up for now. Try again later, or sign in.",
}
"""The messages for people when a limit is reached."""
LIMIT_SCOPES: dict[BudgetScope, LimitScope] = {
    "run": "run", "thread": "thread", "user": "account", "accounts": "deployment", "key": "key", "network": "network",
    "anonymous": "deployment",
}  # fmt: skip
"""The scope by which an error names each limit."""
OUT_OF_TIME_MESSAGE = "This answer has reached its time limit."


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum (`most`) of a measure in each window of `window` seconds; without a window, in total.

    There is one limit for each scope and measure. The cost of a model without a price is not counted; its tokens and
    runs are.
    """

    scope: BudgetScope
    measure: BudgetMeasure
    most: Decimal
    window: int | None = None


class BudgetOverride(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits that an administrator has set for one account. None leaves that of its plan, and 0 switches it off."""

    runs_per_hour: Decimal | None = None
    usd_per_day: Decimal | None = None
    tokens_per_day: Decimal | None = None


class BudgetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits: `user` and `accounts` apply to accounts; `key`, `network` and `anonymous` to guests."""

    limits: tuple[BudgetLimit, ...] = ()
    plans: Mapping[str, tuple[BudgetLimit, ...]] = {}
    """By the name of a budget plan, all limits of scope `user` for the accounts that have it."""
    default_plan: str | None = None
    """The plan of accounts without one, and of those whose plan is not in `plans`; None for `limits` as they are."""

    def of_plan(self, name: str | None) -> "BudgetPolicy":
        """The limits that apply to an account with this plan."""
        chosen = self.plans.get(name or "", self.plans.get(self.default_plan or ""))
        if chosen is None:
            return self
        return self._with_user_limits(chosen)

    def overridden(self, override: BudgetOverride | None) -> "BudgetPolicy":
        """The limits that apply to an account with this override."""
        if override is None:
            return self
        limits = {limit.measure: limit for limit in self.limits if limit.scope == "user"}
        for field, (measure, window) in ACCOUNT_LIMITS.items():
            most: Decimal | None = getattr(override, field)
            if most is not None:
                limits[measure] = BudgetLimit(scope="user", measure=measure, most=most, window=window)
        return self._with_user_limits(tuple(limit for limit in limits.values() if limit.most))

    def _with_user_limits(self, limits: tuple[BudgetLimit, ...]) -> "BudgetPolicy":
        others = (limit for limit in self.limits if limit.scope != "user")
        return msgspec.structs.replace(self, limits=(*others, *limits))


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation from one window of a limit of `most`: `wanted`, or else the remainder if it is at least `least`."""

    scope: BudgetScope
    measure: BudgetMeasure
    key: bytes
    starts_at: datetime
    ends_at: datetime
    least: Decimal
    wanted: Decimal
    most: Decimal

    @property
    def window_key(self) -> "WindowKey":
        """The window to reserve from."""
        return self.scope, self.key, self.measure, self.starts_at

    @property
    def striped(self) -> bool:
        """Whether the window is divided into stripes."""
        return self.scope in STRIPED_SCOPES


WindowKey: TypeAlias = tuple[str, bytes, str, datetime]
"""One window of a limit: scope, key, measure and start."""


class WindowUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a window: the amount reserved by active runs, and the amount that ended runs used."""

    reserved: Decimal = Decimal(0)
    settled: Decimal = Decimal(0)

    def left(self, most: Decimal) -> Decimal:
        """The remainder under this limit. Negative if runs have used more than they had reserved."""
        return most - self.settled - self.reserved


class BudgetUsage(WireStruct, frozen=True, kw_only=True):
    """The usage of a limit, as decimal strings: the amount that ended runs `used`, and the amount that active runs have
    `reserved`. Both are reset to 0 at `endsAt`."""  # noqa: D205, D209

    scope: BudgetScope
    measure: BudgetMeasure
    used: str
    reserved: str
    most: str
    ends_at: datetime | None = None


def current_window(limit: BudgetLimit, now: datetime) -> tuple[datetime, datetime]:
    """The start and end of the limit's window that contains `now`. Windows are fixed: hours and days in UTC."""
    if limit.window is None:
        return UNIX_EPOCH, END_OF_TIME
    return fixed_window(limit.window, now)


def fixed_window(seconds: int, now: datetime) -> tuple[datetime, datetime]:
    """The start and end of the window that contains `now`. Windows have `seconds` seconds each, from 1970 on."""
    length = timedelta(seconds=seconds)
    starts_at = UNIX_EPOCH + (now - UNIX_EPOCH) // length * length
    return starts_at, starts_at + length


def budget_keys(
    caller: Caller, thread_id: UUID, owner_id: UUID | None, anon_key_hash: bytes | None
) -> dict[BudgetScope, bytes]:
    """The limits that a send to this thread counts against: a key for each scope.

    The send of a user counts only against that user. A guest's send counts against the thread's owner, or in an
    anonymous thread against its key and against all anonymous use. It also counts against the guest's network, if that
    is known.
    """
    keys: dict[BudgetScope, bytes] = {"run": b"", "thread": thread_id.bytes}
    if caller.user_id is not None:
        return keys | {"user": caller.user_id.bytes, "accounts": b""}
    if caller.network is not None:
        keys["network"] = caller.network.encode()
    if owner_id is not None:
        return keys | {"user": owner_id.bytes, "accounts": b""}
    return keys | {"anonymous": b""} | ({} if anon_key_hash is None else {"key": anon_key_hash})


def reservation_requests(
    policy: BudgetPolicy, keys: Mapping[BudgetScope, bytes], own: RunBudget | None, now: datetime
) -> list[ReservationRequest]:
    """The reservations of a send. A run reserves its own limits in full: no other run shares them."""
    shared = [limit for limit in policy.limits if limit.scope in keys and limit.scope != "run"]
    return [_initial_request(limit, keys.get(limit.scope, b""), now) for limit in (*shared, *run_limits(policy, own))]


def run_limits(policy: BudgetPolicy, own: RunBudget | None) -> list[BudgetLimit]:
    """The limits of one run: the operator's, or the run's own where they are lower."""
    most = {limit.measure: limit.most for limit in policy.limits if limit.scope == "run"}
    requested: dict[BudgetMeasure, Decimal | None] = (
        {} if own is None else {"usd": own.usd, "tokens": _decimal(own.tokens), "seconds": _decimal(own.seconds)}
    )
    for measure, amount in requested.items():
        if amount is not None:
            most[measure] = min(amount, most.get(measure, amount))
    return [BudgetLimit(scope="run", measure=measure, most=amount) for measure, amount in most.items()]


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(str(number))


def _initial_request(limit: BudgetLimit, key: bytes, now: datetime) -> ReservationRequest:
    starts_at, ends_at = current_window(limit, now)
    wanted = limit.most if limit.scope == "run" else min(INITIAL_RESERVATION[limit.measure], limit.most)
    all_or_nothing = limit.scope == "run" or limit.measure == "runs"
    return ReservationRequest(
        scope=limit.scope,
        measure=limit.measure,
        key=key,
        starts_at=starts_at,
        ends_at=ends_at,
        least=wanted if all_or_nothing else wanted * MIN_RESERVATION_FRACTION,
        wanted=wanted,
        most=limit.most,
    )


def grantable_amount(request: ReservationRequest, usage: WindowUsage, now: datetime) -> Decimal:
    """The amount that may be reserved. Raises `BudgetExhausted` if it is less than the request needs."""
    left = usage.left(request.most)
    if left < request.least:
        raise exhausted_error(request, usage, now)
    # Rounded as it is stored: otherwise the released amount would differ from the reserved one.
    return min(request.wanted, left).quantize(SMALLEST_AMOUNT, ROUND_DOWN)


def exhausted_error(request: ReservationRequest, usage: WindowUsage, now: datetime) -> BudgetExhausted:
    """The error. It has the seconds until the window ends, or fewer if released reservations may suffice earlier."""
    message = EXHAUSTED_MESSAGES[request.scope]
    limit = reached_limit(request.scope, request.measure, request.most)
    if request.ends_at == END_OF_TIME:
        return BudgetExhausted(
            OUT_OF_TIME_MESSAGE if (request.scope, request.measure) == ("run", "seconds") else message, limit=limit
        )
    left = max(1.0, (request.ends_at - now).total_seconds())
    may_be_released = request.measure != "runs" and usage.settled + request.least <= request.most
    retry_after = min(RETRY_WHEN_RESERVED_SECONDS, left) if may_be_released else left
    return BudgetExhausted(message, limit=limit, retry_after=retry_after)


def reached_limit(scope: BudgetScope, measure: BudgetMeasure, most: Decimal) -> ReachedLimit:
    """The name of a limit in errors, as in `usd_per_day`."""
    period = "run" if scope == "run" else "hour" if measure == "runs" else "day"
    return ReachedLimit(f"{measure}_per_{period}", LIMIT_SCOPES[scope], most)
