"""Loads LongMemEval: `longmemeval_s.json`, `longmemeval_m.json` or `longmemeval_oracle.json`.

https://github.com/xiaowu0162/LongMemEval. The file is a list of questions, each with a haystack of dated sessions of
its own. As in the benchmark's own evaluation of retrieval, a memory is what the user says in one session (or one turn),
and questions about something that was never mentioned (`question_id` ends with `_abs`) only count for abstention.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from tests.eval.eval_sets import Collection, MemoryItem, Question, half_of
from tests.eval.loading import BenchmarkFileError, LoadedBenchmark, read_json, read_time

Granularity: TypeAlias = Literal["session", "turn"]

ABSENT_SUFFIX = "_abs"
TIME_PATTERN = "%Y/%m/%d (%a) %H:%M"


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: str
    has_answer: bool | None = None


class _Instance(msgspec.Struct, frozen=True):
    question_id: str
    question_type: str
    question: str
    haystack_session_ids: list[str]
    haystack_dates: list[str]
    haystack_sessions: list[list[_Turn]]
    answer_session_ids: list[str]


def load_long_mem_eval(
    path: Path, *, granularity: Granularity = "session", limit: int | None = None
) -> LoadedBenchmark:
    """One collection for each question, at most `limit`. Raises `BenchmarkFileError`.

    A question without evidence among the user's own words is skipped: at the granularity of turns, these are the
    questions about answers of the assistant.
    """
    instances: list[_Instance] = read_json(path, list[_Instance], "LongMemEval")
    if not instances:
        raise BenchmarkFileError(f"{path} is no file of LongMemEval: it has no questions")
    collections = [
        _collection(instance, number, granularity, path) for number, instance in enumerate(instances[:limit], 1)
    ]
    usable = [one for one in collections if one.questions]
    return LoadedBenchmark(
        title=f"LongMemEval ({path.name}, by {granularity})",
        collections=usable,
        skipped=len(collections) - len(usable),
    )


def _collection(instance: _Instance, number: int, granularity: Granularity, path: Path) -> Collection:
    where = f"{path}, question {instance.question_id}"
    if not len(instance.haystack_session_ids) == len(instance.haystack_dates) == len(instance.haystack_sessions):
        raise BenchmarkFileError(f"{where}: sessions, their ids and their dates differ in number")
    if missing := set(instance.answer_session_ids) - set(instance.haystack_session_ids):
        raise BenchmarkFileError(f"{where}: the haystack lacks the session {min(missing)}")
    memories, evidence = [], []
    for memory, is_evidence in _memories(instance, granularity, where):
        memories.append(memory)
        if is_evidence:
            evidence.append(memory.id)
    absent = instance.question_id.endswith(ABSENT_SUFFIX)
    question = Question(
        id=instance.question_id,
        kind="absent" if absent else instance.question_type,
        text=instance.question,
        expected=() if absent else tuple(evidence),
    )
    return Collection(
        name=instance.question_id,
        half=half_of(number),
        language="en",
        memories=tuple(memories),
        questions=(question,) if absent or evidence else (),
    )


def _memories(instance: _Instance, granularity: Granularity, where: str) -> Iterator[tuple[MemoryItem, bool]]:
    sessions = zip(instance.haystack_session_ids, instance.haystack_dates, instance.haystack_sessions, strict=True)
    for session, dated, turns in sessions:
        at = read_time(dated, TIME_PATTERN, where)
        is_evidence = session in instance.answer_session_ids
        said = [(number, turn) for number, turn in enumerate(turns, 1) if turn.role == "user" and turn.content.strip()]
        if granularity == "turn":
            for number, turn in said:
                name = f"{session}:{number}"
                yield MemoryItem(id=name, text=turn.content, at=at), is_evidence and turn.has_answer is True
        elif said:
            yield MemoryItem(id=session, text="\n".join(turn.content for _, turn in said), at=at), is_evidence
