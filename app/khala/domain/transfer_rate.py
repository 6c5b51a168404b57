"""The minimum transfer rate of a request's body: decides when a client is too slow."""

import msgspec

MIN_BODY_BYTES_PER_SECOND = 16 * 1024
"""The minimum average rate of a body: 20 MiB take at most 21 minutes."""
MAX_BODY_SECONDS = 1800.0
"""The maximum time of a body of any size."""


class TransferRatePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The minimum transfer rate. All times count only while the server waits for the client."""

    max_pause: float = 30.0
    """Maximum seconds without a byte. A body may also take so much longer than the minimum rate permits."""
    rate: int = MIN_BODY_BYTES_PER_SECOND
    max_seconds: float = MAX_BODY_SECONDS

    def seconds_left(self, waited: float, received: int) -> float:
        """Seconds until the next bytes are overdue, after `received` bytes in `waited` seconds of waiting."""
        return min(self.max_pause, self.max_pause + received / self.rate - waited, self.max_seconds - waited)
