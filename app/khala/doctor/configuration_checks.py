"""Checks of settings that work but are a risk in production."""

from collections.abc import Iterator
from ipaddress import ip_address
from shutil import which
from urllib.parse import urlsplit

from khala.doctor.findings import Finding, bad, ok, warn
from khala.domain.budgets import BudgetScope
from khala.models.provider_registry import PROVIDERS
from khala.settings import Settings

MIN_LEASE_SECONDS = 5.0
"""Time after which a frozen process's transaction is ended. Until then its runs cannot be taken over."""
TOTALS: dict[BudgetScope, str] = {
    "anonymous": "KHALA_ANON_TOTAL_USD_PER_DAY",
    "accounts": "KHALA_USER_TOTAL_USD_PER_DAY",
}


def findings(settings: Settings) -> list[Finding]:
    """All risks, or one finding that is ok where there are none."""
    risks = [*_exposure(settings), *_trust(settings), *_spending(settings), *_leases(settings), *_commands(settings)]
    return risks or [ok("settings", "no known risk")]


def _exposure(settings: Settings) -> Iterator[Finding]:
    """Clients that can reach the server, and eavesdroppers."""
    public = settings.server.public_url
    if public is not None and public.startswith("http:") and not _is_loopback(urlsplit(public).hostname or ""):
        yield bad(
            "settings: KHALA_PUBLIC_URL",
            "without TLS, passwords and messages can be overheard: put a proxy with TLS in front of Khala, and use"
            " https://…",
        )
    if public is None and not _is_loopback(settings.server.host):
        yield warn(
            "settings: HOST",
            f"{settings.server.host} is open to the network, and Khala itself speaks no TLS: put a proxy with TLS in"
            " front of it, and set KHALA_PUBLIC_URL=https://… and KHALA_TRUSTED_PROXIES. Until then it answers to every"
            " host name",
        )
    elif settings.server.allowed_hosts.allows_any:
        yield warn(
            "settings: KHALA_HOSTS",
            "the server answers to every name, so a hostile page can reach it by DNS rebinding: set the server's names",
        )
    if _is_public(settings) and all(ref.provider == "demo" for ref in settings.model_chain):
        keys = ", ".join(spec.key_variables[0] for spec in PROVIDERS.values())
        yield warn("settings: KHALA_MODEL", f"only the demo model answers: set it, or one of {keys}")


def _trust(settings: Settings) -> Iterator[Finding]:
    """Proxies and web pages that are trusted."""
    public, proxies = settings.server.public_url, settings.server.trusted_proxies
    if public is not None and public.startswith("https:") and not proxies:
        yield bad(
            "settings: KHALA_TRUSTED_PROXIES",
            "KHALA_PUBLIC_URL says that there is a proxy, and none is trusted: all clients count as one machine and"
            " share its limits. Set the proxy's address, as 127.0.0.1 or 10.0.0.0/8",
        )
    if any(network.prefixlen == 0 for network in proxies):
        yield bad(
            "settings: KHALA_TRUSTED_PROXIES",
            "every client may claim any address, so limits by network have no effect: name the proxies only",
        )
    if "*" in settings.server.origins:
        yield warn(
            "settings: KHALA_ORIGINS",
            "any web page may call the API with a key or token that a person gives it: name the pages that may",
        )


def _spending(settings: Settings) -> Iterator[Finding]:
    """Costs without a limit."""
    if all(ref.provider == "demo" for ref in settings.model_chain):
        return
    limited = {limit.scope for limit in settings.limits.budgets.limits if limit.measure == "usd"}
    for scope, name in TOTALS.items():
        if scope not in limited:
            yield warn(f"settings: {name}", "0 is no limit on what all of them spend in a day: set one")
    if not any(limit.scope == "run" for limit in settings.limits.budgets.limits):
        yield warn(
            "settings: KHALA_RUN_USD",
            "neither it nor KHALA_RUN_TOKENS or KHALA_RUN_SECONDS is set, so a run may go on for ever: set one",
        )
    for provider, access in settings.providers.items():
        split = urlsplit(access.url or "")
        if access.key and split.scheme == "http" and not _is_loopback(split.hostname or ""):
            yield warn(
                f"settings: address of {provider}",
                f"the key and all conversations go to {split.hostname} without TLS: use https, or a private network",
            )


def _leases(settings: Settings) -> Iterator[Finding]:
    if settings.runs.lease_seconds <= MIN_LEASE_SECONDS:
        yield warn(
            "settings: KHALA_LEASE_SECONDS",
            f"with {settings.runs.lease_seconds:g} s a process that is slow for a moment loses its runs to another: set"
            f" 10, and more than {MIN_LEASE_SECONDS:g} in any case",
        )


def _is_public(settings: Settings) -> bool:
    return settings.server.public_url is not None or not _is_loopback(settings.server.host)


def _is_loopback(host: str) -> bool:
    """Whether this host is the machine itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _commands(settings: Settings) -> Iterator[Finding]:
    """Command agents that cannot run, and those by which a visitor can run a program with Khala's rights."""
    for command in settings.commands.values():
        what = f"settings: KHALA_COMMANDS: {command.name}"
        if not command.sandbox and "/" not in command.argv[0] and which(command.argv[0]) is None:
            yield warn(what, f"there is no program {command.argv[0]} on the PATH of Khala's process")
        if command.guests and not command.sandbox:
            yield warn(
                what,
                "every visitor can have this program act with the rights of Khala's process: set sandbox, or leave out"
                " guests",
            )
