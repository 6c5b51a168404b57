"""Throttles failed sign-ins, and registrations of accounts and OAuth clients, counted for all processes."""

from khala.domain.access import key_hash
from khala.domain.errors import LimitScope, RateLimited, ReachedLimit
from khala.store.budgets import counters
from khala.store.postgres.database import Database

WINDOW_SECONDS = 15 * 60
MAX_FAILURES = {"pair": 10, "address": 100, "network": 60}
"""Wrong passwords in a window: for an account from one network, for an account, and from one network."""
LIMIT_SCOPES: dict[str, LimitScope] = {"pair": "account", "address": "account", "network": "network"}
"""The scope by which an error names each of them."""
MAX_REGISTRATIONS = {WINDOW_SECONDS: 10, 24 * 3600: 30}
"""Accounts that one network may create, by window in seconds."""
MAX_CLIENTS = {3600: 20}
"""OAuth clients that one network may register, by window in seconds."""
MAX_DOCUMENTS = {3600: 60}
"""Documents of OAuth clients that one network may have fetched, by window in seconds."""


async def count_attempt(db: Database, email: str, network: str | None) -> None:
    """Count an attempt as a failure, before its password is checked. Raises `RateLimited` if there were too many."""
    for scope, key in _keys(email, network).items():
        limit = ReachedLimit("sign_ins", LIMIT_SCOPES[scope], MAX_FAILURES[scope])
        await _count(db, f"login {scope}", key, limit)


async def discount_attempt(db: Database, email: str, network: str | None) -> None:
    """Undo the count of an attempt that succeeded."""
    for scope, key in _keys(email, network).items():
        await counters.discount(db, f"login {scope}", key, "tries", window_seconds=WINDOW_SECONDS)


async def count_registration(db: Database, network: str | None) -> None:
    """Count a new account. Raises `RateLimited` if there were too many."""
    if network is not None:
        for window, maximum in MAX_REGISTRATIONS.items():
            limit = ReachedLimit("registrations", "network", maximum)
            await _count(db, f"registration {window}", key_hash(network), limit, window)


async def count_client(db: Database, network: str | None) -> None:
    """Count a new OAuth client. Raises `RateLimited` if there were too many."""
    if network is not None:
        for window, maximum in MAX_CLIENTS.items():
            limit = ReachedLimit("oauth_clients", "network", maximum)
            await _count(db, f"client {window}", key_hash(network), limit, window)


async def count_document(db: Database, network: str | None) -> None:
    """Count a request for the document of an OAuth client. Raises `RateLimited` if there were too many."""
    if network is not None:
        for window, maximum in MAX_DOCUMENTS.items():
            limit = ReachedLimit("oauth_documents", "network", maximum)
            await _count(db, f"document {window}", key_hash(network), limit, window)


def _keys(email: str, network: str | None) -> dict[str, bytes]:
    """Return the keys by scope, the narrowest first. An attempt that one key refuses does not count for later keys.

    So a single network cannot use up the limit of an account.
    """
    keys = {"pair": key_hash(f"{email} {network}")}
    if network is not None:
        keys["network"] = key_hash(network)
    return keys | {"address": key_hash(email)}


async def _count(db: Database, scope: str, key: bytes, limit: ReachedLimit, window: int = WINDOW_SECONDS) -> None:
    wait = await counters.count(db, scope, key, "tries", int(limit.most), window_seconds=window)
    if wait is not None:
        raise RateLimited("Too many attempts. Wait before you try again.", limit=limit, retry_after=wait)
