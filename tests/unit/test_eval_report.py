"""`make eval`: figures of known answers, the printed tables, the options and the embedding model."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from khala.models.embeddings import embedding_names
from khala.models.embeddings.factory import open_embedder
from khala.models.provider_registry import ProviderAccess
from tests.eval import __main__ as command
from tests.eval.eval_sets import AgentItem, Collection, Half, MemoryItem, Question, ToolItem, ToolTask, Utterance
from tests.eval.indexed import memory_baselines, router_baselines, tool_baselines
from tests.eval.khala_routing import khala_routers, khala_tools
from tests.eval.measure import (
    choose_all,
    memory_figures,
    route_all,
    route_figures,
    search_all,
    tool_figures,
)
from tests.eval.report import EvalReport, table
from tests.eval.retrievers import Ranking, Routed
from tests.support.embeddings_server import serving_embeddings

BASELINES = ("bm25-words", "bm25-trigrams", "bm25-words+keywords", "bm25-trigrams+keywords")
"""Those that need no database."""
MEMORIES = (
    MemoryItem(id="old", text="Lives in Rome", at="2024-01-01"),
    MemoryItem(id="new", text="Lives in Oslo", at="2025-01-01", supersedes="old"),
    MemoryItem(id="pet", text="Has a dog", at="2024-06-01", keywords="puppy, animal"),
)
QUESTIONS = (
    Question(id="q1", kind="paraphrase", text="pet?", expected=("pet",)),
    Question(id="q2", kind="update", text="home?", expected=("new",), stale=("old",)),
    Question(id="q3", kind="hops", text="both?", expected=("pet", "new")),
    Question(id="q4", kind="absent", text="car?"),
    Question(id="q5", kind="absent", text="boat?"),
)


class ScriptedRetriever:
    """Answers from a table, and takes 2 ms of CPU for each search."""

    name = "scripted"
    floor: float | None = None

    def __init__(self, answers: dict[str, Ranking]) -> None:
        self.answers = answers
        self.indexed: list[str] = []
        self.searches = 0

    async def index(self, memories: Sequence[MemoryItem]) -> None:
        self.indexed += [memory.id for memory in memories]

    async def search(self, question: str, limit: int) -> Ranking:
        self.searches += 1
        return self.answers[question][:limit]

    def cpu_seconds(self) -> float:
        return 0.002 * self.searches


class ScriptedRouter:
    name = "scripted"

    def __init__(self, answers: dict[str, Routed]) -> None:
        self.answers = answers
        self.examples: Sequence[tuple[str, str | None]] = []

    async def index(self, agents: Sequence[AgentItem], examples: Sequence[tuple[str, str | None]]) -> None:
        self.examples = examples

    async def route(self, text: str) -> Routed:
        return self.answers[text]

    def cpu_seconds(self) -> float:
        return 0.0


def collection(half: Half) -> Collection:
    return Collection(name=half, half=half, language="en", memories=MEMORIES, questions=QUESTIONS)


async def test_the_figures_of_a_retriever_are_those_of_its_answers() -> None:
    retriever = ScriptedRetriever(
        {
            "pet?": [("pet", 0.9)],
            "home?": [("old", 0.8), ("new", 0.7)],
            "both?": [("old", 0.6), ("x", 0.5), ("pet", 0.4)],
            "car?": [("pet", 0.1)],
            "boat?": [],
        }
    )
    outcomes = await search_all(retriever, [collection("tune"), collection("report")])
    assert retriever.indexed == ["old", "new", "pet"] * 2
    figures = memory_figures("scripted", outcomes, "report")
    assert figures.questions == 5
    assert figures.recall == pytest.approx((1 + 1 + 0.5) / 3)
    assert figures.mrr == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert figures.recall_by == {"paraphrase": 1, "update": 1, "hops": 0.5, "en": pytest.approx(2.5 / 3)}
    assert figures.stale_first == 1
    assert 0 < figures.floor < 0.6
    assert figures.decisions == 1
    assert figures.abstention.f1 == 1
    assert figures.cost.cpu_us == pytest.approx(2000)
    high = memory_figures("scripted", outcomes, "report", floor=0.85)
    assert (high.abstention.precision, high.abstention.recall) == (0.5, 1)
    assert high.decisions == pytest.approx(3 / 5)


async def test_the_report_half_decides_nothing_about_floor_and_calibration() -> None:
    sure = ScriptedRetriever({"pet?": [("pet", 0.9)], "car?": [("pet", 0.2)]})
    tune, report = (
        Collection(name=half, half=half, language="en", memories=MEMORIES, questions=(QUESTIONS[0], QUESTIONS[3]))
        for half in ("tune", "report")
    )
    outcomes = await search_all(sure, [tune])
    sure.answers = {"pet?": [("pet", 0.1)], "car?": [("pet", 0.8)]}
    outcomes += await search_all(sure, [report])
    figures = memory_figures("sure", outcomes, "report")
    assert 0.2 < figures.floor < 0.9
    assert figures.decisions == 0
    assert figures.calibration_error > 0.4
    assert memory_figures("sure", outcomes, "tune").decisions == 1


async def test_a_router_is_calibrated_on_the_tune_half_only_and_measured_on_the_other() -> None:
    agents = [AgentItem(name=name, title="", description="", examples=()) for name in ("cook", "pilot")]
    texts = {"a": "cook", "b": "pilot", "c": "cook", "d": None, "e": None}
    utterances = [Utterance(id=text, half="report", text=text, agent=agent) for text, agent in texts.items()]
    utterances.append(Utterance(id="t", half="tune", text="t", agent="cook"))
    router = ScriptedRouter(
        {
            "a": Routed(agent="cook", confidence=0.95, abstained=False),
            "b": Routed(agent="cook", confidence=0.95, abstained=False),
            "c": Routed(agent="cook", confidence=0.25, abstained=True),
            "d": Routed(agent="cook", confidence=0.25, abstained=True),
            "e": Routed(agent="pilot", confidence=0.95, abstained=False),
            "t": Routed(agent="cook", confidence=0.5, abstained=False),
        }
    )
    figures = route_figures("scripted", await route_all(router, agents, utterances), "report")
    assert router.examples == [("t", "cook")]
    assert figures.utterances == 5
    assert figures.top1 == pytest.approx(2 / 3)
    assert figures.coverage == pytest.approx(2 / 3)
    assert figures.accuracy_answered == pytest.approx(1 / 3)
    assert figures.decisions == pytest.approx(2 / 5)
    assert (figures.abstention.precision, figures.abstention.recall) == (0.5, 0.5)
    assert figures.calibration_error == pytest.approx((3 * abs(0.95 - 1 / 3) + 2 * abs(0.25 - 1 / 2)) / 5)


async def test_the_configured_embedding_model_finds_what_shares_no_word() -> None:
    ref = embedding_names.parse("openai:scripted")
    assert ref is not None
    concepts = [("dog", "pet"), ("rome", "oslo", "home"), ("bake", "cake"), ("fly", "plane")]
    async with serving_embeddings(concepts) as server:
        embedder = open_embedder(ref, ProviderAccess(key="secret", url=server.url))
        try:
            retriever = next(one for one in memory_baselines(embedder) if one.name == "embeddings")
            await retriever.index(MEMORIES)
            assert [name for name, _ in await retriever.search("my pet?", 1)] == ["pet"]
            agents = [
                AgentItem(name="cook", title="Cook", description="Bakes.", examples=("bake bread",)),
                AgentItem(name="pilot", title="Pilot", description="Flies.", examples=("fly me",)),
            ]
            router = next(one for one in router_baselines(embedder) if one.name == "embeddings")
            await router.index(agents, [("a cake", "cook"), ("a plane", "pilot"), ("zzz", None)])
            assert (await router.route("cake!")).agent == "cook"
            assert (await router.route("nothing known")).abstained
            chooser = next(one for one in tool_baselines(embedder) if one.name == "embeddings")
            tools = [ToolItem(name="oven", description="Bakes."), ToolItem(name="jet", description="Flies.")]
            task = ToolTask(id="t", half="report", text="a plane please", expected=("jet",))
            figures = tool_figures("embeddings", await choose_all(chooser, tools, [task]), "report")
            assert (figures.recall, figures.mrr) == (1, 1)
        finally:
            await embedder.aclose()


def test_the_command_prints_and_saves_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KHALA_EMBEDDINGS", raising=False)
    saved = tmp_path / "report.json"
    arguments = command.parse_arguments(
        ["--half", "both", "--only", "bm25-words", "bm25-words+keywords", "--json", str(saved), "--misses"]
    )
    monkeypatch.setattr(command, "parse_arguments", lambda: arguments)
    assert command.main() == 0
    report = msgspec.json.decode(saved.read_bytes(), type=EvalReport)
    assert report.machine["embeddings"] == "none"
    figures = report.memories[command.OWN_SETS]
    assert [(one.name, one.half) for one in figures] == [
        (name, half) for name in ("bm25-words", "bm25-words+keywords") for half in ("tune", "report")
    ]
    assert all(one.questions >= 250 and one.cost.cpu_us > 0 for one in figures)
    assert [one.half for one in report.routing] == [one.half for one in report.tools] == ["tune", "report"]
    assert all("/" in note and "haruka" not in note for note in report.notes)
    assert report.notes
    printed = capsys.readouterr().out
    for word in ("bm25-words+keywords", "Recall@5", "ECE", "Routing", "Tools", "misses mara/"):
        assert word in printed


def test_a_benchmark_file_replaces_the_own_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KHALA_EMBEDDINGS", raising=False)
    turn = {"role": "user", "content": "I study botany."}
    question = {
        "question_id": "q1",
        "question_type": "single-session-user",
        "question": "What is my subject, botany?",
        "haystack_session_ids": ["s1"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [[turn]],
        "answer_session_ids": ["s1"],
    }
    path = tmp_path / "longmemeval_oracle.json"
    path.write_text(json.dumps([question, {**question, "question_id": "q2"}]))
    saved = tmp_path / "report.json"
    arguments = command.parse_arguments(["--longmemeval", str(path), "--only", *BASELINES, "--json", str(saved)])
    monkeypatch.setattr(command, "parse_arguments", lambda: arguments)
    assert command.main() == 0
    report = msgspec.json.decode(saved.read_bytes(), type=EvalReport)
    assert list(report.memories) == ["LongMemEval (longmemeval_oracle.json, by session)"]
    figures = report.memories["LongMemEval (longmemeval_oracle.json, by session)"]
    assert [one.name for one in figures] == ["bm25-words", "bm25-trigrams"]
    assert figures[0].recall == 1
    assert not report.routing
    assert not report.tools
    path.write_text("[]")
    with pytest.raises(SystemExit, match="is no file of LongMemEval"):
        command.main()


def test_an_unknown_retriever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KHALA_EMBEDDINGS", raising=False)
    arguments = command.parse_arguments(["tools", "--only", "bm24"])
    monkeypatch.setattr(command, "parse_arguments", lambda: arguments)
    with pytest.raises(SystemExit, match="retriever of the name bm24"):
        command.main()


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse_arguments(["memory"])
    assert "unknown part: memory; choose from memories, routing, tools" in capsys.readouterr().err


def test_an_empty_report_has_no_tables() -> None:
    assert table(EvalReport(machine={"cores": "2"})) == "cores: 2"


async def test_khala_routes_with_fixed_constants_and_names_an_agent_even_if_it_abstains() -> None:
    agents = [
        AgentItem(name="poet", title="Poet", description="Writes poems", examples=("Write a poem about the sea",)),
        AgentItem(name="chef", title="Chef", description="Cooks", examples=("Find a recipe for dinner",)),
    ]
    (router,) = khala_routers()
    await router.index(agents, [])
    assert await router.route("A recipe for a dinner of two") == await router.route("A recipe for a dinner of two")
    assert (await router.route("Find a recipe for my dinner")).agent == "chef"
    small_talk = await router.route("How are you?")
    assert small_talk.abstained
    async with serving_embeddings([("poem", "verse"), ("recipe", "dish"), ("writes",), ("cooks",)]) as server:
        ref = embedding_names.parse("openai:scripted")
        assert ref is not None
        embedder = open_embedder(ref, ProviderAccess(key="secret", url=server.url))
        by_words, by_meaning = khala_routers(embedder)
        for one in (by_words, by_meaning):
            await one.index(agents, [])
        assert (await by_words.route("A verse, quick")).abstained
        assert (await by_meaning.route("A verse, quick")).agent == "poet"
        await embedder.aclose()


async def test_khala_chooses_tools_by_their_words_and_by_meaning_with_a_model() -> None:
    tools = [ToolItem(name="mail__send", description="Send"), ToolItem(name="repo__read", description="x")]
    (chooser,) = khala_tools()
    await chooser.index(tools)
    assert [name for name, _ in await chooser.tools("read the repo", 1)] == ["repo__read"]
    concepts = [("repo", "checkout"), ("mail",), ("plan", "goal"), ("write", "text"), ("test", "fault")]
    async with serving_embeddings(concepts) as server:
        ref = embedding_names.parse("openai:scripted")
        assert ref is not None
        embedder = open_embedder(ref, ProviderAccess(key="secret", url=server.url))
        found = {}
        for one in khala_tools(embedder):
            await one.index(tools)
            found[one.name] = [name for name, _ in await one.tools("my checkout", 1)]
        await embedder.aclose()
    assert found == {"khala-lexical": ["mail__send"], "khala-hybrid": ["repo__read"]}
