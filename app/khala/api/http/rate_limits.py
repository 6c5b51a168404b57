"""How often somebody may ask: a bucket of tokens for each machine and each secret, in this process's memory."""

import time
from collections import OrderedDict

from khala.api.http.request_origin import Connection, OriginPolicy, client_machine, is_local
from khala.domain.access import key_hash
from khala.domain.errors import RateLimited
from khala.domain.token_bucket import TokenBucket

MAX_BUCKETS = 50_000
"""Callers that are remembered; those who have not asked for longest are forgotten first."""
PAGE_FILE_COST = 0.1
"""Requests that one file of the page counts as: to load it takes about 20, and many people may share an address."""
SECRETS = ("authorization", "x-anon-key", "x-share-key", "cookie")
"""Headers by which a caller is known whatever the address."""


class RateLimiter:
    """Lets each caller make so many requests a minute, all at once if they like; 0 is no limit."""

    def __init__(self, per_minute: int, *, count_loopback: bool) -> None:
        """`count_loopback`: callers on this machine are limited, too."""
        self._most = float(per_minute)
        self._count_loopback = count_loopback
        self._buckets: OrderedDict[bytes | str, TokenBucket] = OrderedDict()

    def check(self, connection: Connection, origins: OriginPolicy, *, cost: float = 1.0) -> None:
        """Count the request. Raises `RateLimited` if it was one too many from its machine or by its secret.

        `cost`: how many ordinary requests it counts as.
        """
        if not self._most or (is_local(connection, origins) and not self._count_loopback):
            return
        now = time.monotonic()
        wait = max(self._take(who, now, cost) for who in ("", *_callers(connection, origins)))
        if wait:
            raise RateLimited("Too many requests. Slow down.", retry_after=wait)

    def _take(self, who: bytes | str, now: float, cost: float) -> float:
        """Seconds until there is a token for them; 0 if there was one, which is taken."""
        if not who:
            return 0.0
        bucket = self._buckets.pop(who, None) or TokenBucket(self._most, self._most / 60)
        self._buckets[who] = bucket
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if bucket.take(now, cost) else bucket.wait


def _callers(connection: Connection, origins: OriginPolicy) -> list[bytes | str]:
    machine = client_machine(connection, origins)
    secrets = [key_hash(name + value) for name in SECRETS if (value := connection.headers.get(name))]
    return [*([machine] if machine else []), *secrets]
