"""Parses the frames of observers after the measurement: folds them as a client does, and computes latencies."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from tests.support.client import View

STAMP = re.compile(rb'"stamp":(\d+)')

Arrival: TypeAlias = tuple[int, bytes]
"""The time of a frame's arrival in nanoseconds of the monotonic clock, and the frame."""
Dialect: TypeAlias = Literal["khala", "naive", "bare"]
"""The server whose frames they are."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the observers of a topic should receive.

    `sent_at` is the time of the request in nanoseconds (monotonic). `committed` has the commit time of each part in
    microseconds since 1970; it is empty if that is unknown.
    """

    message_id: str
    text: str
    sent_at: int
    committed: Sequence[int] = ()


class Observations(msgspec.Struct, kw_only=True):
    """What the observers received. Latencies are microseconds: see `figures.System`; `sent` is of the bare server."""

    frames: int = 0
    deltas: int = 0
    """Frames with text, counted per observer."""
    size: int = 0
    """Bytes of all frames."""
    first: list[int] = msgspec.field(default_factory=list)
    tokens: list[int] = msgspec.field(default_factory=list)
    newest: list[int] = msgspec.field(default_factory=list)
    written: list[int] = msgspec.field(default_factory=list)
    committed: list[int] = msgspec.field(default_factory=list)
    sent: list[int] = msgspec.field(default_factory=list)
    schedules: dict[str, list[tuple[int, int]]] = msgspec.field(default_factory=dict)
    """By topic, of one of its observers: each frame's time in nanoseconds (monotonic) and size in bytes."""
    problems: list[str] = msgspec.field(default_factory=list)

    def add(self, other: "Observations") -> None:
        """Add the observations of another driver."""
        self.frames += other.frames
        self.deltas += other.deltas
        self.size += other.size
        self.first += other.first
        self.tokens += other.tokens
        self.newest += other.newest
        self.written += other.written
        self.committed += other.committed
        self.sent += other.sent
        self.schedules = other.schedules | self.schedules
        self.problems += other.problems

    def take(
        self,
        topic: str,
        opening: Sequence[bytes],
        frames: Sequence[Arrival],
        dialect: Dialect,
        expected: Expected | None,
    ) -> None:
        """Add the frames of one observer: those up to the snapshot, and those after it."""
        self.frames += len(frames)
        self.size += sum(len(frame) for _, frame in frames)
        if topic not in self.schedules:
            self.schedules[topic] = [(at, len(frame)) for at, frame in frames]
        if dialect == "bare" or expected is None:
            self.sent += [(at - int(found[1])) // 1000 for at, frame in frames if (found := STAMP.search(frame))]
            return
        text = KhalaText(topic, expected.message_id, opening) if dialect == "khala" else NaiveText()
        try:
            self._time(text, frames, expected)
        except AssertionError as error:
            self.problems.append(f"{topic}: {error}")
        if problem := difference(text.text, expected.text, ended=text.ended):
            self.problems.append(f"{topic}: {problem}")

    def _time(self, text: "KhalaText | NaiveText", frames: Sequence[Arrival], expected: Expected) -> None:
        clock_offset = time.time_ns() - time.monotonic_ns()
        for at, body in frames:
            frame = msgspec.json.decode(body)
            known = len(text.text)
            text.apply(frame)
            if len(text.text) > known:
                self.deltas += 1
                if not known:
                    self.first.append((at - expected.sent_at) // 1000)
            ages = [(at - stamp) // 1000 for stamp in stamps(text.text, known)]
            self.tokens += ages
            self.newest += ages[-1:]
            for seq, written in text.last(frame):
                self.written.append((at + clock_offset) // 1000 - written)
                self.committed += [(at + clock_offset) // 1000 - moment for moment in expected.committed[seq : seq + 1]]


class KhalaText:
    """One answer, folded from Khala's frames."""

    def __init__(self, topic: str, message_id: str, opening: Sequence[bytes]) -> None:
        self._view = View(topic)
        self._message_id = message_id
        for body in opening:
            self._view.apply(msgspec.json.decode(body))

    @property
    def text(self) -> str:
        """The text so far."""
        return self._view.text(self._message_id)

    @property
    def ended(self) -> bool:
        """Whether the answer has ended."""
        return self._message_id in self._view.finished

    def apply(self, frame: dict[str, Any]) -> None:
        """Apply a frame. Raises `AssertionError` if it does not follow the previous one."""
        self._view.apply(frame)

    def last(self, frame: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """The frame's last part, if it has any: its seq, and the time of its INSERT in microseconds since 1970."""
        yield from map(_numbered, frame.get("parts", ())[-1:])


class NaiveText:
    """One answer, folded from the frames of the naive server."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self._next = 0

    def apply(self, frame: dict[str, Any]) -> None:
        """Apply a frame. Raises `AssertionError` if it does not follow the previous one."""
        assert frame["seq"] == self._next, f"part {frame['seq']}, expected {self._next}"
        self._next += 1
        self.text += frame["data"].get("text", "")
        self.ended = "finish" in frame["data"]

    def last(self, frame: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """The frame's part: its seq, and the time of its INSERT in microseconds since 1970."""
        yield _numbered(frame)


def _numbered(part: Mapping[str, Any]) -> tuple[int, int]:
    return part["seq"], int(datetime.fromisoformat(part["createdAt"]).timestamp() * 1e6)


def stamps(text: str, known: int) -> Iterator[int]:
    """The times in nanoseconds of the tokens that the characters after the first `known` completed."""
    first, end = text.rfind(" ", 0, known) + 1, text.rfind(" ") + 1
    for word in text[first:end].split():
        if word[0] == "t" and word[1:].isdecimal():
            yield int(word[1:])


def difference(text: str, sent: str, *, ended: bool) -> str | None:
    """Describe how the received text differs from the one that was sent; None if it does not."""
    if not ended:
        return f"the end was not received; {len(text)} of {len(sent)} characters came"
    if not sent:
        return "the model sent nothing"
    if text == sent:
        return None
    same = next((at for at, pair in enumerate(zip(text, sent, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(text), len(sent)) if same is None else same
    return f"{len(text)} characters came, {len(sent)} were sent, and from {at} on they differ: {text[at:][:40]!r}"


def partial_text(opening: Sequence[bytes], topic: str, message_id: str) -> str | None:
    """The text of an active answer in the snapshot of a late observer; None if it had ended or not begun."""
    text = KhalaText(topic, message_id, opening)
    return None if text.ended or not text.text else text.text
