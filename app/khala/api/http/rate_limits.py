"""Rate limits of requests: a token bucket for each machine and each credential, in this process's memory."""

import time
from collections import OrderedDict

from khala.api.http.request_origin import Connection, OriginPolicy, client_machine, is_local
from khala.domain.access import key_hash
from khala.domain.errors import LimitScope, RateLimited, ReachedLimit
from khala.domain.token_bucket import TokenBucket

MAX_BUCKETS = 50_000
"""When there are more, the least recently used bucket is dropped."""
PAGE_FILE_COST = 0.1
"""The cost of one file of the page: loading the page takes about 20 files, and many people may share an address."""
COST = "request_cost"
"""The option of a route whose requests do not cost as much as an ordinary one."""
CREDENTIAL_HEADERS = ("authorization", "x-anon-key", "x-share-key", "cookie")
"""Headers that identify a caller independently of the address."""


class RateLimiter:
    """Limits each caller to a number of requests per minute, which may come in one burst. 0 means no limit."""

    def __init__(self, per_minute: int, *, count_loopback: bool) -> None:
        """Create the limiter. `count_loopback`: callers on this machine are limited, too."""
        self._per_minute = float(per_minute)
        self._count_loopback = count_loopback
        self._buckets: OrderedDict[bytes | str, TokenBucket] = OrderedDict()

    def check(self, connection: Connection, origins: OriginPolicy, *, cost: float = 1.0) -> None:
        """Count the request. Raises `RateLimited` if its machine or its credential has used up its limit.

        `cost` is in ordinary requests.
        """
        if not self._per_minute or (is_local(connection, origins) and not self._count_loopback):
            return
        now = time.monotonic()
        waits = ((self._take(key, now, cost), scope) for key, scope in _keys(connection, origins))
        wait, scope = max(waits, default=(0.0, "network"))
        if wait:
            limit = ReachedLimit("requests_per_minute", scope, int(self._per_minute))
            raise RateLimited("Too many requests. Slow down.", limit=limit, retry_after=wait)

    def _take(self, key: bytes | str, now: float, cost: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        bucket = self._buckets.pop(key, None) or TokenBucket(self._per_minute, self._per_minute / 60)
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if bucket.take(now, cost) else bucket.wait


def _keys(connection: Connection, origins: OriginPolicy) -> list[tuple[bytes | str, LimitScope]]:
    machine = client_machine(connection, origins)
    keys: list[tuple[bytes | str, LimitScope]] = [(machine, "network")] if machine else []
    sent = [(name, value) for name in CREDENTIAL_HEADERS if (value := connection.headers.get(name))]
    keys.extend((key_hash(name + value), "credential") for name, value in sent)
    return keys
