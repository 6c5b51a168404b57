"""Laws of routing: probabilities, independent of the order of agents, monotone in what speaks for an agent."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from khala.domain import routing
from khala.domain.routing import DEFAULT_AGENT, FLOOR, AgentProfile, Background, Meaning, RouteDecision, decide
from khala.domain.vectors import unit_vector

WORDS = ("review", "parser", "summary", "invoice", "travel", "poem", "outage", "kitchen", "the", "my")
texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
agents = st.lists(
    st.builds(
        lambda name, about, examples: routing.profile(name, [about, *examples]),
        st.text("abcdef", min_size=1, max_size=4),
        texts,
        st.lists(texts, max_size=3),
    ),
    max_size=6,
    unique_by=lambda agent: agent.name,
)
background = Background(mean=0.1, deviation=0.1)


def meaning(profiles: list[AgentProfile], similarities: list[float]) -> Meaning:
    """These similarities, in the order of the agents."""
    by_name = {profile.name: similarities[index % len(similarities)] for index, profile in enumerate(profiles)}
    return Meaning(closenesses=by_name, background=background)


meanings = st.one_of(st.none(), st.lists(st.floats(-1, 1), min_size=1, max_size=6))


def total(decision: RouteDecision) -> float:
    return decision.confidence + sum(other.confidence for other in decision.alternatives)


@given(texts, agents, meanings)
def test_confidences_are_probabilities_of_different_choices(
    task: str, profiles: list[AgentProfile], similarities: list[float] | None
) -> None:
    decision = decide(task, profiles, None if similarities is None else meaning(profiles, similarities))
    named = [decision.agent, *(other.agent for other in decision.alternatives)]
    assert len(set(named)) == len(named)
    assert {*named} <= {DEFAULT_AGENT, *(profile.name for profile in profiles)}
    assert total(decision) <= 1.003, "each is rounded"
    confidences = [other.confidence for other in decision.alternatives]
    assert confidences == sorted(confidences, reverse=True)
    assert decision.abstained is (decision.agent == DEFAULT_AGENT)
    assert decision.by == ("words" if similarities is None else "meaning")
    if not decision.abstained:
        assert decision.confidence >= max([FLOOR - 0.001, *confidences])


@given(texts, agents.filter(lambda profiles: len(profiles) < 5))
def test_the_order_of_the_agents_does_not_matter(task: str, profiles: list[AgentProfile]) -> None:
    assert len({repr(decide(task, list(order))) for order in permutations(profiles)}) == 1


@given(texts, agents.filter(bool), st.integers(0, 5), st.floats(0, 1), st.floats(0, 1))
def test_a_more_similar_agent_is_not_less_likely(
    task: str, profiles: list[AgentProfile], index: int, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    name = profiles[index % len(profiles)].name

    def confidence(similarity: float) -> float:
        similarities = {profile.name: 0.3 for profile in profiles} | {name: similarity}
        decision = decide(task, profiles, Meaning(closenesses=similarities, background=background))
        named = {decision.agent: decision.confidence} | {one.agent: one.confidence for one in decision.alternatives}
        return named.get(name, 0.0)

    assert confidence(low) <= max(confidence(high), routing.MIN_ALTERNATIVE_CONFIDENCE)


@given(agents, st.text(alphabet=" .,!?", max_size=5))
def test_a_task_without_words_is_for_the_default_agent(profiles: list[AgentProfile], task: str) -> None:
    assert decide(task, profiles).abstained


def test_a_word_of_one_agent_decides_and_is_the_reason() -> None:
    profiles = [
        routing.profile("reviewer", ["Code reviewer\nFinds faults in code", "Review everything under src/"]),
        routing.profile("poet", ["Poet\nWrites short poems", "Write a poem about the sea"]),
    ]
    decision = decide("Please review my module under src", profiles)
    assert (decision.agent, decision.why) == ("reviewer", "Matching words: “review”, “under”, “src”.")
    assert decide("How is the weather in Oslo?", profiles).agent == DEFAULT_AGENT


def test_among_many_agents_each_needs_more_to_be_chosen() -> None:
    one = routing.profile("poet", ["Poet\nWrites poems"])
    others = [routing.profile(f"other-{number}", [f"Expert {number}\nAnswers"]) for number in range(200)]
    few, many = decide("poems please", [one, *others[:5]]), decide("poems please", [one, *others])
    assert few.confidence > many.confidence or many.abstained


def test_only_public_agents_are_alternatives_in_a_part() -> None:
    profiles = [
        routing.profile("reviewer", ["Reviewer\nReview code", "Review the parser"]),
        routing.profile("private", ["Mine\nReview parsers"]),
        routing.profile("tester", ["Tester\nTest the parser"]),
    ]
    decision = decide("Review and test the parser and its code", profiles)
    assert {other.agent for other in decision.alternatives} == {"private", "tester"}
    assert [other.agent for other in decision.part({"reviewer", "tester"}).alternatives] == ["tester"]


def test_the_two_nearest_texts_count_however_many_others_are_far() -> None:
    assert routing.closeness([0.25, -1.0, 0.75, 0.0]) == 0.5
    assert routing.closeness([0.25]) == 0.25, "an agent without examples has one text"


def test_the_background_is_that_of_texts_of_different_agents() -> None:
    east, north = unit_vector([1.0, 0.0]), unit_vector([0.0, 1.0])
    found = routing.background([[east, east], [north]])
    assert (found.mean, found.deviation) == (0.0, 1e-6)
    assert routing.background([[east], [north], [east]]).mean == 1 / 3
