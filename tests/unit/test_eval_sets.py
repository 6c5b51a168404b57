"""The evaluation sets are large enough, refer to what exists, and do not give answers away."""

from collections import Counter
from pathlib import Path

import pytest

from khala.domain.agent_seeds import BUILT_IN
from tests.eval.eval_sets import (
    SETS,
    Collection,
    read_agents,
    read_collections,
    read_tasks,
    read_tools,
    read_utterances,
)
from tests.eval.words import segments, shared_share

ROOT = Path(__file__).parents[2]
MAX_SHARED_SHARE = 1 / 3
"""Content words of a paraphrase that its memory may have, too."""
MAX_MEAN_SHARED_SHARE = 0.05


@pytest.fixture(scope="module")
def collections() -> list[Collection]:
    return read_collections()


def plain(text: str) -> tuple[str, ...]:
    return tuple(segments(text))


def test_there_are_enough_memories_and_questions_of_each_kind_in_both_halves(collections: list[Collection]) -> None:
    assert sum(len(one.memories) for one in collections) >= 300
    assert sum(len(one.questions) for one in collections) >= 500
    for half in ("tune", "report"):
        chosen = [one for one in collections if one.half == half]
        kinds = Counter(question.kind for one in chosen for question in one.questions)
        assert {*kinds} == {"paraphrase", "update", "time", "hops", "absent"}
        assert min(kinds.values()) >= 15
        assert kinds["absent"] >= 50
        assert len({one.language for one in chosen}) >= 4


def test_each_question_refers_to_memories_of_its_person(collections: list[Collection]) -> None:
    for one in collections:
        ids = Counter(memory.id for memory in one.memories)
        assert not [name for name, times in ids.items() if times > 1], one.name
        for question in one.questions:
            assert {*question.expected, *question.stale} <= {*ids}, question.id
            assert len(set(question.expected)) == len(question.expected)
            assert bool(question.expected) == (question.kind != "absent"), question.id
            if question.kind == "hops":
                assert len(question.expected) == 2, question.id
        for memory in one.memories:
            assert memory.text.strip() == memory.text
            assert len(memory.keywords.split(", ")) >= 4, memory.id


def test_a_memory_supersedes_an_older_one_and_has_questions_about_it(collections: list[Collection]) -> None:
    superseding = 0
    for one in collections:
        dated = {memory.id: memory.at for memory in one.memories}
        superseded = {memory.supersedes for memory in one.memories if memory.supersedes}
        for memory in one.memories:
            updates = [ask for ask in one.questions if ask.kind == "update" and ask.expected == (memory.id,)]
            assert bool(updates) == bool(memory.supersedes), memory.id
            if memory.supersedes:
                superseding += 1
                assert dated[memory.supersedes] < memory.at, memory.id
                assert all(ask.stale == (memory.supersedes,) for ask in updates)
        for question in one.questions:
            if question.kind != "time":
                assert not superseded & {*question.expected}, question.id
    assert superseding >= 20


def test_each_memory_has_a_question(collections: list[Collection]) -> None:
    for one in collections:
        asked = {name for question in one.questions for name in (*question.expected, *question.stale)}
        assert {memory.id for memory in one.memories} == asked, one.name


def test_paraphrases_share_few_words_with_their_memory(collections: list[Collection]) -> None:
    shares = []
    for one in collections:
        texts = {memory.id: memory.text for memory in one.memories}
        for question in one.questions:
            if question.kind in {"paraphrase", "update"}:
                share = shared_share(question.text, texts[question.expected[0]])
                assert share <= MAX_SHARED_SHARE, question.id
                shares.append(share)
    assert sum(shares) / len(shares) <= MAX_MEAN_SHARED_SHARE


def test_no_text_stands_in_the_sets_twice(collections: list[Collection]) -> None:
    for one in collections:
        for texts in ([memory.text for memory in one.memories], [question.text for question in one.questions]):
            assert not [text for text, times in Counter(map(plain, texts)).items() if times > 1], one.name
    for texts in ([one.text for one in read_utterances()], [one.text for one in read_tasks()]):
        assert not [text for text, times in Counter(map(plain, texts)).items() if times > 1]


def test_no_person_is_in_both_halves_and_files_are_numbered_without_gaps(collections: list[Collection]) -> None:
    numbers = sorted(int(path.stem.partition("-")[0]) for path in (SETS / "memories").glob("*.toml"))
    assert numbers == list(range(1, len(collections) + 1))
    halves = {half: {one.name for one in collections if one.half == half} for half in ("tune", "report")}
    assert halves["tune"].isdisjoint(halves["report"])
    assert abs(len(halves["tune"]) - len(halves["report"])) <= 1


def test_there_are_enough_utterances_for_each_agent_and_for_none() -> None:
    agents, utterances = read_agents(), read_utterances()
    assert len(agents) >= 12
    assert len(utterances) >= 400
    for half in ("tune", "report"):
        counts = Counter(one.agent for one in utterances if one.half == half)
        assert {*counts} == {None, *(agent.name for agent in agents)}
        assert min(counts.values()) >= 15
        assert counts[None] >= 30


def test_the_built_in_agents_are_evaluated_as_they_are() -> None:
    evaluated = [(one.name, one.title, one.description, tuple(one.examples)) for one in read_agents()]
    assert evaluated[: len(BUILT_IN)] == [(one.name, one.title, one.description, one.examples) for one in BUILT_IN]


def test_no_utterance_is_an_example_of_an_agent_or_of_the_page() -> None:
    examples = {plain(example) for agent in read_agents() for example in agent.examples}
    page = ROOT / "app" / "web" / "src" / "agent"
    files = ("routing-examples.ts", "testing/built-in-agents.json")
    page_texts = " ".join(plain_words((page / name).read_text()) for name in files)
    for utterance in read_utterances():
        assert plain(utterance.text) not in examples, utterance.id
        if len(plain(utterance.text)) > 3:
            assert plain_words(utterance.text) not in page_texts, utterance.id


def plain_words(text: str) -> str:
    return " ".join(plain(text))


def test_tasks_name_existing_tools_and_every_tool_has_a_task() -> None:
    tools, tasks = read_tools(), read_tasks()
    names = Counter(tool.name for tool in tools)
    assert len(names) >= 150
    assert max(names.values()) == 1
    assert len(tasks) >= 200
    assert {name for task in tasks for name in task.expected} == {*names}
    assert all(1 <= len(task.expected) == len(set(task.expected)) for task in tasks)
    assert min(Counter(task.half for task in tasks).values()) >= 100


def test_a_malformed_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "01-somebody.toml").write_text('person = "Somebody"\nabout = ""\nlanguage = "en"\nhobby = "none"\n')
    with pytest.raises(ValueError, match=r"01-somebody.toml: .*`hobby`"):
        read_collections(tmp_path)
    (tmp_path / "01-somebody.toml").write_text("person = ")
    with pytest.raises(ValueError, match=r"01-somebody\.toml"):
        read_collections(tmp_path)
