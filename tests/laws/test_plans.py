"""Laws of plans: whatever people, agents and clocks do, and wherever a driver dies, a plan keeps its promises."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from khala.domain.errors import KhalaError
from khala.domain.plans.attempts import (
    Attempt,
    AttemptCanceled,
    AttemptCompleted,
    AttemptFailed,
    AttemptLimited,
    AttemptLost,
    AttemptUnavailable,
    AttemptUnfinished,
    Outcome,
    report,
)
from khala.domain.plans.commands import (
    CancelStep,
    ChangeIterations,
    ChangeMode,
    Edit,
    Pause,
    PlanCommand,
    Resume,
    RetryStep,
    SkipStep,
    Start,
    Stop,
    SwitchAgent,
    decide,
)
from khala.domain.plans.dependencies import count_steps, ready_steps
from khala.domain.plans.engine import advance, expired_steps, needs_probe, next_time, report_probe
from khala.domain.plans.events import (
    AttemptEvent,
    Created,
    Paused,
    PlanEvent,
    StepCompleted,
    StepReopened,
    StepStarted,
    Stopped,
)
from khala.domain.plans.fold import apply, create, fold
from khala.domain.plans.plan import Plan, PlanConfig, PlannedStep

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
IDS = [f"s{number}" for number in range(6)]
AGENTS = ("first", "second", "third")
MAX_STEPS_TO_THE_END = 400
LEGAL = {
    "idle": {"running", "stopping"},
    "running": {"pausing", "stopping"},
    "pausing": {"paused", "running", "stopping"},
    "paused": {"running", "stopping"},
    "stopping": {"stopped"},
    "stopped": set[str](),
}

ids = st.sampled_from(IDS)
steps = st.lists(
    st.builds(
        lambda number, priority, agent: (number, priority, agent),
        st.integers(0, 2**5 - 1),
        st.integers(0, 2),
        st.sampled_from([None, None, *AGENTS]),
    ),
    min_size=1,
    max_size=len(IDS),
)
configs = st.builds(
    PlanConfig,
    agents=st.sampled_from([AGENTS[:1], AGENTS[:2], AGENTS]),
    strategy=st.sampled_from(["retry", "skip", "abort"]),
    max_retries=st.integers(0, 2),
    rate_limit_retries=st.integers(0, 2),
    parallel=st.integers(1, 3),
    no_progress=st.integers(1, 3),
    recover_primary=st.booleans(),
)
modes = st.sampled_from(["all", "step", "autopilot"])
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(AttemptCompleted, summary=st.just("done")),
    st.builds(AttemptCompleted, summary=st.just("done")),
    st.builds(AttemptFailed, error=st.just("no")),
    st.builds(AttemptUnfinished),
    st.builds(AttemptLimited, retry_after=st.sampled_from([None, 0, 7, 4000])),
    st.builds(AttemptUnavailable, error=st.just("not found")),
    st.builds(AttemptLost),
    st.builds(AttemptCanceled),
)
commands: st.SearchStrategy[PlanCommand] = st.one_of(
    st.builds(Pause, force=st.booleans()),
    st.builds(Resume),
    st.builds(Stop),
    st.builds(ChangeMode, mode=modes),
    st.builds(ChangeIterations, by=st.integers(-3, 5)),
    st.builds(SwitchAgent, agent=st.sampled_from([*AGENTS, "unknown"])),
    st.builds(RetryStep, step_id=ids),
    st.builds(SkipStep, step_id=ids),
    st.builds(CancelStep, step_id=ids),
    st.builds(Edit, remove=st.tuples(ids)),
    st.builds(
        Edit,
        change=st.tuples(
            st.builds(PlannedStep, id=ids, title=st.just("changed"), depends_on=st.lists(ids, max_size=2).map(tuple))
        ),
    ),
)


def planned(drawn: Sequence[tuple[int, int, str | None]]) -> tuple[PlannedStep, ...]:
    """Steps that depend on steps before them: one for each bit of the drawn number."""
    return tuple(
        PlannedStep(
            id=IDS[place],
            title=IDS[place],
            depends_on=tuple(IDS[earlier] for earlier in range(place) if number >> earlier & 1),
            priority=priority,
            agent=agent,
        )
        for place, (number, priority, agent) in enumerate(drawn)
    )


class Plans(RuleBasedStateMachine):
    """A driver, people and agents, in any order."""

    plan: Plan
    log: list[PlanEvent]

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.attempts: dict[str, int] = {}
        """The attempts that the plan has, as the driver makes them: the steps and their numbers."""
        self.canceled: list[Attempt] = []
        """The attempts that the driver is canceling."""
        self.may_repeat: set[str] = set()

    @initialize(drawn=steps, config=configs, mode=modes, iterations=st.integers(1, 12))
    def begin(
        self, drawn: Sequence[tuple[int, int, str | None]], config: PlanConfig, mode: str, iterations: int
    ) -> None:
        created = msgspec.convert(
            {"type": "created", "at": NOON, "mode": mode, "maxIterations": iterations}
            | {"config": msgspec.to_builtins(config), "steps": msgspec.to_builtins(planned(drawn))},
            type=Created,
        )
        self.log = [created]
        self.plan = create(created)
        self.apply(decide(self.plan, Start(), self.now))

    def apply(self, events: Sequence[PlanEvent]) -> None:
        for event in events:
            self.check(event)
            before = self.plan.status
            apply(self.plan, event)
            assert self.plan.status == before or self.plan.status in LEGAL[before], (before, event)
            self.log.append(event)
        self.reconcile()

    def check(self, event: PlanEvent) -> None:
        """The promises of one event, before it is applied."""
        assert not isinstance(self.log[-1], Stopped), f"{event} after the end"
        if isinstance(event, StepStarted):
            step = self.plan.steps[event.step_id]
            assert self.plan.status == "running"
            assert step.status == "open"
            assert event.attempt == step.attempts + 1
            assert all(self.plan.steps[before].satisfied for before in step.planned.depends_on)
            assert step.not_before is None or step.not_before <= event.at
            assert event.agent not in self.plan.limited_agents
        if isinstance(event, Stopped | Paused):
            assert not self.canceled
            assert not self.attempts
        if isinstance(event, StepReopened):
            assert (self.plan.steps[event.step_id].status == "running") == event.interrupted
        if isinstance(event, StepReopened) and not event.interrupted:
            self.may_repeat.add(event.step_id)
        if isinstance(event, StepCompleted):
            completed = [e.step_id for e in self.log if isinstance(e, StepCompleted)]
            assert event.step_id not in completed or event.step_id in self.may_repeat
            self.may_repeat.discard(event.step_id)

    def reconcile(self) -> None:
        """Begin the attempts that the plan has, and cancel those that it no longer has."""
        wanted = {step_id: self.plan.steps[step_id].attempts for step_id in self.plan.running_steps}
        gone = self.attempts.items() - wanted.items() - {(attempt.step_id, attempt.number) for attempt in self.ended}
        self.canceled += [Attempt(step_id=step_id, number=number) for step_id, number in sorted(gone)]
        self.attempts = wanted

    @property
    def ended(self) -> list[Attempt]:
        """The attempts whose end the log has."""
        return [
            Attempt(step_id=event.step_id, number=event.attempt)
            for event in self.log
            if isinstance(event, AttemptEvent)
        ]

    @rule()
    def drive(self) -> None:
        """The driver does what is due, until nothing is."""
        for _ in range(20):
            due = advance(self.plan, self.now, under_way=bool(self.attempts or self.canceled))
            if not due:
                return
            self.apply(due)
        raise AssertionError("there is always something due")

    @rule(command=commands)
    def command(self, command: PlanCommand) -> None:
        """A command either fits, or changes nothing."""
        before = msgspec.msgpack.encode(self.plan)
        try:
            events = decide(self.plan, command, self.now)
        except KhalaError:
            assert msgspec.msgpack.encode(self.plan) == before
            return
        self.apply(events)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), outcome=outcomes)
    def end_attempt(self, data: st.DataObject, outcome: Outcome) -> None:
        step_id = data.draw(st.sampled_from(sorted(self.attempts)))
        attempt = Attempt(step_id=step_id, number=self.attempts[step_id])
        self.apply(report(self.plan, attempt, outcome, self.now))
        assert report(self.plan, attempt, outcome, self.now) == [], "an attempt ended twice"

    @precondition(lambda self: self.canceled)
    @rule(outcome=outcomes)
    def end_canceled_attempt(self, outcome: Outcome) -> None:
        """An attempt that the plan has given up changes nothing, however it ends."""
        assert report(self.plan, self.canceled.pop(0), outcome, self.now) == []

    @rule(available=st.booleans())
    def probe(self, *, available: bool) -> None:
        if needs_probe(self.plan, self.now):
            self.apply(report_probe(self.plan, available=available, now=self.now))

    @rule(seconds=st.sampled_from([0.1, 1, 10, 100, 4000]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for step_id in expired_steps(self.plan, self.now):
            attempt = Attempt(step_id=step_id, number=self.plan.steps[step_id].attempts)
            self.apply(report(self.plan, attempt, AttemptFailed(error="It took too long."), self.now))

    @rule()
    def lose_the_driver(self) -> None:
        """Another driver reads the events, finds no attempt under way, and opens the steps again."""
        stored = msgspec.json.decode(msgspec.json.encode(self.log), type=list[PlanEvent])
        assert stored == self.log
        read = fold(stored)
        assert read == self.plan
        self.plan = read
        self.canceled.clear()
        for step_id, number in self.attempts.items():
            self.apply(report(self.plan, Attempt(step_id=step_id, number=number), AttemptLost(), self.now))

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "plan"):
            return
        counts = count_steps(self.plan)
        assert sum(msgspec.structs.astuple(counts)) == len(self.plan.steps)
        assert counts.running == len(self.plan.running_steps) <= self.plan.config.parallel
        assert self.plan.iteration == sum(isinstance(event, StepStarted) for event in self.log)
        assert self.plan.iteration <= self.plan.max_iterations
        assert not self.plan.running_steps or self.plan.status in ("running", "pausing")

    def teardown(self) -> None:
        """If agents complete all steps and people resume, every plan stops, and completes all that can run."""
        if not hasattr(self, "plan"):
            return
        for _ in range(MAX_STEPS_TO_THE_END):
            if self.plan.status == "stopped":
                break
            self.go_on()
        assert self.plan.status == "stopped", (self.plan.status, self.plan.pause_reason)
        assert sum(isinstance(event, Stopped) for event in self.log) == 1
        if self.plan.end in ("completed", "no_tasks"):
            assert not ready_steps(self.plan)
            assert (self.plan.end == "completed") == all(step.satisfied for step in self.plan.steps.values())

    def go_on(self) -> None:
        self.canceled.clear()
        if self.plan.status == "paused":
            self.apply(decide(self.plan, Resume(), self.now))
        for step_id, number in dict(self.attempts).items():
            attempt = Attempt(step_id=step_id, number=number)
            self.apply(report(self.plan, attempt, AttemptCompleted(summary="done"), self.now))
        if needs_probe(self.plan, self.now):
            self.apply(report_probe(self.plan, available=False, now=self.now))
        due = advance(self.plan, self.now, under_way=bool(self.attempts or self.canceled))
        self.apply(due)
        if not due and not self.attempts and (later := next_time(self.plan)):
            assert later > self.now, "the driver would not wait"
            self.now = later


TestPlans = Plans.TestCase
TestPlans.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
