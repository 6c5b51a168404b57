"""Throttling of guesses: how often somebody may fail to sign in, counted for all processes."""

from khala.domain.access import key_hash
from khala.domain.errors import RateLimited
from khala.store.budgets import counters
from khala.store.postgres.database import Database

WINDOW = 15 * 60
"""Seconds that a count goes for."""
FAILURES = {"pair": 10, "address": 100, "network": 60}
"""Wrong passwords in that time: for one account from one network, for one account, and from one network."""
REGISTRATIONS = {WINDOW: 10, 24 * 3600: 30}
"""Accounts that one network may make in so many seconds."""


async def count_try(db: Database, email: str, network: str | None) -> None:
    """Count a try to sign in as a failure, before it is looked at. Raises `RateLimited` if there were too many."""
    for scope, key in _counts(email, network).items():
        await _count(db, f"login {scope}", key, FAILURES[scope])


async def forgive(db: Database, email: str, network: str | None) -> None:
    """It was no failure."""
    for scope, key in _counts(email, network).items():
        await counters.discount(db, f"login {scope}", key, "tries", window_seconds=WINDOW)


async def count_registration(db: Database, network: str | None) -> None:
    """Count a new account. Raises `RateLimited` if there were too many."""
    if network is not None:
        for window, most in REGISTRATIONS.items():
            await _count(db, f"registration {window}", key_hash(network), most, window)


def _counts(email: str, network: str | None) -> dict[str, bytes]:
    """The narrowest first: a try that one refuses counts for none after it, so no network uses up the account's."""
    counts = {"pair": key_hash(f"{email} {network}")}
    if network is not None:
        counts["network"] = key_hash(network)
    return counts | {"address": key_hash(email)}


async def _count(db: Database, scope: str, key: bytes, most: int, window: int = WINDOW) -> None:
    wait = await counters.count(db, scope, key, "tries", most, window_seconds=window)
    if wait is not None:
        raise RateLimited("Too many tries. Wait a while.", retry_after=wait)
