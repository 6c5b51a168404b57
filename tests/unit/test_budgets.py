"""Budget decisions without I/O: the payer, the window, the granted amount, and the settings."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.budgets import (
    DAY_SECONDS,
    END_OF_TIME,
    HOUR_SECONDS,
    INITIAL_RESERVATION,
    OUT_OF_TIME_MESSAGE,
    RETRY_WHEN_RESERVED_SECONDS,
    UNIX_EPOCH,
    BudgetLimit,
    BudgetMeasure,
    BudgetOverride,
    BudgetPolicy,
    BudgetScope,
    ReservationRequest,
    WindowUsage,
    budget_keys,
    current_window,
    exhausted_error,
    grantable_amount,
    reservation_requests,
    run_limits,
)
from khala.domain.chat import RunBudget, RunOptions
from khala.domain.errors import BudgetExhausted
from khala.domain.parts import TokenUsage
from khala.models.prices import cost
from khala.runs.budget_meter import BudgetMeter, _smallest_reserved, estimate_rate
from khala.runs.usage_tally import UsageTally, size
from khala.settings import SettingError, from_environment
from khala.store.budgets.ledger import LedgerEntry, RunAccount

NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
THREAD, OWNER, USER = ids.new(), ids.new(), ids.new()
KEY = b"hash of a key"


def limit(scope: BudgetScope, measure: BudgetMeasure, most: str, window: int | None = DAY_SECONDS) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure=measure, most=Decimal(most), window=window)


def reservation_request(
    most: str, *, least: str = "1", wanted: str = "1", measure: BudgetMeasure = "usd"
) -> ReservationRequest:
    starts_at, ends_at = current_window(limit("key", measure, most), NOW)
    return ReservationRequest(
        scope="key", measure=measure, key=KEY, starts_at=starts_at, ends_at=ends_at,
        least=Decimal(least), wanted=Decimal(wanted), most=Decimal(most),
    )  # fmt: skip


def test_windows_are_hours_and_days_in_utc() -> None:
    hour, day = (
        current_window(limit("key", "runs", "1", HOUR_SECONDS), NOW),
        current_window(limit("key", "usd", "1", DAY_SECONDS), NOW),
    )
    assert hour == (datetime(2026, 3, 4, 5, tzinfo=UTC), datetime(2026, 3, 4, 6, tzinfo=UTC))
    assert day == (datetime(2026, 3, 4, tzinfo=UTC), datetime(2026, 3, 5, tzinfo=UTC))
    assert current_window(limit("run", "usd", "1", None), NOW) == (UNIX_EPOCH, END_OF_TIME)


@given(
    st.datetimes(min_value=datetime(1960, 1, 1), max_value=datetime(2200, 1, 1)),
    st.sampled_from([60, HOUR_SECONDS, DAY_SECONDS]),
)
def test_every_time_is_in_its_window_and_windows_are_adjacent(moment: datetime, length: int) -> None:
    now = moment.replace(tzinfo=UTC)
    starts_at, ends_at = current_window(limit("key", "usd", "1", length), now)
    assert starts_at <= now < ends_at
    assert current_window(limit("key", "usd", "1", length), ends_at)[0] == ends_at


ALL: dict[BudgetScope, bytes] = {"accounts": b""}


@pytest.mark.parametrize(
    ("caller", "owner", "key", "expected"),
    [
        (Caller(user_id=USER, anon_key_hash=KEY, network="n"), None, KEY, {"user": USER.bytes} | ALL),
        (Caller(user_id=USER, share_key_hash=b"s", network="n"), OWNER, None, {"user": USER.bytes} | ALL),
        (Caller(anon_key_hash=KEY, network="n"), None, KEY, {"key": KEY, "network": b"n", "anonymous": b""}),
        (Caller(anon_key_hash=KEY), None, KEY, {"key": KEY, "anonymous": b""}),
        (Caller(share_key_hash=b"s", network="n"), OWNER, None, {"user": OWNER.bytes, "network": b"n"} | ALL),
        (Caller(share_key_hash=b"s"), OWNER, None, {"user": OWNER.bytes} | ALL),
        (Caller(share_key_hash=b"s", anon_key_hash=b"mine"), None, KEY, {"key": KEY, "anonymous": b""}),
    ],
)
def test_an_account_pays_for_itself_and_the_threads_owner_for_a_guest(
    caller: Caller, owner: UUID | None, key: bytes | None, expected: dict[BudgetScope, bytes]
) -> None:
    assert budget_keys(caller, THREAD, owner, key) == expected | {"run": b"", "thread": THREAD.bytes}


def test_a_send_reserves_a_first_portion_of_shared_budgets_and_all_of_its_own() -> None:
    policy = BudgetPolicy(limits=(limit("key", "runs", "9"), limit("user", "usd", "5"), limit("run", "usd", "2", None)))
    found = {
        reservation.scope: reservation
        for reservation in reservation_requests(policy, {"user": b"u", "run": b""}, None, NOW)
    }
    assert set(found) == {"user", "run"}
    assert (found["user"].wanted, found["user"].most) == (INITIAL_RESERVATION["usd"], Decimal(5))
    assert found["user"].least < found["user"].wanted
    assert found["run"].least == found["run"].wanted == found["run"].most == 2


def test_a_runs_own_budget_only_lowers_the_operators_limit() -> None:
    policy = BudgetPolicy(limits=(limit("run", "usd", "1", None), limit("run", "seconds", "900", None)))
    own = RunBudget(usd=Decimal(3), tokens=50, seconds=0.5)
    assert {budget.measure: budget.most for budget in run_limits(policy, own)} == {
        "usd": Decimal(1), "tokens": Decimal(50), "seconds": Decimal("0.5"),
    }  # fmt: skip
    assert run_limits(BudgetPolicy(), None) == []


def test_the_rest_is_granted_if_it_is_enough_to_start() -> None:
    level = WindowUsage(reserved=Decimal(3), settled=Decimal(2))
    assert grantable_amount(reservation_request("10", least="1", wanted="4"), level, NOW) == 4
    assert grantable_amount(reservation_request("7", least="1", wanted="4"), level, NOW) == 2
    assert grantable_amount(reservation_request("6", least="1", wanted="4"), level, NOW) == 1, (
        "exactly the least amount"
    )
    assert grantable_amount(reservation_request("7.00000000009", wanted="4"), level, NOW) == 2, (
        "never more than is left"
    )
    with pytest.raises(BudgetExhausted):
        grantable_amount(reservation_request("5.5", least="1", wanted="4"), level, NOW)


def test_a_refusal_has_the_end_of_the_window_or_an_earlier_time_if_reservations_may_be_released() -> None:
    until_midnight = (datetime(2026, 3, 5, tzinfo=UTC) - NOW).total_seconds()
    used, held = WindowUsage(settled=Decimal(10)), WindowUsage(reserved=Decimal(10))
    assert exhausted_error(reservation_request("10"), used, NOW).retry_after == until_midnight
    assert exhausted_error(reservation_request("10"), held, NOW).retry_after == RETRY_WHEN_RESERVED_SECONDS
    assert exhausted_error(reservation_request("10", measure="runs"), held, NOW).retry_after == until_midnight
    late = NOW.replace(hour=23, minute=59, second=59)
    assert exhausted_error(reservation_request("10"), used, late).retry_after == 1.0


def test_a_runs_own_limit_is_distinguished_from_its_time_limit() -> None:
    (usd,) = reservation_requests(BudgetPolicy(limits=(limit("run", "usd", "1", None),)), {}, None, NOW)
    (seconds,) = reservation_requests(BudgetPolicy(limits=(limit("run", "seconds", "1", None),)), {}, None, NOW)
    assert (
        exhausted_error(seconds, WindowUsage(), NOW).message
        == OUT_OF_TIME_MESSAGE
        != exhausted_error(usd, WindowUsage(), NOW).message
    )
    assert exhausted_error(usd, WindowUsage(), NOW).retry_after == BudgetExhausted.DEFAULT_RETRY_SECONDS


amounts = st.decimals(min_value=0, max_value=10, places=4)


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "use"]), amounts), max_size=40), amounts)
def test_whatever_is_granted_the_sum_stays_within_the_limit(steps: list[tuple[str, Decimal]], most: Decimal) -> None:
    level, taken = WindowUsage(), list[Decimal]()
    for action, amount in steps:
        if action == "take" and amount > 0:
            wish = reservation_request(str(most), least=str(amount / 10), wanted=str(amount))
            try:
                taken.append(grantable_amount(wish, level, NOW))
            except BudgetExhausted:
                continue
            level = WindowUsage(reserved=level.reserved + taken[-1], settled=level.settled)
        elif taken:
            freed = taken.pop()
            used = min(freed, amount) if action == "use" else Decimal(0)
            level = WindowUsage(reserved=level.reserved - freed, settled=level.settled + used)
        assert level.reserved >= 0
        assert level.reserved + level.settled <= most


@pytest.mark.parametrize("given_", ['{"usd":"0.5"}', '{"usd":0.5}', '{"tokens":1}', '{"seconds":1.5,"usd":"2"}', "{}"])
def test_a_run_budget_may_be_numbers_or_decimal_strings(given_: str) -> None:
    options = msgspec.json.decode(f'{{"budget":{given_}}}', type=RunOptions)
    assert msgspec.json.decode(msgspec.json.encode(options), type=RunOptions) == options


@pytest.mark.parametrize(
    "given_",
    ['{"usd":"0"}', '{"usd":-1}', '{"usd":"NaN"}', '{"usd":"Infinity"}', '{"usd":1e99}', '{"usd":"a lot"}',
     '{"tokens":0}', '{"tokens":1.5}', '{"tokens":1e30}', '{"seconds":0}', '{"seconds":-1}', '{"seconds":1e9}'],
)  # fmt: skip
def test_an_invalid_run_budget_is_refused(given_: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(f'{{"budget":{given_}}}', type=RunOptions)


def found_limits(**env: str) -> dict[tuple[str, str], tuple[Decimal, int | None]]:
    return {
        (budget.scope, budget.measure): (budget.most, budget.window)
        for budget in from_environment(env).limits.budgets.limits
    }


def test_the_default_limits_apply_without_settings() -> None:
    assert found_limits() == {
        ("key", "runs"): (Decimal(200), HOUR_SECONDS),
        ("key", "usd"): (Decimal("0.50"), DAY_SECONDS),
        ("key", "tokens"): (Decimal(2_000_000), DAY_SECONDS),
        ("network", "runs"): (Decimal(1000), HOUR_SECONDS),
        ("network", "usd"): (Decimal("2.50"), DAY_SECONDS),
        ("anonymous", "usd"): (Decimal(20), DAY_SECONDS),
        ("accounts", "usd"): (Decimal(100), DAY_SECONDS),
        ("user", "runs"): (Decimal(300), HOUR_SECONDS),
        ("user", "usd"): (Decimal(10), DAY_SECONDS),
        ("run", "usd"): (Decimal(1), None),
        ("run", "seconds"): (Decimal(900), None),
    }


@pytest.mark.parametrize(
    ("name", "scope", "measure"),
    [
        ("KHALA_ANON_RUNS_PER_HOUR", "key", "runs"),
        ("KHALA_ANON_USD_PER_DAY", "key", "usd"),
        ("KHALA_ANON_TOKENS_PER_DAY", "key", "tokens"),
        ("KHALA_NETWORK_RUNS_PER_HOUR", "network", "runs"),
        ("KHALA_NETWORK_USD_PER_DAY", "network", "usd"),
        ("KHALA_ANON_TOTAL_USD_PER_DAY", "anonymous", "usd"),
        ("KHALA_USER_TOTAL_USD_PER_DAY", "accounts", "usd"),
        ("KHALA_USER_RUNS_PER_HOUR", "user", "runs"),
        ("KHALA_USER_USD_PER_DAY", "user", "usd"),
        ("KHALA_USER_TOKENS_PER_DAY", "user", "tokens"),
        ("KHALA_THREAD_USD_PER_DAY", "thread", "usd"),
        ("KHALA_RUN_USD", "run", "usd"),
        ("KHALA_RUN_TOKENS", "run", "tokens"),
        ("KHALA_RUN_SECONDS", "run", "seconds"),
    ],
)
def test_a_variable_sets_its_limit_and_zero_disables_it(name: str, scope: str, measure: str) -> None:
    assert found_limits(**{name: "7"})[scope, measure][0] == 7
    assert (scope, measure) not in found_limits(**{name: "0"})
    if measure == "usd":
        assert str(found_limits(**{name: "0.1"})[scope, measure][0]) == "0.1"
    for value in ("-1", "nan", "much", *(["1.5"] if measure in {"runs", "tokens"} else [])):
        with pytest.raises(SettingError, match=name):
            from_environment({name: value})


def test_the_limits_of_a_network_are_derived_from_those_of_a_key() -> None:
    found = found_limits(KHALA_ANON_RUNS_PER_HOUR="2", KHALA_ANON_USD_PER_DAY="0.3")
    assert (found["network", "runs"][0], found["network", "usd"][0]) == (Decimal(10), Decimal("1.5"))


def test_a_rate_is_that_of_the_price_list() -> None:
    from khala.domain.parts import TokenUsage

    found = estimate_rate("openai", "gpt-4o", 1000)
    assert found.usd is not None
    assert found.usd + 500 * found.usd_per_token == cost(
        "openai", "gpt-4o", TokenUsage(input_tokens=1000, output_tokens=500)
    )
    assert estimate_rate("openai", "no-such-model", 7).usd is None
    assert estimate_rate("demo", "demo", 7).usd == 0


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("abcd", 4), ("日本", 6), ("é", 3)])
def test_the_size_of_a_text_is_about_its_bytes(text: str, expected: Any) -> None:
    assert size(text) == expected


def test_windows_have_the_length_of_their_limit() -> None:
    starts_at, ends_at = current_window(limit("key", "usd", "1", 900), NOW)
    assert ends_at - starts_at == timedelta(minutes=15)


def entry(scope: BudgetScope, measure: BudgetMeasure, reserved: int) -> LedgerEntry:
    amount = Decimal(reserved)
    return LedgerEntry(scope=scope, measure=measure, key=b"", starts_at=UNIX_EPOCH, reserved=amount, most=amount)


def test_the_tightest_of_several_limits_counts() -> None:
    entries = (entry("user", "tokens", 300), entry("run", "tokens", 100), entry("accounts", "tokens", 200))
    assert _smallest_reserved((*entries, entry("user", "usd", 5))) == {"tokens": 100, "usd": 5}


def test_time_of_earlier_executors_counts() -> None:
    account = RunAccount(entries=(entry("run", "seconds", 60),), seconds=Decimal(50))
    database: Any = None
    meter = BudgetMeter(database, ids.new(), account, UsageTally())
    assert 9 < meter._seconds_left() <= 10


def test_all_tokens_of_a_run_count() -> None:
    database: Any = None
    tally = UsageTally(TokenUsage(input_tokens=30, output_tokens=40))
    meter = BudgetMeter(database, ids.new(), RunAccount(entries=(entry("run", "tokens", 100),)), tally)
    assert meter.affordable_tokens("demo", "demo") == 30


def test_runs_that_used_up_a_window_are_not_retried_within_it() -> None:
    now = datetime(2031, 5, 5, 12, 0, tzinfo=UTC)
    request = ReservationRequest(
        scope="user", measure="runs", key=b"", starts_at=now, ends_at=now + timedelta(hours=1), least=Decimal(1),
        wanted=Decimal(1), most=Decimal(10),
    )  # fmt: skip
    refused = exhausted_error(request, WindowUsage(reserved=Decimal(9), settled=Decimal(1)), now)
    assert refused.retry_after == 3600


def test_limits_of_one_account_replace_those_of_its_plan() -> None:
    usd, runs = limit("user", "usd", "5"), limit("user", "runs", "100", HOUR_SECONDS)
    others = limit("accounts", "usd", "50")
    policy = BudgetPolicy(limits=(others, usd, runs))
    assert policy.overridden(None) == policy
    assert policy.overridden(BudgetOverride()) == policy
    changed = policy.overridden(
        BudgetOverride(usd_per_day=Decimal(1), runs_per_hour=Decimal(0), tokens_per_day=Decimal(9))
    )
    tokens = limit("user", "tokens", "9")
    assert changed.limits == (others, msgspec.structs.replace(usd, most=Decimal(1)), tokens)
