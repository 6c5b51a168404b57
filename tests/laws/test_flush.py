"""Laws of the flush policy: pending text is due at once, or by age, size or count, and never later."""

from hypothesis import given
from hypothesis import strategies as st

from khala.domain.flush_policy import FlushPolicy, PendingText

POLICY = FlushPolicy(milliseconds=350, chars=1200, parts=32)

deltas = st.lists(st.tuples(st.integers(1, 300), st.floats(0, 0.2)), min_size=1, max_size=60)


def test_the_first_text_is_due_at_once() -> None:
    pending = PendingText()
    pending.add(1, 5.0)
    assert pending.due_at(POLICY) == 5.0


def test_without_pending_text_nothing_is_due() -> None:
    assert PendingText().due_at(POLICY) is None


@given(deltas)
def test_what_follows_is_due_by_age_unless_size_or_count_come_first(received: list[tuple[int, float]]) -> None:
    pending = PendingText()
    pending.mark_taken(at_once=False, now=0.0)
    now = 10.0
    for chars, wait in received:
        pending.add(chars, now)
        now += wait
    due = pending.due_at(POLICY)
    full = sum(chars for chars, _ in received) >= POLICY.chars or len(received) >= POLICY.parts
    assert due == (10.0 if full else 10.35)


def test_what_is_left_over_from_a_batch_is_due_at_once() -> None:
    pending = PendingText()
    pending.add(1, 1.0)
    pending.mark_taken(at_once=True, now=2.0)
    assert pending.due_at(POLICY) == 2.0


def test_what_reaches_a_limit_just_so_is_due() -> None:
    for deltas, due in (([1199], 1.35), ([1200], 1.0), ([1] * 31, 1.35), ([1] * 32, 1.0)):
        pending = PendingText()
        pending.mark_taken(at_once=False, now=0.0)
        for chars in deltas:
            pending.add(chars, 1.0)
        assert pending.due_at(POLICY) == due


def test_held_text_is_due_as_if_it_had_arrived_when_its_pause_began() -> None:
    pending = PendingText()
    pending.mark_taken(at_once=False, now=0.0)
    pending.hold(5.0, (60.0, 300.0))
    assert pending.due_at(POLICY) == 5.35
    pending.add(20, pending.end_hold(5.2))
    assert pending.due_at(POLICY) == 5.35
    pending.mark_taken(at_once=False, now=5.3)
    assert pending.due_at(POLICY) is None
    assert pending.end_hold(6.0) == 6.0, "nothing was held"


def test_held_text_of_a_fast_model_is_due_when_it_presumably_reaches_a_limit() -> None:
    for rates, due in (((320.0, 1.0), 5.1), ((1.0, 12000.0), 5.1), ((1.0, 1.0), 5.35)):
        pending = PendingText()
        pending.hold(5.0, rates)
        assert pending.due_at(POLICY) == due


def test_pending_text_is_due_before_the_text_that_is_held_behind_it() -> None:
    pending = PendingText()
    pending.add(1, 4.0)
    pending.hold(4.1, (60.0, 300.0))
    assert pending.due_at(POLICY) == 4.0
