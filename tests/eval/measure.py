"""Asks retrievers, routers and tool choosers all questions of the sets, and computes their figures."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from tests.eval import metrics
from tests.eval.calibration import best_floor, fit_calibration
from tests.eval.eval_sets import AgentItem, Collection, Half, Question, ToolItem, ToolTask, Utterance
from tests.eval.retrievers import MemoryRetriever, Ranking, Routed, Router, ToolRetriever

RECALL_LIMIT, WIDE_RECALL_LIMIT = 5, 10
SEARCH_LIMIT = 10

Answer = TypeVar("Answer")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Wall time of one call, and its share of the CPU time of all calls."""

    seconds: float
    cpu_seconds: float


class SearchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question."""

    question: Question
    half: Half
    language: str
    ranking: Ranking
    cost: Cost

    @property
    def ranked(self) -> list[str]:
        """The ids, best first."""
        return [name for name, _ in self.ranking]

    @property
    def score(self) -> float:
        """The best score; 0 for an empty answer."""
        return self.ranking[0][1] if self.ranking else 0.0

    @property
    def right(self) -> bool:
        """Whether the first id is expected."""
        return bool(self.ranking) and self.ranking[0][0] in self.question.expected

    @property
    def found(self) -> bool:
        """Whether an expected id is among the first five."""
        return bool({*self.question.expected} & {*self.ranked[:RECALL_LIMIT]})

    @property
    def absent(self) -> bool:
        """Whether nothing answers the question."""
        return not self.question.expected

    def abstains(self, floor: float) -> bool:
        """Whether there is no answer at this floor."""
        return not self.ranking or self.score < floor


class CostFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Median wall time in milliseconds, and mean CPU time in microseconds, of one call."""

    p50_ms: float
    cpu_us: float


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one retriever on one half. `recall_by` has Recall@5 by kind of question and by language.

    `decisions` is the share of questions on which it rightly abstained, or answered with an expected id among the first
    five.
    """

    name: str
    half: Half
    questions: int
    recall: float
    mrr: float
    recall_by: dict[str, float]
    stale_first: float
    floor: float
    decisions: float
    abstention: metrics.Abstention
    calibration_error: float
    cost: CostFigures


class RouteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one utterance."""

    utterance: Utterance
    routed: Routed
    cost: Cost

    @property
    def right(self) -> bool:
        """Whether the named agent is the expected one."""
        return self.routed.agent == self.utterance.agent


class RouteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one router on one half.

    `top1` and `coverage` are of utterances in scope: the share whose agent is named, whether or not the router
    abstains, and the share that is answered. `decisions` is the share of all on which it answers right or abstains
    rightly.
    """

    name: str
    half: Half
    utterances: int
    top1: float
    coverage: float
    accuracy_answered: float
    decisions: float
    abstention: metrics.Abstention
    calibration_error: float
    cost: CostFigures


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The tools for one task."""

    task: ToolTask
    ranked: Sequence[str]
    cost: Cost


class ToolFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one tool chooser on one half."""

    name: str
    half: Half
    tasks: int
    recall: float
    wide_recall: float
    mrr: float
    cost: CostFigures


async def search_all(retriever: MemoryRetriever, collections: Iterable[Collection]) -> list[SearchOutcome]:
    """Index each collection, and ask its questions."""
    outcomes = []
    for collection in collections:
        await retriever.index(collection.memories)
        calls = [partial(retriever.search, question.text, SEARCH_LIMIT) for question in collection.questions]
        answers = await _timed(retriever.cpu_seconds, calls)
        outcomes += [
            SearchOutcome(
                question=question, half=collection.half, language=collection.language, ranking=ranking, cost=cost
            )
            for question, (ranking, cost) in zip(collection.questions, answers, strict=True)
        ]
    return outcomes


def memory_figures(
    name: str, outcomes: Sequence[SearchOutcome], half: Half, floor: float | None = None
) -> MemoryFigures:
    """The figures of one half. The calibration is fitted on the tune half, and so is the floor if it is None."""
    tuned = [one for one in outcomes if one.half == "tune"]
    calibration = fit_calibration([(one.score, one.right) for one in tuned])
    if floor is None:
        floor = best_floor([(one.score, one.found, one.absent) for one in tuned])
    chosen = [one for one in outcomes if one.half == half]
    answerable = [one for one in chosen if not one.absent]
    updates = [one for one in answerable if one.question.stale]
    return MemoryFigures(
        name=name,
        half=half,
        questions=len(chosen),
        recall=_recall(answerable),
        mrr=metrics.mean([metrics.reciprocal_rank(one.question.expected, one.ranked) for one in answerable]),
        recall_by=_recall_by(answerable),
        stale_first=metrics.accuracy(
            metrics.is_stale_first(one.question.expected, one.question.stale, one.ranked) for one in updates
        ),
        floor=floor,
        decisions=metrics.accuracy(one.absent if one.abstains(floor) else one.found for one in chosen),
        abstention=metrics.abstention((one.abstains(floor), one.absent) for one in chosen),
        calibration_error=metrics.expected_calibration_error(
            (calibration.probability(one.score), one.right) for one in chosen
        ),
        cost=cost_figures([one.cost for one in chosen]),
    )


async def route_all(router: Router, agents: Sequence[AgentItem], utterances: Sequence[Utterance]) -> list[RouteOutcome]:
    """Route all utterances, after the router has been calibrated on those of the tune half."""
    await router.index(agents, [(one.text, one.agent) for one in utterances if one.half == "tune"])
    answers = await _timed(router.cpu_seconds, [partial(router.route, one.text) for one in utterances])
    return [
        RouteOutcome(utterance=utterance, routed=routed, cost=cost)
        for utterance, (routed, cost) in zip(utterances, answers, strict=True)
    ]


def route_figures(name: str, outcomes: Sequence[RouteOutcome], half: Half) -> RouteFigures:
    """The figures of one half."""
    chosen = [one for one in outcomes if one.utterance.half == half]
    in_scope = [one for one in chosen if one.utterance.agent is not None]
    return RouteFigures(
        name=name,
        half=half,
        utterances=len(chosen),
        top1=metrics.accuracy(one.right for one in in_scope),
        coverage=metrics.accuracy(not one.routed.abstained for one in in_scope),
        accuracy_answered=metrics.accuracy(one.right for one in chosen if not one.routed.abstained),
        decisions=metrics.accuracy(
            one.utterance.agent is None if one.routed.abstained else one.right for one in chosen
        ),
        abstention=metrics.abstention((one.routed.abstained, one.utterance.agent is None) for one in chosen),
        calibration_error=metrics.expected_calibration_error((one.routed.confidence, one.right) for one in chosen),
        cost=cost_figures([one.cost for one in chosen]),
    )


async def choose_all(chooser: ToolRetriever, tools: Sequence[ToolItem], tasks: Sequence[ToolTask]) -> list[ToolOutcome]:
    """Choose tools for all tasks."""
    await chooser.index(tools)
    answers = await _timed(chooser.cpu_seconds, [partial(chooser.tools, task.text, SEARCH_LIMIT) for task in tasks])
    return [
        ToolOutcome(task=task, ranked=[name for name, _ in ranking], cost=cost)
        for task, (ranking, cost) in zip(tasks, answers, strict=True)
    ]


def tool_figures(name: str, outcomes: Sequence[ToolOutcome], half: Half) -> ToolFigures:
    """The figures of one half."""
    chosen = [one for one in outcomes if one.task.half == half]

    def recall(limit: int) -> float:
        return metrics.mean([metrics.recall_at(limit, one.task.expected, one.ranked) for one in chosen])

    return ToolFigures(
        name=name,
        half=half,
        tasks=len(chosen),
        recall=recall(RECALL_LIMIT),
        wide_recall=recall(WIDE_RECALL_LIMIT),
        mrr=metrics.mean([metrics.reciprocal_rank(one.task.expected, one.ranked) for one in chosen]),
        cost=cost_figures([one.cost for one in chosen]),
    )


def cost_figures(costs: Sequence[Cost]) -> CostFigures:
    """Median wall time and mean CPU time."""
    return CostFigures(
        p50_ms=1e3 * metrics.median(one.seconds for one in costs),
        cpu_us=1e6 * metrics.mean([one.cpu_seconds for one in costs]),
    )


def _recall(outcomes: Iterable[SearchOutcome]) -> float:
    return metrics.mean([metrics.recall_at(RECALL_LIMIT, one.question.expected, one.ranked) for one in outcomes])


def _recall_by(outcomes: Sequence[SearchOutcome]) -> dict[str, float]:
    groups: dict[str, list[SearchOutcome]] = {}
    for one in outcomes:
        groups.setdefault(one.question.kind, []).append(one)
    languages: dict[str, list[SearchOutcome]] = {}
    for one in outcomes:
        languages.setdefault(one.language, []).append(one)
    return {name: _recall(chosen) for name, chosen in (*groups.items(), *sorted(languages.items()))}


async def _timed(
    cpu_seconds: Callable[[], float], calls: Sequence[Callable[[], Awaitable[Answer]]]
) -> list[tuple[Answer, Cost]]:
    """Call one after the other. Each gets its own wall time, and an equal share of the CPU time of all."""
    answers, before = [], cpu_seconds()
    for call in calls:
        began = time.perf_counter()
        answer = await call()
        answers.append((answer, time.perf_counter() - began))
    share = metrics.ratio(cpu_seconds() - before, len(calls))
    return [(answer, Cost(seconds=seconds, cpu_seconds=share)) for answer, seconds in answers]
