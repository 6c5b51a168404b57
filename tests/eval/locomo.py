"""Loads LoCoMo: `locomo10.json`.

https://github.com/snap-research/locomo. The file is a list of conversations of two people in dated sessions, each with
questions and the ids of the turns that answer them. A memory is one turn. Questions of category 5 ask for something
that was never said; they only count for abstention.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.eval.eval_sets import Collection, MemoryItem, Question, half_of
from tests.eval.loading import BenchmarkFileError, LoadedBenchmark, read_json, read_time

KINDS: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "absent"}
TIME_PATTERN = "%I:%M %p on %d %B, %Y"
SESSION = re.compile(r"session_(\d+)")
TURN = re.compile(r"D:?(\d+):(\d+)")
"""The published file has some evidence as `D8:6; D9:17`, `D30:05` or `D:11:26`."""


class _Turn(msgspec.Struct, frozen=True):
    speaker: str
    dia_id: str
    text: str
    blip_caption: str | None = None


class _Question(msgspec.Struct, frozen=True):
    question: str
    category: int
    evidence: list[str] = []


class _Sample(msgspec.Struct, frozen=True):
    sample_id: str
    conversation: dict[str, Any]
    qa: list[_Question]


def load_locomo(path: Path, *, limit: int | None = None) -> LoadedBenchmark:
    """One collection for each conversation, at most `limit`. Raises `BenchmarkFileError`.

    A question whose evidence names no turn of the conversation is skipped.
    """
    samples: list[_Sample] = read_json(path, list[_Sample], "LoCoMo")
    if not samples:
        raise BenchmarkFileError(f"{path} is no file of LoCoMo: it has no conversations")
    collections = [_collection(sample, number, path) for number, sample in enumerate(samples[:limit], 1)]
    asked = sum(len(sample.qa) for sample in samples[:limit])
    return LoadedBenchmark(
        title=f"LoCoMo ({path.name})",
        collections=collections,
        skipped=asked - sum(len(one.questions) for one in collections),
    )


def _collection(sample: _Sample, number: int, path: Path) -> Collection:
    where = f"{path}, conversation {sample.sample_id}"
    memories = tuple(_memories(sample, where))
    if not memories:
        raise BenchmarkFileError(f"{where}: it has no sessions")
    known = {memory.id for memory in memories}
    return Collection(
        name=sample.sample_id,
        half=half_of(number),
        language="en",
        memories=memories,
        questions=tuple(_questions(sample, known, where)),
    )


def _memories(sample: _Sample, where: str) -> Iterator[MemoryItem]:
    for name, turns in sample.conversation.items():
        if not SESSION.fullmatch(name):
            continue
        dated = sample.conversation.get(f"{name}_date_time")
        if not isinstance(dated, str):
            raise BenchmarkFileError(f"{where}: {name} has no time")
        at = read_time(dated, TIME_PATTERN, where)
        try:
            said = msgspec.convert(turns, list[_Turn])
        except msgspec.ValidationError as error:
            raise BenchmarkFileError(f"{where}: {name}: {error}") from error
        for turn in said:
            shown = f" [shows {turn.blip_caption}]" if turn.blip_caption else ""
            # Some turns only show a picture; each says who shows it, so no text is blank.
            yield MemoryItem(id=turn.dia_id, text=f"{turn.speaker}: {turn.text}{shown}", at=at)


def _questions(sample: _Sample, known: set[str], where: str) -> Iterator[Question]:
    for number, asked in enumerate(sample.qa, 1):
        kind = KINDS.get(asked.category)
        if kind is None:
            raise BenchmarkFileError(f"{where}: question {number} is of the unknown category {asked.category}")
        named = [f"D{int(session)}:{int(turn)}" for one in asked.evidence for session, turn in TURN.findall(one)]
        expected = () if kind == "absent" else tuple(dict.fromkeys(name for name in named if name in known))
        if expected or kind == "absent":
            yield Question(id=f"{sample.sample_id}/{number}", kind=kind, text=asked.question, expected=expected)
