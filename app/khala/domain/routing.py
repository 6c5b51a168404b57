"""Routing: chooses the agent for a task, with the probability that it is the right one. Pure.

An agent is known by its title, description and examples. Of each agent there are up to two measures: how many of the
task's words it has, where a word counts more, the fewer agents have it; and how close its nearest text is in meaning.
A multinomial logistic model with the further choice "no agent" makes probabilities of them.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import mul
from statistics import fmean, pstdev
from uuid import UUID

import msgspec

from khala.domain import search_terms
from khala.domain.parts import LikelyAgent, Route
from khala.domain.vectors import Vector

DEFAULT_AGENT = "default"
"""The name of the default agent in a decision, which therefore no agent can have."""
FLOOR = 0.3
"""The confidence below which no agent is chosen. Above it, half of the answers on the tune half are right."""
MIN_ALTERNATIVE_CONFIDENCE = 0.05
MAX_ALTERNATIVES = 3
MAX_TASK_CHARACTERS = 2_000
"""Characters of a task that count. A longer one is known by its beginning."""
MAX_AGENT_TERMS = 1_024
MAX_NAMED_WORDS = 4
"""Words that a reason names."""
MIN_NAMED_WORTH = 0.4

# Fitted by maximum likelihood on the tune half of the evaluation's utterances (12 agents): docs/evaluation.md.
BIAS = -1.6
WORDS_WEIGHT, HALF_WORDS = 10.2, 4.0
ABOUT_WEIGHT, HALF_ABOUT = 1.4, 2.0
"""Weights of an agent's words, and of those in its title and description; and the matched worth that counts half."""
FITTED_AGENTS = 12
"""Among more agents, each is less likely from the start."""

# Chosen, not fitted: they hold for models that differ, because the measure is in deviations from the model's own mean.
MEANING_WEIGHT = 1.5
NEUTRAL_MEANING = 2.5
"""Deviations above the mean similarity of unrelated texts at which the meaning speaks neither for nor against."""
LEXICAL_WEIGHT = 0.3
"""Of the words, where there are vectors: as in the search of memories."""

BY_MEANING = "An example or the description is close in meaning."
NONE_FITS = "No agent fits well enough."


class RoutableAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that may be chosen. `id` identifies the version of a user's agent; a built-in agent has none."""

    id: UUID | None = None
    name: str
    texts: Sequence[str]
    models: Sequence[str] = ()


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """An agent as the router knows it: the terms of all its texts, and those of its title and description."""

    name: str
    terms: AbstractSet[str]
    about: AbstractSet[str]


class Background(msgspec.Struct, frozen=True, kw_only=True):
    """The similarities of unrelated texts in one embedding model: their mean and standard deviation."""

    mean: float
    deviation: float

    def standardized(self, similarity: float) -> float:
        """The deviations by which a similarity is above the mean."""
        return (similarity - self.mean) / self.deviation


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """The similarity of a task and the nearest text of each agent, by its name."""

    similarities: Mapping[str, float]
    background: Background


class RouteDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The agent for a task. If the router abstained, it is the default agent.

    `confidence` is the probability that the agent is right: for the default agent, that no other one is.
    `alternatives` are other agents, the most likely first.
    """

    agent: str
    confidence: float
    abstained: bool
    why: str
    alternatives: tuple[LikelyAgent, ...]

    def part(self, public: Collection[str]) -> Route:
        """The decision as all readers of the thread see it: without alternatives that are not public."""
        others = tuple(other for other in self.alternatives if other.agent in public)
        return Route(agent=self.agent, confidence=self.confidence, alternatives=others, why=self.why)


def texts_of(title: str, description: str, examples: Sequence[str]) -> list[str]:
    """The texts by which an agent is found: title and description, and each example."""
    return [f"{title}\n{description}", *examples]


def profile(name: str, agent_texts: Sequence[str]) -> AgentProfile:
    """The terms of an agent with these texts."""
    about, *examples = (search_terms.terms(text) for text in agent_texts)
    found = dict.fromkeys(about)
    for example in examples:
        found |= dict.fromkeys(example)
    return AgentProfile(name=name, terms=frozenset(list(found)[:MAX_AGENT_TERMS]), about=frozenset(about))


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


def similarity(one: Vector, other: Vector) -> float:
    """The cosine of the angle of two vectors of length 1."""
    return math.fsum(map(mul, one, other))


def decide(task: str, agents: Sequence[AgentProfile], meaning: Meaning | None = None) -> RouteDecision:
    """The agent for this task, or the default agent if none is likely enough or none has anything in common with it.

    The order of the agents does not matter, and all confidences together are at most 1. The names are unique.
    """
    found = search_terms.terms(task[:MAX_TASK_CHARACTERS])
    weights = _worths(found, agents)
    logits = {agent.name: _logit(agent, weights, len(agents), meaning) for agent in agents}
    confidences, of_none = _probabilities(logits)
    related = {agent.name for agent in agents if meaning is not None or any(term in agent.terms for term in weights)}
    ranked = sorted((LikelyAgent(agent=name, confidence=confidences[name]) for name in related), key=_rank)
    if not ranked or ranked[0].confidence < FLOOR:
        return _decision(DEFAULT_AGENT, of_none, NONE_FITS, ranked)
    best = next(agent for agent in agents if agent.name == ranked[0].agent)
    return _decision(best.name, ranked[0].confidence, _reason(best, weights), ranked[1:])


def _decision(agent: str, confidence: float, why: str, others: Iterable[LikelyAgent]) -> RouteDecision:
    likely = [other for other in others if other.confidence >= MIN_ALTERNATIVE_CONFIDENCE]
    return RouteDecision(
        agent=agent,
        confidence=round(confidence, 3),
        abstained=agent == DEFAULT_AGENT,
        why=why,
        alternatives=tuple(
            LikelyAgent(agent=other.agent, confidence=round(other.confidence, 3)) for other in likely[:MAX_ALTERNATIVES]
        ),
    )


def _worths(found: Mapping[str, float], agents: Sequence[AgentProfile]) -> dict[str, float]:
    """The worth of each term that an agent has, from 0 to 1: 1 for a whole word that one agent has."""
    having = Counter(term for agent in agents for term in found if term in agent.terms)
    unique = math.log1p(len(agents) / 1.5)
    return {
        term: weight * math.log1p(len(agents) / (having[term] + 0.5)) / unique
        for term, weight in found.items()
        if having[term]
    }


def _logit(agent: AgentProfile, worths: Mapping[str, float], count: int, meaning: Meaning | None) -> float:
    """The log-odds of an agent against none."""
    words = math.fsum(worth for term, worth in worths.items() if term in agent.terms)
    about = math.fsum(worth for term, worth in worths.items() if term in agent.about)
    lexical = WORDS_WEIGHT * words / (words + HALF_WORDS) + ABOUT_WEIGHT * about / (about + HALF_ABOUT)
    prior = BIAS - math.log(max(count, FITTED_AGENTS) / FITTED_AGENTS)
    if meaning is None:
        return prior + lexical
    standardized = meaning.background.standardized(meaning.similarities[agent.name])
    return prior + LEXICAL_WEIGHT * lexical + MEANING_WEIGHT * (standardized - NEUTRAL_MEANING)


def _probabilities(logits: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """The probability of each agent, and of none, whose logit is 0."""
    highest = max([0.0, *logits.values()])
    masses = {name: math.exp(logit - highest) for name, logit in logits.items()}
    none = math.exp(-highest)
    total = math.fsum([none, *masses.values()])
    return {name: mass / total for name, mass in masses.items()}, none / total


def _rank(ranked: LikelyAgent) -> tuple[float, str]:
    return -ranked.confidence, ranked.agent


def _reason(agent: AgentProfile, worths: Mapping[str, float]) -> str:
    """The words that speak most for the agent, in the order of the task."""
    words = [
        term
        for term, worth in worths.items()
        if worth >= MIN_NAMED_WORTH and term in agent.terms and not term.endswith("*")
    ]
    best = sorted(words, key=lambda term: -worths[term])[:MAX_NAMED_WORDS]
    named = ", ".join(f"“{term}”" for term in words if term in best)
    return f"Matching words: {named}." if named else BY_MEANING
