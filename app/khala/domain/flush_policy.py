"""When the text that a run has gathered is due to be written: at once for the first, then by age, size or count."""

import msgspec


class FlushPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A run is due when its oldest unwritten delta is `milliseconds` old, or at so many `chars` or `parts` (deltas)."""

    milliseconds: int = 350
    chars: int = 1200
    parts: int = 32

    @property
    def seconds(self) -> float:
        """The greatest age of unwritten text, in seconds."""
        return self.milliseconds / 1000


class PendingText(msgspec.Struct, kw_only=True):
    """What a run holds back: how much, and since when (a monotonic time in seconds)."""

    chars: int = 0
    parts: int = 0
    since: float | None = None
    urgent: bool = True
    """The next thing to come is to be written at once: nothing was written yet, or the run has ended."""

    def add(self, chars: int, now: float) -> None:
        """One more delta of `chars` characters came at `now`."""
        self.chars += chars
        self.parts += 1
        if self.since is None:
            self.since = now

    def taken(self, *, at_once: bool, now: float) -> None:
        """All that was gathered went into a batch; or, if the rest is to follow `at_once`, a good part of it."""
        self.chars = self.parts = 0
        self.since = now if at_once else None
        self.urgent = at_once

    def due_at(self, policy: FlushPolicy) -> float | None:
        """The monotonic time at which this is due; None while there is nothing."""
        if self.since is None:
            return None
        if self.urgent or self.chars >= policy.chars or self.parts >= policy.parts:
            return self.since
        return self.since + policy.seconds


def split_by_json_bytes(text: str, limit: int) -> list[str]:
    """The text cut into pieces of at most `limit` bytes of JSON; joined again they are the same text."""
    # No character takes more than six bytes, as an escape; whether longer text fits is looked at.
    if len(text) < 2 or 6 * len(text) + 2 <= limit or len(msgspec.json.encode(text)) <= limit:
        return [text] if text else []
    middle = len(text) // 2
    return split_by_json_bytes(text[:middle], limit) + split_by_json_bytes(text[middle:], limit)


def replace_unstorable(text: str) -> str:
    """The text with what Postgres cannot store, NUL and lone surrogates, replaced by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text
