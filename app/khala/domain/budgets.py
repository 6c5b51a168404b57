"""Budgets: who pays for a run, which limits it meets, and how much of each it may take."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from khala.domain.access import Caller
from khala.domain.chat import RunBudget, Wire
from khala.domain.errors import BudgetExhausted

Scope: TypeAlias = Literal["run", "thread", "user", "accounts", "key", "network", "anonymous"]
"""Whom a limit is for: one run, thread or user, all users, one anonymous key, one network, or all anonymous use."""
Measure: TypeAlias = Literal["usd", "tokens", "runs", "seconds"]

HOUR = 3600
DAY = 24 * HOUR
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
FOR_EVER = datetime(9999, 1, 1, tzinfo=UTC)
EXACT = Decimal("0.0000000001")
"""The least amount that can be stored."""

FIRST: dict[Measure, Decimal] = {
    "usd": Decimal("0.005"), "tokens": Decimal(2000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""What a send reserves: little, because a run that waits holds it back from others."""
MORE: dict[Measure, Decimal] = {
    "usd": Decimal("0.02"), "tokens": Decimal(4000), "runs": Decimal(1), "seconds": Decimal(60),
}  # fmt: skip
"""What a run under way reserves beyond what it needs just then, so that it asks every few seconds at most."""
LEAST = Decimal("0.1")
"""The part of the first portion without which a run isn't begun: it would end in the midst of its first sentence."""
SOON = 30.0
"""Seconds after which a limit is worth another try that is full of reservations, much of which comes back."""

SENTENCES: dict[Scope, str] = {
    "run": "This answer has reached its budget.",
    "thread": "The budget of this chat is used up for now.",
    "user": "The budget of this account is used up for now.",
    "accounts": "The budget of this server is used up for now. Try again later.",
    "key": "Your budget is used up for now. Try again later, or sign in.",
    "network": "The budget of your network is used up for now. Try again later, or sign in.",
    "anonymous": "The budget for guests is used up for now. Try again later, or sign in.",
}
"""What a person is told when a limit is reached."""
OUT_OF_TIME = "This answer has reached its time limit."


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The most of a measure in each window of so many seconds; without a window, in all.

    Of a scope and measure there is one limit. Without a price a model's usd can't be counted; tokens and runs are.
    """

    scope: Scope
    measure: Measure
    most: Decimal
    window: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits: `user`, `accounts` for who has an account; `key`, `network`, `anonymous` for others."""

    limits: tuple[Limit, ...] = ()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be taken of a limit in one window: `wanted`, or what is left, but not less than `least`."""

    scope: Scope
    measure: Measure
    key: bytes
    starts_at: datetime
    ends_at: datetime
    least: Decimal
    wanted: Decimal
    most: Decimal

    @property
    def place(self) -> "Place":
        """The window that it is about."""
        return self.scope, self.key, self.measure, self.starts_at


Place: TypeAlias = tuple[str, bytes, str, datetime]
"""One window of a limit: scope, key, measure and beginning."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """How full a window is: what is held back for runs under way, and what was used."""

    reserved: Decimal = Decimal(0)
    settled: Decimal = Decimal(0)

    def left(self, most: Decimal) -> Decimal:
        """What is free under this limit; less than nothing where runs have used more than they had reserved."""
        return most - self.settled - self.reserved


class Used(Wire, frozen=True, kw_only=True):
    """What is used of a limit. Numbers are decimal strings; `used` is what ended runs used, `reserved` what is held
    back for those under way; both are 0 again at `endsAt`."""  # noqa: D205, D209

    scope: Scope
    measure: Measure
    used: str
    reserved: str
    most: str
    ends_at: datetime | None = None


def windows(limit: Limit, now: datetime) -> tuple[datetime, datetime]:
    """The window of the limit in which `now` is. Windows are fixed: hours and days as UTC has them."""
    if limit.window is None:
        return BEGINNING, FOR_EVER
    return window_of(limit.window, now)


def window_of(seconds: int, now: datetime) -> tuple[datetime, datetime]:
    """The beginning and the end of the window of so many seconds in which `now` is, counted from 1970 on."""
    length = timedelta(seconds=seconds)
    starts_at = BEGINNING + (now - BEGINNING) // length * length
    return starts_at, starts_at + length


def payers(caller: Caller, thread_id: UUID, owner_id: UUID | None, anon_key_hash: bytes | None) -> dict[Scope, bytes]:
    """Whose limits a send to this thread meets, as the keys of their scopes.

    Who has an account pays alone. For a guest the thread's owner pays, or in an anonymous thread its key together with
    all other anonymous use; and what comes from the guest's network counts for the network, where that is known.
    """
    found: dict[Scope, bytes] = {"run": b"", "thread": thread_id.bytes}
    if caller.user_id is not None:
        return found | {"user": caller.user_id.bytes, "accounts": b""}
    if caller.network is not None:
        found["network"] = caller.network.encode()
    if owner_id is not None:
        return found | {"user": owner_id.bytes, "accounts": b""}
    return found | {"anonymous": b""} | ({} if anon_key_hash is None else {"key": anon_key_hash})


def asks(policy: Policy, keys: Mapping[Scope, bytes], own: RunBudget | None, now: datetime) -> list[Ask]:
    """What a send has to reserve. A run's own limits concern nobody else, so it has all of them at once."""
    shared = [limit for limit in policy.limits if limit.scope in keys and limit.scope != "run"]
    return [_first(limit, keys.get(limit.scope, b""), now) for limit in (*shared, *run_limits(policy, own))]


def run_limits(policy: Policy, own: RunBudget | None) -> list[Limit]:
    """The limits of one run: the operator's, and its own where they are lower."""
    most = {limit.measure: limit.most for limit in policy.limits if limit.scope == "run"}
    wished: dict[Measure, Decimal | None] = (
        {} if own is None else {"usd": own.usd, "tokens": _decimal(own.tokens), "seconds": _decimal(own.seconds)}
    )
    for measure, amount in wished.items():
        if amount is not None:
            most[measure] = min(amount, most.get(measure, amount))
    return [Limit(scope="run", measure=measure, most=amount) for measure, amount in most.items()]


def _decimal(number: float | None) -> Decimal | None:
    return None if number is None else Decimal(str(number))


def _first(limit: Limit, key: bytes, now: datetime) -> Ask:
    starts_at, ends_at = windows(limit, now)
    wanted = limit.most if limit.scope == "run" else min(FIRST[limit.measure], limit.most)
    whole = limit.scope == "run" or limit.measure == "runs"
    return Ask(
        scope=limit.scope,
        measure=limit.measure,
        key=key,
        starts_at=starts_at,
        ends_at=ends_at,
        least=wanted if whole else wanted * LEAST,
        wanted=wanted,
        most=limit.most,
    )


def granted(ask: Ask, level: Level, now: datetime) -> Decimal:
    """How much may be taken. Raises `BudgetExhausted` if that is less than has to be."""
    left = level.left(ask.most)
    if left < ask.least:
        raise exhausted(ask, level, now)
    # As exact as it is stored, or else what is given back would not be what was taken.
    return min(ask.wanted, left).quantize(EXACT, ROUND_DOWN)


def exhausted(ask: Ask, level: Level, now: datetime) -> BudgetExhausted:
    """The refusal, with the seconds until the window ends, or fewer where reservations may come back before."""
    if ask.ends_at == FOR_EVER:
        sentence = OUT_OF_TIME if (ask.scope, ask.measure) == ("run", "seconds") else SENTENCES[ask.scope]
        return BudgetExhausted(sentence)
    left = max(1.0, (ask.ends_at - now).total_seconds())
    may_come_back = ask.measure != "runs" and level.settled + ask.least <= ask.most
    return BudgetExhausted(SENTENCES[ask.scope], retry_after=min(SOON, left) if may_come_back else left)
