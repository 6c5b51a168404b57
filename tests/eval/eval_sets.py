"""Reads the evaluation sets in `tests/eval/sets`: memories with questions, agents with utterances, tools with tasks.

Each set has two halves by a fixed rule: settings are fitted on `tune`, and figures are reported for `report`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

Half: TypeAlias = Literal["tune", "report"]
QuestionKind: TypeAlias = Literal["paraphrase", "update", "time", "hops", "absent"]
MemoryKind: TypeAlias = Literal["fact", "preference", "instruction"]

SETS = Path(__file__).parent / "sets"
OUT_OF_SCOPE = "none"

Read = TypeVar("Read")


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One memory as a retriever receives it. `supersedes` is the id of the older memory that it contradicts."""

    id: str
    text: str
    at: str
    keywords: str = ""
    kind: MemoryKind = "fact"
    supersedes: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question. Without `expected` ids, no memory answers it. `stale` ids were superseded by an expected one."""

    id: str
    kind: str
    text: str
    expected: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """One owner's memories, and the questions about them."""

    name: str
    half: Half
    language: str
    memories: tuple[MemoryItem, ...]
    questions: tuple[Question, ...]


class AgentItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent among those to choose from."""

    name: str
    title: str
    description: str
    examples: tuple[str, ...]


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """One task as a person says it. `agent` is None if it is out of scope for all agents."""

    id: str
    half: Half
    text: str
    agent: str | None


class ToolItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool as a server offers it: the description of each parameter by its name."""

    name: str
    description: str
    parameters: Mapping[str, str] = {}


class ToolTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task and the tools that it takes."""

    id: str
    half: Half
    text: str
    expected: tuple[str, ...]


class _WrittenMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    at: date
    text: str
    keywords: str
    kind: MemoryKind = "fact"
    supersedes: str | None = None
    paraphrase: tuple[str, ...] = ()
    update: tuple[str, ...] = ()


class _WrittenQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ask: str
    expect: tuple[str, ...]


class _WrittenQuestions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    time: tuple[_WrittenQuestion, ...] = ()
    hops: tuple[_WrittenQuestion, ...] = ()
    absent_near: tuple[str, ...] = ()
    absent_far: tuple[str, ...] = ()


class _WrittenPerson(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    person: str
    about: str
    language: str
    memory: tuple[_WrittenMemory, ...]
    questions: _WrittenQuestions


class _WrittenTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ask: str
    tools: tuple[str, ...]


def half_of(number: int) -> Half:
    """The half of the item with this number, counted from 1: odd numbers are for tuning."""
    return "tune" if number % 2 else "report"


def read_collections(folder: Path = SETS / "memories") -> list[Collection]:
    """All people, by the number that their file's name begins with. Raises `ValueError` for a malformed file."""
    return [_collection(path) for path in sorted(folder.glob("*.toml"))]


def read_agents(path: Path = SETS / "agents.toml") -> list[AgentItem]:
    """The agents that utterances are routed to."""
    return list(_decoded(path, dict[Literal["agent"], tuple[AgentItem, ...]])["agent"])


def read_utterances(path: Path = SETS / "utterances.toml") -> list[Utterance]:
    """All utterances. The two halves alternate in the list of each agent."""
    return [
        Utterance(
            id=f"{agent}/{number}", half=half_of(number), text=text, agent=None if agent == OUT_OF_SCOPE else agent
        )
        for agent, texts in _decoded(path, dict[str, tuple[str, ...]]).items()
        for number, text in enumerate(texts, 1)
    ]


def read_tools(folder: Path = SETS / "tools") -> list[ToolItem]:
    """The tools of all servers. A tool's name begins with the name of its server's file."""
    return [
        msgspec.structs.replace(tool, name=f"{path.stem}__{tool.name}")
        for path in sorted(folder.glob("*.toml"))
        for tool in _decoded(path, dict[Literal["tool"], tuple[ToolItem, ...]])["tool"]
    ]


def read_tasks(path: Path = SETS / "tasks.toml") -> list[ToolTask]:
    """All tasks for tools. The two halves alternate in each list."""
    written = _decoded(path, dict[str, tuple[_WrittenTask, ...]])
    return [
        ToolTask(id=f"{group}/{number}", half=half_of(number), text=task.ask, expected=task.tools)
        for group, tasks in written.items()
        for number, task in enumerate(tasks, 1)
    ]


def _collection(path: Path) -> Collection:
    written = _decoded(path, _WrittenPerson)
    number, _, name = path.stem.partition("-")
    memories = tuple(
        MemoryItem(
            id=one.id,
            text=one.text,
            at=one.at.isoformat(),
            keywords=one.keywords,
            kind=one.kind,
            supersedes=one.supersedes,
        )
        for one in written.memory
    )
    return Collection(
        name=name,
        half=half_of(int(number)),
        language=written.language,
        memories=memories,
        questions=tuple(_questions(name, written)),
    )


def _questions(person: str, written: _WrittenPerson) -> Iterator[Question]:
    for one in written.memory:
        stale = () if one.supersedes is None else (one.supersedes,)
        for kind, texts in (("paraphrase", one.paraphrase), ("update", one.update)):
            for number, text in enumerate(texts, 1):
                name = f"{person}/{one.id}/{kind}-{number}"
                yield Question(
                    id=name, kind=kind, text=text, expected=(one.id,), stale=stale if kind == "update" else ()
                )
    for kind, listed in (("time", written.questions.time), ("hops", written.questions.hops)):
        for number, asked in enumerate(listed, 1):
            yield Question(id=f"{person}/{kind}-{number}", kind=kind, text=asked.ask, expected=asked.expect)
    absent: Sequence[str] = (*written.questions.absent_near, *written.questions.absent_far)
    for number, text in enumerate(absent, 1):
        yield Question(id=f"{person}/absent-{number}", kind="absent", text=text)


def _decoded(path: Path, kind: type[Read] | Any) -> Any:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
