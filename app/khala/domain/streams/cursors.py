"""Cursors of live reads, which keep caches between client and server from answering with the same response for ever."""

CURSOR_EPOCH_SECONDS = 1_728_432_000
"""2024-10-09T00:00:00Z, in seconds since 1970."""
CURSOR_INTERVAL_SECONDS = 20
MIN_JITTER_SECONDS = 1
MAX_JITTER_SECONDS = 3600


def next_cursor(now: float, sent: str | None, jitter_seconds: int) -> str:
    """Return the number of the current interval, or a larger number than the one that the client has sent.

    `now` is in seconds since 1970. `jitter_seconds` says how far beyond the client's number the cursor goes.
    """
    current = int(now - CURSOR_EPOCH_SECONDS) // CURSOR_INTERVAL_SECONDS
    if sent is None or not (sent.isascii() and sent.isdigit()) or len(sent) > len(str(1 << 53)):
        return str(current)
    previous = int(sent)
    if previous < current:
        return str(current)
    return str(previous + max(1, jitter_seconds // CURSOR_INTERVAL_SECONDS))
