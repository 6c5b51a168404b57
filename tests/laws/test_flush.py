"""Laws of the flush policy: pending text is due at once, or by age, size or count, and never later."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from khala.domain.flush_policy import MAX_SHARING_RUNS, FlushPolicy, FlushSchedule, PendingText

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


class SimulatedRuns:
    """Runs of one process that always have text, which is held from their first flush on."""

    def __init__(self, starts: list[float], rates: tuple[float, float] = (60.0, 300.0)) -> None:
        self.schedule = FlushSchedule(POLICY)
        self.runs = [PendingText() for _ in starts]
        self.rates = rates
        self.flushes: list[tuple[float, int]] = []
        """Times and sizes of all flushes."""
        for run, start in sorted(zip(self.runs, starts, strict=True), key=lambda pair: pair[1]):
            self.write_until(start)
            run.add(5, start)
            self.schedule.join(run)
            self.write([run], start)

    def due_at(self, run: PendingText) -> float:
        due, since = run.due_at(POLICY), run.waits_since
        if due is None or since is None:
            return inf
        assert since <= due <= since + POLICY.seconds
        return due

    def write_until(self, end: float) -> None:
        while True:
            due = [(self.due_at(run), run) for run in self.runs]
            now = min(at for at, _ in due)
            if now > end:
                return
            self.write([run for at, run in due if at <= now], now)

    def write(self, due: list[PendingText], now: float) -> None:
        self.flushes.append((now, len(due)))
        for place, run in enumerate(due):
            run.end_hold(now)
            run.hold(now + place / 10_000, self.rates)
            run.mark_taken(at_once=False, now=now)
        self.schedule.continue_together(due)

    def flushes_after(self, time: float) -> list[int]:
        """The sizes of all flushes after this time, in the time between two flushes of a run."""
        self.write_until(time + POLICY.seconds)
        return [size for at, size in self.flushes if at > time]


starts = st.lists(st.floats(0, 3), min_size=1, max_size=MAX_SHARING_RUNS)


@settings(max_examples=30)
@given(starts)
def test_the_flushes_of_a_few_runs_become_one(when: list[float]) -> None:
    simulated = SimulatedRuns(when)
    sizes = simulated.flushes_after(3 + len(when) * POLICY.seconds)
    assert sizes == [len(when)]


@settings(max_examples=20)
@given(st.lists(st.floats(0, 3), min_size=MAX_SHARING_RUNS, max_size=120))
def test_many_runs_keep_several_flushes_of_a_bounded_size(when: list[float]) -> None:
    simulated = SimulatedRuns(when)
    sizes = simulated.flushes_after(10.0)
    assert sum(sizes) >= len(when)
    assert max(sizes) <= 2 * MAX_SHARING_RUNS
    assert len(sizes) <= 2 + 2 * len(when) / MAX_SHARING_RUNS


@settings(max_examples=20)
@given(st.integers(1, 200))
def test_runs_that_were_written_at_once_are_divided_if_they_are_very_many(count: int) -> None:
    simulated = SimulatedRuns([0.0] * count)
    simulated.flushes.clear()
    simulated.write(simulated.runs, 10.0)
    sizes = simulated.flushes_after(10.0)
    assert max(sizes) < 2 * MAX_SHARING_RUNS
    assert len(sizes) <= max(1, 2 * count // MAX_SHARING_RUNS)


@given(starts)
def test_fast_models_share_no_flushes(when: list[float]) -> None:
    simulated = SimulatedRuns(when, rates=(320.0, 1600.0))
    assert all(run.shared is None for run in simulated.runs)
    assert all(run.due_at(POLICY) == (run.held_since or 0) + 0.1 for run in simulated.runs)


@given(starts, st.floats(0, 1))
def test_the_first_text_and_full_text_never_wait_for_other_runs(when: list[float], at: float) -> None:
    simulated = SimulatedRuns(when)
    for chars, urgent in ((5, True), (POLICY.chars, False)):
        pending = PendingText(urgent=urgent)
        pending.add(chars, 3 + at)
        simulated.schedule.join(pending)
        assert pending.due_at(POLICY) == 3 + at


@given(starts, st.floats(0, 1))
def test_a_run_that_joins_loses_at_most_half_an_interval(when: list[float], at: float) -> None:
    simulated = SimulatedRuns(when)
    pending = PendingText(urgent=False)
    pending.add(5, 3 + at)
    simulated.schedule.join(pending)
    due = pending.due_at(POLICY)
    assert due is not None
    assert 3 + at + POLICY.seconds / 2 <= due <= 3 + at + POLICY.seconds
