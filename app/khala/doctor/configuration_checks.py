"""Settings that work, and that one may regret in production."""

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from khala.doctor.findings import Finding, bad, ok, warn
from khala.domain.budgets import BudgetScope
from khala.models.provider_registry import PROVIDERS
from khala.settings import Settings

LEAST_LEASE = 5.0
"""Seconds: a frozen process's transaction is ended after so long, and until then its runs can't be taken over."""
TOTALS: dict[BudgetScope, str] = {
    "anonymous": "KHALA_ANON_TOTAL_USD_PER_DAY",
    "accounts": "KHALA_USER_TOTAL_USD_PER_DAY",
}


def findings(settings: Settings) -> list[Finding]:
    """What there is to say; one that is ok, where there is nothing."""
    found = [*_reached(settings), *_trusted(settings), *_spent(settings), *_timed(settings)]
    return found or [ok("settings", "none that is known to be dangerous")]


def _reached(settings: Settings) -> Iterator[Finding]:
    """By whom the server can be reached, and whether what they say can be overheard."""
    public = settings.server.public_url
    if public is not None and public.startswith("http:") and not _here(urlsplit(public).hostname or ""):
        yield bad(
            "settings: KHALA_PUBLIC_URL",
            "without TLS passwords and what people write can be overheard: put a proxy with TLS before Khala, and say"
            " https://…",
        )
    if public is None and not _here(settings.server.host):
        yield warn(
            "settings: HOST",
            f"{settings.server.host} is open to the network and Khala itself speaks no TLS: put a proxy with TLS before"
            " it, and set KHALA_PUBLIC_URL=https://… and KHALA_TRUSTED_PROXIES. Until then it answers to every name",
        )
    elif settings.server.allowed_hosts.everyone:
        yield warn(
            "settings: KHALA_HOSTS",
            "the server answers to every name, so a page can reach it by a name of its own: name the server's",
        )
    if _public(settings) and all(ref.provider == "demo" for ref in settings.model_chain):
        keys = ", ".join(spec.key_variables[0] for spec in PROVIDERS.values())
        yield warn("settings: KHALA_MODEL", f"only the demo model answers: set it, or one of {keys}")


def _trusted(settings: Settings) -> Iterator[Finding]:
    """Whose word is taken for who somebody is."""
    public, proxies = settings.server.public_url, settings.server.trusted_proxies
    if public is not None and public.startswith("https:") and not proxies:
        yield bad(
            "settings: KHALA_TRUSTED_PROXIES",
            "KHALA_PUBLIC_URL says that a proxy stands before Khala, and none is trusted: all people count as one"
            " machine and share its limits. Name the proxy's address, as 127.0.0.1 or 10.0.0.0/8",
        )
    if any(network.prefixlen == 0 for network in proxies):
        yield bad(
            "settings: KHALA_TRUSTED_PROXIES",
            "everybody is trusted to say where they come from, so limits by network hold nobody: name the proxies only",
        )
    if "*" in settings.server.origins:
        yield warn(
            "settings: KHALA_ORIGINS",
            "any web page may call in the name of whoever gives it a key or token: name those that shall",
        )


def _spent(settings: Settings) -> Iterator[Finding]:
    """What may cost without an end."""
    if all(ref.provider == "demo" for ref in settings.model_chain):
        return
    limited = {limit.scope for limit in settings.limits.budgets.limits if limit.measure == "usd"}
    for scope, name in TOTALS.items():
        if scope not in limited:
            yield warn(f"settings: {name}", "0 is no limit: what all of them spend in a day has no end; set one")
    if not any(limit.scope == "run" for limit in settings.limits.budgets.limits):
        yield warn("settings: KHALA_RUN_USD", "nor KHALA_RUN_TOKENS or _SECONDS: one run may go on for ever; set one")
    for provider, access in settings.providers.items():
        split = urlsplit(access.url or "")
        if access.key and split.scheme == "http" and not _here(split.hostname or ""):
            yield warn(
                f"settings: address of {provider}",
                f"the key and all conversations go to {split.hostname} without TLS: use https, or a network of its own",
            )


def _timed(settings: Settings) -> Iterator[Finding]:
    if settings.runs.lease_seconds <= LEAST_LEASE:
        yield warn(
            "settings: KHALA_LEASE_SECONDS",
            f"with {settings.runs.lease_seconds:g} s a process that is slow for a moment loses its runs to another: say"
            f" 10, and more than {LEAST_LEASE:g} in any case",
        )


def _public(settings: Settings) -> bool:
    return settings.server.public_url is not None or not _here(settings.server.host)


def _here(host: str) -> bool:
    """Whether this names the machine itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
