"""The flush policy: when a run's pending text is written. The first at once, then by age, size or count."""

import msgspec


class FlushPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A run flushes when its oldest pending delta is `milliseconds` old, or at so many `chars` or `parts` (deltas)."""

    milliseconds: int = 350
    chars: int = 1200
    parts: int = 32

    @property
    def seconds(self) -> float:
        """The maximum age of pending text, in seconds."""
        return self.milliseconds / 1000


class PendingText(msgspec.Struct, kw_only=True):
    """The pending text of a run: how much, and since when (a monotonic time in seconds)."""

    chars: int = 0
    parts: int = 0
    since: float | None = None
    urgent: bool = True
    """Flush the next delta at once: nothing was written yet, or the run has ended."""

    def add(self, chars: int, now: float) -> None:
        """Add a delta of `chars` characters that arrived at `now`."""
        self.chars += chars
        self.parts += 1
        if self.since is None:
            self.since = now

    def taken(self, *, at_once: bool, now: float) -> None:
        """Note that a batch took the pending text, or a part of it if the rest is due `at_once`."""
        self.chars = self.parts = 0
        self.since = now if at_once else None
        self.urgent = at_once

    def due_at(self, policy: FlushPolicy) -> float | None:
        """The monotonic time of the next flush; None without pending text."""
        if self.since is None:
            return None
        if self.urgent or self.chars >= policy.chars or self.parts >= policy.parts:
            return self.since
        return self.since + policy.seconds


def split_by_json_bytes(text: str, limit: int) -> list[str]:
    """The text in pieces of at most `limit` bytes of JSON. Joined, they are the same text."""
    # A character takes at most six bytes, as an escape. Only longer text has to be encoded to know its size.
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
