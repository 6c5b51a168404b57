"""Routing: chooses the agent for a task, with the probability that it is the right one. Pure.

An agent is known by its title, description and examples. Of each agent there are up to two measures: its BM25 score for
the words of the task, and how close its two nearest texts are in meaning. A multinomial logistic model with the further
choice "no agent" makes probabilities of them.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import mul
from statistics import fmean, pstdev
from uuid import UUID

import msgspec

from khala.domain import bm25, search_terms
from khala.domain.parts import LikelyAgent, RelevanceBasis, Route
from khala.domain.vectors import Vector

DEFAULT_AGENT = "default"
"""The name of the default agent in a decision, which therefore no agent can have."""
FLOOR = 0.19
"""The confidence below which no agent is chosen by words: on the tune half, it abstains with the highest F1."""
MEANING_FLOOR = 0.26
"""The confidence below which no agent is chosen where there are vectors: it has the most right decisions there."""
MIN_ALTERNATIVE_CONFIDENCE = 0.05
MAX_ALTERNATIVES = 3
MAX_TASK_CHARACTERS = 2_000
"""Characters of a task that count. A longer one is known by its beginning."""
MAX_NAMED_WORDS = 4
"""Words that a reason names."""

# Fitted by maximum likelihood on the tune half of the evaluation's utterances (12 agents): docs/evaluation.md.
BIAS = -1.44
WORDS_WEIGHT, HALF_SCORE = 7.12, 2.0
"""The weight of an agent's score for the words, and the score that counts half."""
FITTED_AGENTS = 12
"""Among more agents, each is less likely from the start."""

# Fitted likewise, with all-MiniLM-L6-v2. The measure is in deviations from the model's own mean, because models differ.
NEAREST_TEXTS = 2
"""Texts of an agent whose mean similarity counts: with two, more agents are right than with the nearest one alone."""
MEANING_WEIGHT = 2.12
NEUTRAL_MEANING = 0.6
"""Deviations above the mean similarity of unrelated texts at which the meaning speaks neither for nor against."""
LEXICAL_WEIGHT = 0.46
"""Of the words, where there are vectors."""

BY_MEANING = "An example or the description is close in meaning."
NONE_FITS = "No agent fits well enough."


class RoutableAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that may be chosen. `id` identifies the version of a user's agent; a built-in agent has none."""

    id: UUID | None = None
    name: str
    texts: Sequence[str]
    models: Sequence[str] = ()


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as the router knows it: all its texts as one document."""

    name: str
    document: bm25.Document


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """The similarities of unrelated texts in one embedding model: their mean and standard deviation."""

    mean: float
    deviation: float

    def standardized(self, similarity: float) -> float:
        """The deviations by which a similarity is above the mean."""
        return (similarity - self.mean) / self.deviation


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """The closeness of a task to each agent or tool, by its name: see `closeness`."""

    closenesses: Mapping[str, float]
    background: Background

    def evidence(self, name: str) -> float:
        """How much the meaning speaks for the agent or tool, as log-odds: more than 0 speaks for it."""
        standardized = self.background.standardized(self.closenesses[name])
        return MEANING_WEIGHT * (standardized - NEUTRAL_MEANING)


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The agent for a task. If the router abstained, it is the default agent.

    `confidence` is the probability that the agent is right: for the default agent, that no other one is.
    `alternatives` are other agents, the most likely first. `by`: whether the meaning counted, or only words.
    """

    agent: str
    confidence: float
    abstained: bool
    why: str
    alternatives: tuple[LikelyAgent, ...]
    by: RelevanceBasis

    def part(self, public: Collection[str]) -> Route:
        """The decision as all readers of the thread see it: without alternatives that are not public."""
        others = tuple(other for other in self.alternatives if other.agent in public)
        return Route(agent=self.agent, confidence=self.confidence, alternatives=others, why=self.why, by=self.by)


def texts_of(title: str, description: str, examples: Sequence[str]) -> list[str]:
    """The texts by which an agent is found: title and description, and each example."""
    return [f"{title}\n{description}", *examples]


def profile(name: str, agent_texts: Sequence[str]) -> AgentProfile:
    """An agent with these texts."""
    return AgentProfile(name=name, document=bm25.document((text, 1.0) for text in agent_texts))


def background(agents: Sequence[Sequence[Vector]]) -> Background:
    """The background of a model, from the vectors of the texts of several agents."""
    similarities = [
        similarity(one, other)
        for index, vectors in enumerate(agents)
        for others in agents[index + 1 :]
        for one in vectors
        for other in others
    ]
    return Background(mean=fmean(similarities), deviation=max(pstdev(similarities), 1e-6))


def similarity(one: Sequence[float], other: Vector) -> float:
    """The cosine of the angle of two vectors of length 1.

    A plain sum has an error of less than 1e-13, and takes a third of the time of `fsum`.
    """
    total: float = sum(map(mul, one, other))
    return total


def closeness(similarities: Iterable[float]) -> float:
    """How close a task is to an agent: the mean similarity of the agent's nearest texts."""
    return fmean(heapq.nlargest(NEAREST_TEXTS, similarities))


def evidence(name: str, score: float, meaning: Meaning | None) -> float:
    """How much speaks for the agent or tool, as log-odds: its BM25 score for the words, and its meaning if known."""
    lexical = WORDS_WEIGHT * score / (score + HALF_SCORE)
    return lexical if meaning is None else LEXICAL_WEIGHT * lexical + meaning.evidence(name)


def decide(task: str, agents: Sequence[AgentProfile], meaning: Meaning | None = None) -> RouteDecision:
    """The agent for this task, or the default agent if none is likely enough or none has anything in common with it.

    The order of the agents does not matter, and all confidences together are at most 1. The names are unique.
    """
    words = dict(search_terms.stems(task[:MAX_TASK_CHARACTERS]))
    documents = [agent.document for agent in agents]
    rarities = bm25.rarities(words, documents)
    scores = {agent.name: score for agent, score in zip(agents, bm25.scores(rarities, documents), strict=True)}
    logits = {name: _logit(name, score, len(agents), meaning) for name, score in scores.items()}
    confidences, of_none = _probabilities(logits)
    related = (name for name, score in scores.items() if meaning is not None or score)
    ranked = sorted((LikelyAgent(agent=name, confidence=confidences[name]) for name in related), key=_rank)
    by: RelevanceBasis = "words" if meaning is None else "meaning"
    if not ranked or ranked[0].confidence < (FLOOR if meaning is None else MEANING_FLOOR):
        return _decision(DEFAULT_AGENT, of_none, NONE_FITS, ranked, by)
    best = next(agent for agent in agents if agent.name == ranked[0].agent)
    matching = {words[stem]: rarity for stem, rarity in rarities.items() if stem in best.document.counts}
    return _decision(best.name, ranked[0].confidence, _reason(matching), ranked[1:], by)


def _decision(
    agent: str, confidence: float, why: str, others: Iterable[LikelyAgent], by: RelevanceBasis
) -> RouteDecision:
    likely = [other for other in others if other.confidence >= MIN_ALTERNATIVE_CONFIDENCE]
    return RouteDecision(
        agent=agent,
        confidence=round(confidence, 3),
        abstained=agent == DEFAULT_AGENT,
        why=why,
        alternatives=tuple(
            LikelyAgent(agent=other.agent, confidence=round(other.confidence, 3)) for other in likely[:MAX_ALTERNATIVES]
        ),
        by=by,
    )


def _logit(name: str, score: float, count: int, meaning: Meaning | None) -> float:
    """The log-odds of an agent against none."""
    return BIAS - math.log(max(count, FITTED_AGENTS) / FITTED_AGENTS) + evidence(name, score, meaning)


def _probabilities(logits: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The probability of each agent, and of none, whose logit is 0."""
    highest = max([0.0, *logits.values()])
    masses = {name: math.exp(logit - highest) for name, logit in logits.items()}
    none = math.exp(-highest)
    total = math.fsum([none, *masses.values()])
    return {name: mass / total for name, mass in masses.items()}, none / total


def _rank(ranked: LikelyAgent) -> tuple[float, str]:
    return -ranked.confidence, ranked.agent


def _reason(matching: Mapping[str, float]) -> str:
    """The rarest words of the task that the agent has, in the order of the task."""
    best = sorted(matching, key=lambda word: -matching[word])[:MAX_NAMED_WORDS]
    named = ", ".join(f"“{word}”" for word in matching if word in best)
    return f"Matching words: {named}." if named else BY_MEANING
