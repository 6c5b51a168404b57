"""Budgets: who pays for a run, which limits it meets, and how much of each it may take."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import RunBudget, WireStruct
from khala.domain.errors import BudgetExhausted

BudgetScope: TypeAlias = Literal["run", "thread", "user", "accounts", "key", "network", "anonymous"]
"""Whom a limit is for: one run, thread or user, all users, one anonymous key, one network, or all anonymous use."""
BudgetMeasure: TypeAlias = Literal["usd", "tokens", "runs", "seconds"]

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS
UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
SMALLEST_AMOUNT = Decimal("0.0000000001")
"""The least amount that can be stored."""

INITIAL_RESERVATION: dict[BudgetMeasure, Decimal] = {
    "usd": Decimal("0.005"), "tokens": Decimal(2000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""What a send reserves: little, because a run that waits holds it back from others."""
FURTHER_RESERVATION: dict[BudgetMeasure, Decimal] = {
    "usd": Decimal("0.02"), "tokens": Decimal(4000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""What a run under way reserves beyond what it needs just then, so that it asks every few seconds at most."""
MIN_RESERVATION_FRACTION = Decimal("0.1")
"""The part of the first portion without which a run isn't begun: it would end in the midst of its first sentence."""
RETRY_WHEN_RESERVED_SECONDS = 30.0
"""Seconds after which a limit is worth another try that is full of reservations, much of which comes back."""

EXHAUSTED_MESSAGES: dict[BudgetScope, str] = {
    "run": "This answer has reached its budget.",
    "thread": "The budget of this chat is used up for now.",
    "user": "The budget of this account is used up for now.",
    "accounts": "The budget of this server is used up for now. Try again later.",
    "key": "Your budget is used up for now. Try again later, or sign in.",
    "network": "The budget of your network is used up for now. Try again later, or sign in.",
    "anonymous": "The budget for guests is used up for now. Try again later, or sign in.",
}
"""What a person is told when a limit is reached."""
OUT_OF_TIME_MESSAGE = "This answer has reached its time limit."


class BudgetLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The most of a measure in each window of so many seconds; without a window, in all.

    Of a scope and measure there is one limit. Without a price a model's usd can't be counted; tokens and runs are.
    """

    scope: BudgetScope
    measure: BudgetMeasure
    most: Decimal
    window: int | None = None


class BudgetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits: `user`, `accounts` for who has an account; `key`, `network`, `anonymous` for others."""

    limits: tuple[BudgetLimit, ...] = ()


class ReservationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be taken of a limit in one window: `wanted`, or what is left, but not less than `least`."""

    scope: BudgetScope
    measure: BudgetMeasure
    key: bytes
    starts_at: datetime
    ends_at: datetime
    least: Decimal
    wanted: Decimal
    most: Decimal

    @property
    def place(self) -> "WindowKey":
        """The window that it is about."""
        return self.scope, self.key, self.measure, self.starts_at


WindowKey: TypeAlias = tuple[str, bytes, str, datetime]
"""One window of a limit: scope, key, measure and beginning."""


class WindowUsage(msgspec.Struct, frozen=True, kw_only=True):
    """How full a window is: what is held back for runs under way, and what was used."""

    reserved: Decimal = Decimal(0)
    settled: Decimal = Decimal(0)

    def left(self, most: Decimal) -> Decimal:
        """What is free under this limit; less than nothing where runs have used more than they had reserved."""
        return most - self.settled - self.reserved


class BudgetUsage(WireStruct, frozen=True, kw_only=True):
    """What is used of a limit. Numbers are decimal strings; `used` is what ended runs used, `reserved` what is held
    back for those under way; both are 0 again at `endsAt`."""  # noqa: D205, D209

    scope: BudgetScope
    measure: BudgetMeasure
    used: str
    reserved: str
    most: str
    ends_at: datetime | None = None


def current_window(limit: BudgetLimit, now: datetime) -> tuple[datetime, datetime]:
    """The window of the limit in which `now` is. Windows are fixed: hours and days as UTC has them."""
    if limit.window is None:
        return UNIX_EPOCH, END_OF_TIME
    return fixed_window(limit.window, now)


def fixed_window(seconds: int, now: datetime) -> tuple[datetime, datetime]:
    """The beginning and the end of the window of so many seconds in which `now` is, counted from 1970 on."""
    length = timedelta(seconds=seconds)
    starts_at = UNIX_EPOCH + (now - UNIX_EPOCH) // length * length
    return starts_at, starts_at + length


def budget_keys(
    caller: Caller, thread_id: UUID, owner_id: UUID | None, anon_key_hash: bytes | None
) -> dict[BudgetScope, bytes]:
    """Whose limits a send to this thread meets, as the keys of their scopes.

    Who has an account pays alone. For a guest the thread's owner pays, or in an anonymous thread its key together with
    all other anonymous use; and what comes from the guest's network counts for the network, where that is known.
    """
    found: dict[BudgetScope, bytes] = {"run": b"", "thread": thread_id.bytes}
    if caller.user_id is not None:
        return found | {"user": caller.user_id.bytes, "accounts": b""}
    if caller.network is not None:
        found["network"] = caller.network.encode()
    if owner_id is not None:
        return found | {"user": owner_id.bytes, "accounts": b""}
    return found | {"anonymous": b""} | ({} if anon_key_hash is None else {"key": anon_key_hash})


def reservation_requests(
    policy: BudgetPolicy, keys: Mapping[BudgetScope, bytes], own: RunBudget | None, now: datetime
) -> list[ReservationRequest]:
    """What a send has to reserve. A run's own limits concern nobody else, so it has all of them at once."""
    shared = [limit for limit in policy.limits if limit.scope in keys and limit.scope != "run"]
    return [_first(limit, keys.get(limit.scope, b""), now) for limit in (*shared, *run_limits(policy, own))]


def run_limits(policy: BudgetPolicy, own: RunBudget | None) -> list[BudgetLimit]:
    """The limits of one run: the operator's, and its own where they are lower."""
    most = {limit.measure: limit.most for limit in policy.limits if limit.scope == "run"}
    wished: dict[BudgetMeasure, Decimal | None] = (
        {} if own is None else {"usd": own.usd, "tokens": _decimal(own.tokens), "seconds": _decimal(own.seconds)}
    )
    for measure, amount in wished.items():
        if amount is not None:
            most[measure] = min(amount, most.get(measure, amount))
    return [BudgetLimit(scope="run", measure=measure, most=amount) for measure, amount in most.items()]


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(str(number))


def _first(limit: BudgetLimit, key: bytes, now: datetime) -> ReservationRequest:
    starts_at, ends_at = current_window(limit, now)
    wanted = limit.most if limit.scope == "run" else min(INITIAL_RESERVATION[limit.measure], limit.most)
    whole = limit.scope == "run" or limit.measure == "runs"
    return ReservationRequest(
        scope=limit.scope,
        measure=limit.measure,
        key=key,
        starts_at=starts_at,
        ends_at=ends_at,
        least=wanted if whole else wanted * MIN_RESERVATION_FRACTION,
        wanted=wanted,
        most=limit.most,
    )


def grantable_amount(ask: ReservationRequest, level: WindowUsage, now: datetime) -> Decimal:
    """How much may be taken. Raises `BudgetExhausted` if that is less than has to be."""
    left = level.left(ask.most)
    if left < ask.least:
        raise exhausted_error(ask, level, now)
    # As exact as it is stored, or else what is given back would not be what was taken.
    return min(ask.wanted, left).quantize(SMALLEST_AMOUNT, ROUND_DOWN)


def exhausted_error(ask: ReservationRequest, level: WindowUsage, now: datetime) -> BudgetExhausted:
    """The refusal, with the seconds until the window ends, or fewer where reservations may come back before."""
    if ask.ends_at == END_OF_TIME:
        sentence = (
            OUT_OF_TIME_MESSAGE if (ask.scope, ask.measure) == ("run", "seconds") else EXHAUSTED_MESSAGES[ask.scope]
        )
        return BudgetExhausted(sentence)
    left = max(1.0, (ask.ends_at - now).total_seconds())
    may_come_back = ask.measure != "runs" and level.settled + ask.least <= ask.most
    return BudgetExhausted(
        EXHAUSTED_MESSAGES[ask.scope], retry_after=min(RETRY_WHEN_RESERVED_SECONDS, left) if may_come_back else left
    )
