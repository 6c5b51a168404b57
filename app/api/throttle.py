"""Throttling of guesses: how often somebody may fail to sign in, counted for all processes."""

from app.domain.access import key_hash
from app.domain.errors import RateLimited
from app.store import ledger
from app.store.db import Database

WINDOW = 15 * 60
"""Seconds that a count goes for."""
FAILURES = {"pair": 10, "address": 100, "network": 60}
"""Wrong passwords in that time: for one account from one network, for one account, and from one network."""
REGISTRATIONS = 30
"""Accounts that one network may make in that time."""


async def count_try(db: Database, email: str, network: str | None) -> None:
    """Count a try to sign in as a failure, before it is looked at. Raises `RateLimited` if there were too many."""
    for scope, key in _counts(email, network).items():
        await _count(db, f"login {scope}", key, FAILURES[scope])


async def forgive(db: Database, email: str, network: str | None) -> None:
    """It was no failure."""
    for scope, key in _counts(email, network).items():
        await ledger.discount(db, f"login {scope}", key, "tries", window_seconds=WINDOW)


async def count_registration(db: Database, network: str | None) -> None:
    """Count a new account. Raises `RateLimited` if there were too many."""
    if network is not None:
        await _count(db, "registration", key_hash(network), REGISTRATIONS)


def _counts(email: str, network: str | None) -> dict[str, bytes]:
    counts = {"address": key_hash(email), "pair": key_hash(f"{email} {network}")}
    return counts if network is None else counts | {"network": key_hash(network)}


async def _count(db: Database, scope: str, key: bytes, most: int) -> None:
    wait = await ledger.counted(db, scope, key, "tries", most, window_seconds=WINDOW)
    if wait is not None:
        raise RateLimited("Too many tries. Wait a while.", retry_after=wait)
