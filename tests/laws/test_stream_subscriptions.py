"""Laws of subscriptions to streams: patterns of names, and wakes under any sequence of events."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from khala.domain import ids
from khala.domain.streams import name_patterns, wake_tokens
from khala.domain.streams.subscriptions import SubscriptionError, WakeState
from khala.store.streams.subscription_rows import regular_expression

START = datetime(2026, 1, 1, tzinfo=UTC)
SEGMENTS = st.sampled_from(["a", "b", "a.b", "*", "**", "+", "[", "é"])
NAMES = st.lists(st.sampled_from(["a", "b", "a.b", "+", "[", "é", "axb"]), min_size=1, max_size=6).map("/".join)
PATTERNS = st.lists(SEGMENTS, min_size=1, max_size=6).map("/".join)
EVENTS = st.sampled_from(["wake", "claim", "extend", "end", "deliver", "fail", "pass"])


@given(PATTERNS, NAMES)
@example("a/**", "a")
@example("**/a/**/b", "a/a/b/a/b")
def test_the_database_matches_the_names_that_the_pattern_matches(pattern: str, name: str) -> None:
    assert name_patterns.matches(pattern, name) == bool(re.fullmatch(regular_expression(pattern), f"/{name}"))


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_pattern_of_wildcards_matches_in_few_steps(wildcards: int, segments: int) -> None:
    pattern = "/".join(["**"] * wildcards + ["never"])
    assert not name_patterns.matches(pattern, "/".join(["a"] * segments))


@given(st.lists(st.tuples(EVENTS, st.integers(0, 40)), max_size=40))
def test_generations_only_grow_and_only_the_wake_in_flight_may_report(events: list[tuple[str, int]]) -> None:
    state, now = WakeState(), START
    ended: set[tuple[int, str]] = set()
    for number, (event, seconds) in enumerate(events):
        now += timedelta(seconds=seconds)
        before, state = state, state.at(now)
        if before.wake_id is not None and state.wake_id is None:
            ended.add((before.generation, before.wake_id))
        in_flight = state.wake_id
        previous = state.generation
        match event:
            case "wake" if state.may_wake:
                state = state.woken(f"w{number}", now + timedelta(seconds=30) if number % 2 else None)
                assert state.generation == previous + 1
                assert state.holder is None
            case "claim" if in_flight and state.holder is None:
                state = state.claimed("worker", now + timedelta(seconds=30))
            case "extend" if in_flight:
                state = state.extended(now + timedelta(seconds=30))
            case "deliver" if in_flight:
                state = state.delivered()
                assert state.failures == 0
            case "end" if in_flight:
                ended.add((state.generation, in_flight))
                state = state.ended()
            case "fail" if in_flight:
                ended.add((state.generation, in_flight))
                state = state.undelivered(now, 0.5)
                assert state.due_at is not None
                assert timedelta(0) < state.due_at - now <= timedelta(seconds=72)
                assert not state.may_wake
            case _:
                pass
        assert state.generation >= previous
        for generation, wake_id in ended:
            with pytest.raises(SubscriptionError, match="ended"):
                state.check(generation, wake_id, generation)
        if state.wake_id is not None:
            state.check(state.generation, state.wake_id, state.generation)
            with pytest.raises(SubscriptionError, match="ended"):
                state.check(state.generation, state.wake_id, state.generation - 1)


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**63 - 1), st.integers(0, 74), st.characters(codec="ascii"))
def test_a_token_is_valid_for_its_subscription_and_generation_alone(
    key: bytes, generation: int, place: int, other: str
) -> None:
    subscription_id = ids.new()
    token = wake_tokens.sign(key, subscription_id, generation)
    parsed = wake_tokens.parse(f"Bearer {token}")
    parsed.check(key)
    assert (parsed.subscription_id, parsed.generation) == (subscription_id, generation)
    at = len(wake_tokens.PREFIX) + place
    changed = token[:at] + other + token[at + 1 :]
    if changed == token:
        return
    try:
        forged = wake_tokens.parse(f"Bearer {changed}")
    except SubscriptionError:
        return
    if forged == parsed:
        return  # The last character has bits that belong to no byte.
    with pytest.raises(SubscriptionError, match="token"):
        forged.check(key)
