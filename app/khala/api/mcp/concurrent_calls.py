"""Bounds the calls that one account makes at once over MCP, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from khala.domain.errors import RateLimited, ReachedLimit

MAX_CONCURRENT_CALLS = 8
"""Per user, in this process."""
RETRY_SECONDS = 1.0

_running_calls: dict[UUID, int] = {}


@contextmanager
def counted_call(owner_id: UUID) -> Iterator[None]:
    """Count a call of this account while it runs. Raises `RateLimited` if too many run."""
    if _running_calls.get(owner_id, 0) >= MAX_CONCURRENT_CALLS:
        raise RateLimited(
            f"At most {MAX_CONCURRENT_CALLS} calls of one account run at once. Try again soon.",
            limit=ReachedLimit("concurrent_mcp_calls", "account", MAX_CONCURRENT_CALLS),
            retry_after=RETRY_SECONDS,
        )
    _running_calls[owner_id] = _running_calls.get(owner_id, 0) + 1
    try:
        yield
    finally:
        _running_calls[owner_id] -= 1
        if not _running_calls[owner_id]:
            del _running_calls[owner_id]
