"""Settings of limits: queues, request rates, and the budgets of keys, networks, users, threads and runs."""

from decimal import Decimal

from khala.domain import budgets
from khala.domain.budgets import DAY_SECONDS, HOUR_SECONDS, BudgetLimit
from khala.settings.fields import MAX_NUMBER, Amount, SettingGroup, Whole, WholeAmount, setting

NETWORK_FACTOR = 5
"""A network's limits are this many times a key's, unless they are set."""
LOOPBACK_FIELDS = frozenset({"anon_runs_per_hour", "anon_usd_per_day", "network_runs_per_hour", "network_usd_per_day"})
"""Limits that apply to callers on this machine, too, once an operator has set one."""


class LimitSettings(SettingGroup):
    """Limits of use. 0 switches off a budget."""

    runs_per_owner: Whole = setting(
        "KHALA_RUNS_PER_OWNER",
        20,
        "Runs of one owner that may be queued or active; further ones get status 429.",
        minimum=1,
        maximum=MAX_NUMBER,
    )
    queue_limit: Whole = setting(
        "KHALA_QUEUE_LIMIT",
        1000,
        "Runs that may be queued in all; further ones get status 429. Sends at the same moment may exceed it, by fewer "
        "runs than all processes together have connections for requests (`KHALA_POOL_SIZE`).",
        minimum=1,
        maximum=MAX_NUMBER,
    )
    webhooks_per_account: Whole = setting(
        "KHALA_WEBHOOKS_PER_ACCOUNT",
        10,
        "Webhooks of one account; further ones get status 409. 0 for none. The operator's are not counted.",
        minimum=0,
        maximum=100,
    )
    requests_per_minute: Whole = setting(
        "KHALA_REQUESTS_PER_MINUTE",
        600,
        "Requests per minute and client (IP address or credential), per process. A file of the page counts as a tenth "
        "of a request. It applies to loopback addresses only where it is set. 0 for no limit.",
        minimum=0,
        maximum=MAX_NUMBER,
    )
    anon_runs_per_hour: WholeAmount = setting(
        "KHALA_ANON_RUNS_PER_HOUR", Decimal(200), "Runs of one anonymous key.", unit="runs per hour"
    )
    anon_usd_per_day: Amount = setting(
        "KHALA_ANON_USD_PER_DAY", Decimal("0.50"), "Cost of one anonymous key.", unit="USD per day"
    )
    anon_tokens_per_day: WholeAmount = setting(
        "KHALA_ANON_TOKENS_PER_DAY", Decimal(2_000_000), "Tokens of one anonymous key.", unit="tokens per day"
    )
    network_runs_per_hour: WholeAmount | None = setting(
        "KHALA_NETWORK_RUNS_PER_HOUR",
        None,
        "Runs of all users without an account in one network (IPv4 /24, IPv6 /56).",
        unit="runs per hour",
        shown_default="5 × the key's",
    )
    network_usd_per_day: Amount | None = setting(
        "KHALA_NETWORK_USD_PER_DAY",
        None,
        "Cost of all users without an account in one network.",
        unit="USD per day",
        shown_default="5 × the key's",
    )
    anon_total_usd_per_day: Amount = setting(
        "KHALA_ANON_TOTAL_USD_PER_DAY", Decimal(20), "Cost of all users without an account together.",
        unit="USD per day",
    )  # fmt: skip
    user_runs_per_hour: WholeAmount = setting(
        "KHALA_USER_RUNS_PER_HOUR", Decimal(300), "Runs of one account.", unit="runs per hour"
    )
    user_usd_per_day: Amount = setting(
        "KHALA_USER_USD_PER_DAY", Decimal(10), "Cost of one account.", unit="USD per day"
    )
    user_tokens_per_day: WholeAmount = setting(
        "KHALA_USER_TOKENS_PER_DAY", Decimal(0), "Tokens of one account.", unit="tokens per day"
    )
    user_total_usd_per_day: Amount = setting(
        "KHALA_USER_TOTAL_USD_PER_DAY", Decimal(100), "Cost of all accounts together.", unit="USD per day"
    )
    thread_usd_per_day: Amount = setting(
        "KHALA_THREAD_USD_PER_DAY", Decimal(0), "Cost of one thread.", unit="USD per day"
    )
    run_usd: Amount = setting("KHALA_RUN_USD", Decimal(1), "Cost of one run.", unit="USD")
    run_tokens: WholeAmount = setting("KHALA_RUN_TOKENS", Decimal(0), "Tokens of one run.", unit="tokens")
    run_seconds: Amount = setting("KHALA_RUN_SECONDS", Decimal(900), "Time of one run.", unit="seconds")

    @property
    def budgets(self) -> budgets.BudgetPolicy:
        """The limits that are not switched off."""
        runs, usd = self.network_runs_per_hour, self.network_usd_per_day
        limits = (
            _runs("key", self.anon_runs_per_hour),
            _usd("key", self.anon_usd_per_day),
            _tokens("key", self.anon_tokens_per_day),
            _runs("network", NETWORK_FACTOR * self.anon_runs_per_hour if runs is None else runs),
            _usd("network", NETWORK_FACTOR * self.anon_usd_per_day if usd is None else usd),
            _usd("anonymous", self.anon_total_usd_per_day),
            _usd("accounts", self.user_total_usd_per_day),
            _runs("user", self.user_runs_per_hour),
            _usd("user", self.user_usd_per_day),
            _tokens("user", self.user_tokens_per_day),
            _usd("thread", self.thread_usd_per_day),
            BudgetLimit(scope="run", measure="usd", most=self.run_usd),
            BudgetLimit(scope="run", measure="tokens", most=self.run_tokens),
            BudgetLimit(scope="run", measure="seconds", most=self.run_seconds),
        )
        return budgets.BudgetPolicy(limits=tuple(limit for limit in limits if limit.most))

    @property
    def limit_loopback_networks(self) -> bool:
        """Whether limits of networks apply to callers on this machine, too: an operator has set one of them."""
        return any(getattr(self, name) for name in self.model_fields_set & LOOPBACK_FIELDS)

    @property
    def limit_loopback_requests(self) -> bool:
        """Whether the limit of requests applies to callers on this machine, too: an operator has set it."""
        return "requests_per_minute" in self.model_fields_set


def _runs(scope: budgets.BudgetScope, most: Decimal) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="runs", most=most, window=HOUR_SECONDS)


def _tokens(scope: budgets.BudgetScope, most: Decimal) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="tokens", most=most, window=DAY_SECONDS)


def _usd(scope: budgets.BudgetScope, most: Decimal) -> BudgetLimit:
    return BudgetLimit(scope=scope, measure="usd", most=most, window=DAY_SECONDS)
