"""The flush policy: decides when a run's pending text is written.

The first delta is written at once, later ones by their age, size or count.
"""

import msgspec


class FlushPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A run flushes when its oldest pending delta is `milliseconds` old, or at `chars` characters or `parts` deltas."""

    milliseconds: int = 350
    chars: int = 1200
    parts: int = 32

    @property
    def seconds(self) -> float:
        """The maximum age of pending text, in seconds."""
        return self.milliseconds / 1000

    def hold_seconds(self, deltas_per_second: float, chars_per_second: float) -> float:
        """The time after which text that arrives at this rate is due. Both rates are more than 0."""
        return min(self.seconds, self.parts / deltas_per_second, self.chars / chars_per_second)


class PendingText(msgspec.Struct, kw_only=True):
    """The pending text of a run: its characters and deltas, and the arrival of the oldest (monotonic seconds)."""

    chars: int = 0
    parts: int = 0
    since: float | None = None
    urgent: bool = True
    """Flush the next delta at once: nothing was written yet, or the run has ended."""
    held_since: float | None = None
    """The time (monotonic seconds) since which text may have arrived that is not read yet. None if none can have."""
    held_rates: tuple[float, float] = (1.0, 1.0)
    """Deltas and characters per second of that text, presumably."""

    def add(self, chars: int, now: float) -> None:
        """Add a delta of `chars` characters that arrived at `now`."""
        self.chars += chars
        self.parts += 1
        if self.since is None:
            self.since = now

    def hold(self, now: float, rates: tuple[float, float]) -> None:
        """From now on, text that arrives is not read until it is due."""
        self.held_since, self.held_rates = now, rates

    def end_hold(self, now: float) -> float:
        """Held text is read now. Returns the earliest time at which it can have arrived."""
        since, self.held_since = self.held_since, None
        return now if since is None else since

    def mark_taken(self, *, at_once: bool, now: float) -> None:
        """Reset after a batch took the pending text. `at_once`: the batch took only a part; the rest is due at once."""
        self.chars = self.parts = 0
        self.since = now if at_once else None
        self.urgent = at_once

    def due_at(self, policy: FlushPolicy) -> float | None:
        """The monotonic time of the next flush; None without pending or held text."""
        if self.since is None:
            return None if self.held_since is None else self.held_since + policy.hold_seconds(*self.held_rates)
        if self.urgent or self.chars >= policy.chars or self.parts >= policy.parts:
            return self.since
        return self.since + policy.seconds


def split_by_json_bytes(text: str, limit: int) -> list[str]:
    """Split the text into pieces that each take at most `limit` bytes as JSON."""
    # A character takes at most six bytes, as an escape. Only a longer text has to be encoded to know its size.
    if len(text) < 2 or 6 * len(text) + 2 <= limit or len(msgspec.json.encode(text)) <= limit:
        return [text] if text else []
    middle = len(text) // 2
    return split_by_json_bytes(text[:middle], limit) + split_by_json_bytes(text[middle:], limit)


def replace_unstorable(text: str) -> str:
    """The text, with NUL and lone surrogates, which Postgres cannot store, replaced by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text
