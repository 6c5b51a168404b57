"""The flush policy: decides when a run's pending text is written.

The first delta is written at once, later ones by their age, size or count. Runs of one process share flushes, because a
flush of ten runs costs little more than one of a single run.
"""

import math
from collections.abc import Sequence
from operator import itemgetter

import msgspec

MAX_SHARING_RUNS = 50
"""Runs whose flushes become one. More would hardly reduce the cost per part, and would deliver parts in bursts."""


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


class SharedFlush(msgspec.Struct, kw_only=True, eq=False):
    """A flush of several runs."""

    runs: int
    at: float | None = None
    """Its monotonic time. None until text of one of the runs waits for it."""
    share: float = 1.0
    """The share of its time that text may wait for it at most."""

    def takes_text_of(self, since: float) -> bool:
        """Whether it takes the text that waits since then. It does not if it was before that."""
        return self.at is not None and self.at > since


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
    shared: SharedFlush | None = None
    """The flush of other runs that takes this text, too."""

    @property
    def waits_since(self) -> float | None:
        """The time since which text waits, or may wait unread."""
        return self.held_since if self.since is None else self.since

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

    def drop_hold(self) -> None:
        """No text has arrived while it was held: later text is due by its own arrival."""
        self.held_since = self.shared = None

    def mark_taken(self, *, at_once: bool, now: float) -> None:
        """Reset after a batch took the pending text. `at_once`: the batch took only a part; the rest is due at once."""
        self.chars = self.parts = 0
        self.since = now if at_once else None
        self.urgent = at_once
        self.shared = None

    def due_at(self, policy: FlushPolicy) -> float | None:
        """The monotonic time of the next flush; None without pending or held text."""
        latest, since, shared = self.latest_at(policy), self.waits_since, self.shared
        if latest is None or since is None or shared is None or shared.at is None or not since < shared.at < latest:
            return latest
        return shared.at

    def latest_at(self, policy: FlushPolicy) -> float | None:
        """The time at which the text is due by its age, size or count, without regard to other runs."""
        if self.since is None:
            return None if self.held_since is None else self.held_since + policy.hold_seconds(*self.held_rates)
        if self.urgent or self.chars >= policy.chars or self.parts >= policy.parts:
            return self.since
        return self.since + policy.seconds


class FlushSchedule:
    """The shared flushes of a process.

    Text that is due by its age joins the next flush of other runs, if that is in the second half of the time that the
    text may wait. Of any two flushes, one is in the second half of the other's time, so they become one, and no run
    loses more than half an interval by that. More than `MAX_SHARING_RUNS` do not become one.
    """

    def __init__(self, policy: FlushPolicy) -> None:
        self._policy = policy
        self._flushes: list[SharedFlush] = []

    def join(self, pending: PendingText) -> None:
        """Choose the flush for text that has just arrived or is held from now on, unless it has one."""
        since, latest, shared = pending.waits_since, pending.latest_at(self._policy), pending.shared
        if since is None or latest is None or (shared is not None and shared.takes_text_of(since)):
            return
        if latest < since + self._policy.seconds:
            pending.shared = None
            return
        if shared is None or shared.at is not None:
            shared = pending.shared = SharedFlush(runs=1)
        self._set_time(shared, since)

    def continue_together(self, written: Sequence[PendingText]) -> None:
        """Have the runs that one commit has written share their next flush. Very many are divided into several."""
        size = math.ceil(len(written) / max(1, len(written) // MAX_SHARING_RUNS))
        for first in range(0, len(written), max(1, size)):
            together = written[first : first + size]
            flush = SharedFlush(runs=len(together), share=1 - first / len(written))
            for pending in together:
                pending.shared = flush
                self.join(pending)

    def _set_time(self, flush: SharedFlush, since: float) -> None:
        """Give the flush the time of another one, if there is a suitable one; otherwise the latest possible."""
        most = flush.share * self._policy.seconds
        self._flushes = [other for other in self._flushes if other.takes_text_of(since)]
        suitable = [
            (other.at, other)
            for other in self._flushes
            if other.at is not None
            and most / 2 <= other.at - since <= most
            and other.runs + flush.runs <= MAX_SHARING_RUNS
        ]
        if suitable:
            flush.at, joined = max(suitable, key=itemgetter(0))
            joined.runs += flush.runs
        else:
            flush.at = since + most
            self._flushes.append(flush)


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
