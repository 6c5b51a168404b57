"""What the database says at the end, and what of it can't be: texts, leases, states and revisions."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import asyncpg
import msgspec

from tests.chaos.model import Production
from tests.chaos.schedule import WEBS
from tests.chaos.watchers import TERMINAL

Records = Sequence[asyncpg.Record]
RESUMED = "resumed"

PARTS = """
    SELECT run_id, seq, kind, data FROM message_parts ORDER BY run_id, seq
"""


class Stored(msgspec.Struct, frozen=True):
    """All that the checkers read of the database."""

    runs: Records
    parts: Mapping[str, list[tuple[str, dict[str, Any]]]]
    run_log: Records
    part_log: Records
    revisions: Records
    messages: Records

    @classmethod
    async def read(cls, connection: "asyncpg.Connection[asyncpg.Record]") -> "Stored":
        """Read it."""
        parts: defaultdict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
        for row in await connection.fetch(PARTS):
            parts[str(row["run_id"])].append((row["kind"], msgspec.json.decode(row["data"])))
        return cls(
            runs=await connection.fetch("SELECT * FROM runs"),
            parts=parts,
            run_log=await connection.fetch("SELECT * FROM chaos.runs ORDER BY run_id, number"),
            part_log=await connection.fetch("SELECT * FROM chaos.parts ORDER BY run_id, number"),
            revisions=await connection.fetch("SELECT * FROM chaos.revisions ORDER BY thread_id, number"),
            messages=await connection.fetch("SELECT * FROM messages"),
        )


class Segment(msgspec.Struct):
    """Text that one call of the model said; `closed` is the part that ended it."""

    text: str
    closed: str
    about: dict[str, Any]
    calls: list[dict[str, Any]] = []


def segments(parts: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[Segment]:
    """An answer, cut where another call of the model begins. A failure's own words are left out."""
    text, last = "", None
    for kind, about in parts:
        if kind == "text-delta":
            text += about["text"]
        elif kind == "tool-call" and last is not None:
            last.calls.append(about)
        elif kind in ("notice", "step", "error", "finish"):
            if kind == "error":
                text = text.removesuffix(about["message"]).removesuffix("\n\n")
            last = Segment(text, kind, about)
            yield last
            text = ""


def texts(stored: Stored, productions: Mapping[int, Production]) -> Iterator[str]:
    """Every answer is what the model said in one call after the other; what was said is in one answer, and once."""
    used: dict[int, str] = {}
    for run in stored.runs:
        run_id, last = str(run["id"]), 0
        # All of it at first: a step's calls come after it.
        for one in list(segments(stored.parts.get(run_id, ()))):
            if not one.text and not one.calls:
                if one.closed == "finish" and one.about["reason"] == "stop":
                    yield f"run {run_id} ended well without a last word"
                continue
            number = _number(one)
            made = productions.get(number)
            if made is None:
                yield f"run {run_id} has text that no model said: {one.text[:200]!r}"
                continue
            if used.setdefault(number, run_id) != run_id or number <= last:
                yield f"run {run_id} has call {number} of the model once more, or out of order"
            last = number
            yield from (f"run {run_id}: {problem}" for problem in _segment(one, made))


def _number(segment: Segment) -> int:
    """The model's call that said this."""
    if segment.text.startswith("<"):
        digits = segment.text[1:].partition(".")[0]
        return int(digits) if digits.isdecimal() else 0
    numbers = [call["args"].get("n", 0) // 100 for call in segment.calls if call.get("args")]
    return numbers[0] if numbers and not segment.text else 0


def _segment(one: Segment, made: Production) -> Iterator[str]:
    if not made.text.startswith(one.text):
        common = next((i for i, (a, b) in enumerate(zip(one.text, made.text, strict=False)) if a != b), len(made.text))
        near = one.text[max(0, common - 20) : common + 60]
        yield f"from character {common} on it is not what call {made.number} said: {near!r}"
    ended = one.closed == "step" or (one.closed == "finish" and one.about["reason"] == "stop")
    if ended and (one.text != made.text or not made.whole):
        how_much = f"{len(one.text)} of {len(made.text)} characters"
        yield f"it takes {how_much} of call {made.number} for the whole"
    if one.closed == "step" and [call["args"].get("n") for call in one.calls] != list(made.calls):
        yield f"its calls are not those of call {made.number}"


def terminal(stored: Stored) -> Iterator[str]:
    """What has ended stays as it ended, and exactly one finish tells of it."""
    for run_id, log in groupby(stored.run_log, key=lambda row: row["run_id"]):
        for before, after in pairwise(log):
            if before["status"] in TERMINAL and after["status"] != before["status"]:
                yield f"run {run_id} was {before['status']} and became {after['status']}"
    for run in stored.runs:
        kinds = [kind for kind, _ in stored.parts.get(str(run["id"]), ())]
        if run["status"] in TERMINAL and (kinds.count("finish") != 1 or kinds[-1] != "finish"):
            yield f"run {run['id']} has ended with parts {kinds[-3:]}"


def leases(stored: Stored, named: Callable[[int], set[str]]) -> Iterator[str]:
    """Epochs only grow, with each another holder; the parts of an epoch are one executor's, in unbroken order.

    `named` tells which processes had a connection from this port. Only a server ends a run that nobody holds.
    """
    for run_id, log in groupby(stored.run_log, key=lambda row: row["run_id"]):
        for before, after in pairwise(log):
            grown = after["epoch"] - before["epoch"]
            taken = after["lease_owner"] is not None and after["lease_owner"] != before["lease_owner"]
            if grown < 0 or grown > 1 or (taken and grown != 1):
                yield f"run {run_id} went from epoch {before['epoch']} to {after['epoch']} by {after['lease_owner']}"
    for run_id, rows in groupby(stored.part_log, key=lambda row: row["run_id"]):
        # What is written in one commit bears one revision, and may come in any order.
        parts = sorted(rows, key=lambda row: (row["revision"], row["seq"]))
        if [row["seq"] for row in parts] != list(range(len(parts))):
            yield f"parts of run {run_id} were not written in order: {[row['seq'] for row in parts]}"
        if any(after["epoch"] < before["epoch"] for before, after in pairwise(parts)):
            yield f"parts of run {run_id} were written under an epoch that was over"
        for epoch, written in groupby(parts, key=lambda row: row["epoch"]):
            yield from _one_writer(str(run_id), epoch, list(written), named)


def _one_writer(run_id: str, epoch: int, parts: Records, named: Callable[[int], set[str]]) -> Iterator[str]:
    writers = [named(row["port"]) for row in parts]
    executors = [{name for name in names if name.partition("#")[0] not in WEBS} for names in writers]
    held = [names for names in executors if names]
    if held and not set.intersection(*held):
        yield f"run {run_id} has parts of several executors in epoch {epoch}: {writers}"
    ended = next((i for i, names in enumerate(executors) if not names), None)
    if ended is not None and any(executors[ended:]):
        yield f"run {run_id} has parts of an executor after a server had ended it, in epoch {epoch}"


def revisions(stored: Stored) -> Iterator[str]:
    """A thread's revision grows by one with each change."""
    for thread_id, rows in groupby(stored.revisions, key=lambda row: row["thread_id"]):
        log = list(rows)
        for row in log:
            if row["after"] != row["before"] + 1:
                yield f"thread {thread_id} went from revision {row['before']} to {row['after']}"
        for before, after in pairwise(log):
            if after["before"] != before["after"]:
                yield f"thread {thread_id} went from revision {before['after']} on at {after['before']}"
