"""What observers saw, read from their frames after the measurement: folded as a client would, compared, and timed."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from tests.support.client import View

STAMP = re.compile(rb'"stamp":(\d+)')

Arrival: TypeAlias = tuple[int, bytes]
"""When a frame came, in nanoseconds of the monotonic clock, and the frame."""
Dialect: TypeAlias = Literal["khala", "naive", "bare"]
"""Whose frames they are."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that the observers of a topic should have seen; `asked` is when, in nanoseconds (monotonic).

    `committed` is when each of its parts was committed, in microseconds since 1970; empty if that is not known.
    """

    message_id: str
    text: str
    asked: int
    committed: Sequence[int] = ()


class Seen(msgspec.Struct, kw_only=True):
    """What the observers saw. Latencies are microseconds; see `figures.System`, and `sent` is the bare server's."""

    frames: int = 0
    deltas: int = 0
    """Frames that brought text, each counted once for each observer."""
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

    def add(self, other: "Seen") -> None:
        """Take in what others saw."""
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
        self, topic: str, opening: Sequence[bytes], frames: Sequence[Arrival], how: Dialect, expected: Expected | None
    ) -> None:
        """One observer's frames: those up to where it followed live, and those after."""
        self.frames += len(frames)
        self.size += sum(len(frame) for _, frame in frames)
        if topic not in self.schedules:
            self.schedules[topic] = [(at, len(frame)) for at, frame in frames]
        if how == "bare" or expected is None:
            self.sent += [(at - int(found[1])) // 1000 for at, frame in frames if (found := STAMP.search(frame))]
            return
        text = KhalaText(topic, expected.message_id, opening) if how == "khala" else NaiveText()
        try:
            self._time(text, frames, expected)
        except AssertionError as error:
            self.problems.append(f"{topic}: {error}")
        if problem := difference(text.text, expected.text, ended=text.ended):
            self.problems.append(f"{topic}: {problem}")

    def _time(self, text: "KhalaText | NaiveText", frames: Sequence[Arrival], expected: Expected) -> None:
        clocks = time.time_ns() - time.monotonic_ns()
        for at, body in frames:
            frame = msgspec.json.decode(body)
            told = len(text.text)
            text.apply(frame)
            if len(text.text) > told:
                self.deltas += 1
                if not told:
                    self.first.append((at - expected.asked) // 1000)
            ages = [(at - stamp) // 1000 for stamp in _stamps(text.text, told)]
            self.tokens += ages
            self.newest += ages[-1:]
            for seq, written in text.last(frame):
                self.written.append((at + clocks) // 1000 - written)
                self.committed += [(at + clocks) // 1000 - moment for moment in expected.committed[seq : seq + 1]]


class KhalaText:
    """One answer, as Khala's frames tell of it."""

    def __init__(self, topic: str, message_id: str, opening: Sequence[bytes]) -> None:
        self._view = View(topic)
        self._message_id = message_id
        for body in opening:
            self._view.apply(msgspec.json.decode(body))

    @property
    def text(self) -> str:
        """So far."""
        return self._view.text(self._message_id)

    @property
    def ended(self) -> bool:
        """Whether its end was told."""
        return self._message_id in self._view.finished

    def apply(self, frame: dict[str, Any]) -> None:
        """Take a frame in. Raises `AssertionError` where it can't follow on those before."""
        self._view.apply(frame)

    def last(self, frame: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """The frame's last part, if it has any: its seq, and when it was written, in microseconds since 1970."""
        yield from map(_numbered, frame.get("parts", ())[-1:])


class NaiveText:
    """One answer, as the naive server's frames tell of it."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self._next = 0

    def apply(self, frame: dict[str, Any]) -> None:
        """Take a frame in. Raises `AssertionError` where it can't follow on those before."""
        assert frame["seq"] == self._next, f"part {frame['seq']}, expected {self._next}"
        self._next += 1
        self.text += frame["data"].get("text", "")
        self.ended = "finish" in frame["data"]

    def last(self, frame: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
        """The frame's part: its seq, and when it was written, in microseconds since 1970."""
        yield _numbered(frame)


def _numbered(part: Mapping[str, Any]) -> tuple[int, int]:
    return part["seq"], int(datetime.fromisoformat(part["createdAt"]).timestamp() * 1e6)


def _stamps(text: str, told: int) -> Iterator[int]:
    """The times in nanoseconds of the tokens that became whole with what came after the first `told` characters."""
    first, end = text.rfind(" ", 0, told) + 1, text.rfind(" ") + 1
    for word in text[first:end].split():
        if word[0] == "t" and word[1:].isdecimal():
            yield int(word[1:])


def difference(text: str, sent: str, *, ended: bool) -> str | None:
    """What is wrong with the text that came, beside the one that was sent; None if nothing is."""
    if not ended:
        return f"the end was not seen; {len(text)} of {len(sent)} characters came"
    if not sent:
        return "the model sent nothing"
    if text == sent:
        return None
    same = next((at for at, pair in enumerate(zip(text, sent, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(text), len(sent)) if same is None else same
    return f"{len(text)} characters came, {len(sent)} were sent, and from {at} on they differ: {text[at:][:40]!r}"


def beginning(opening: Sequence[bytes], topic: str, message_id: str) -> str | None:
    """The text of an answer under way as those who come late are told it; None if it had ended, or not begun."""
    text = KhalaText(topic, message_id, opening)
    return None if text.ended or not text.text else text.text
