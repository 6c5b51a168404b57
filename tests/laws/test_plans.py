"""Laws of plans: whatever people, agents and clocks do, and wherever a driver dies, a plan keeps its promises."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from khala.domain.errors import KhalaError
from khala.domain.plans.attempts import (
    Attempt,
    AttemptCanceled,
    AttemptCompleted,
    AttemptConflicted,
    AttemptExpired,
    AttemptFailed,
    AttemptLimited,
    AttemptLost,
    AttemptUnavailable,
    AttemptUnfinished,
    Outcome,
    report,
    runs_under_way,
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
    AttemptCharged,
    Created,
    Paused,
    PlanEvent,
    Started,
    StepCompleted,
    StepReopened,
    StepStarted,
    Stopped,
)
from khala.domain.plans.fold import apply, create, fold
from khala.domain.plans.plan import Plan, PlanConfig, PlannedStep, Spent

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
    st.builds(AttemptConflicted, error=st.just("conflict")),
    st.builds(AttemptUnfinished),
    st.builds(AttemptLimited, retry_after=st.sampled_from([None, 0, 7, 4000])),
    st.builds(AttemptUnavailable, error=st.just("not found")),
    st.builds(AttemptLost),
    st.builds(AttemptCanceled),
)
commands: st.SearchStrategy[PlanCommand] = st.one_of(
    st.builds(Start),
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
        self.attempts: dict[UUID, Attempt] = {}
        """The attempts whose runs have not ended."""
        self.begun = 0
        self.tokens = 0
        """The cost of the runs that have ended."""
        self.may_repeat: set[str] = set()

    @initialize(drawn=steps, config=configs, mode=modes, iterations=st.integers(1, 12), done=st.sets(ids))
    def begin(
        self,
        drawn: Sequence[tuple[int, int, str | None]],
        config: PlanConfig,
        mode: str,
        iterations: int,
        done: AbstractSet[str],
    ) -> None:
        created = msgspec.convert(
            {"type": "created", "at": NOON, "title": "Plan", "mode": mode, "maxIterations": iterations}
            | {"config": msgspec.to_builtins(config), "steps": msgspec.to_builtins(planned(drawn))}
            | {"completed": sorted(done & {*IDS[: len(drawn)]})},
            type=Created,
        )
        self.log = [created]
        self.plan = create(created)
        assert {step_id for step_id, step in self.plan.steps.items() if step.satisfied} == set(created.completed)
        self.apply(decide(self.plan, Start(), self.now))

    def apply(self, events: Sequence[PlanEvent]) -> None:
        for event in events:
            if isinstance(event, StepStarted):
                self.begun += 1
                event = msgspec.structs.replace(event, run_id=UUID(int=self.begun))
            self.check(event)
            before = self.plan.status
            apply(self.plan, event)
            assert self.plan.status == before or self.plan.status in LEGAL[before], (before, event)
            self.log.append(event)
            if isinstance(event, StepStarted):
                assert event.run_id is not None
                self.attempts[event.run_id] = Attempt(step_id=event.step_id, number=event.attempt, run_id=event.run_id)

    def end(self, attempt: Attempt, outcome: Outcome, tokens: int = 0) -> Sequence[PlanEvent]:
        """The run of an attempt ends, and the driver reports it."""
        assert attempt.run_id is not None
        del self.attempts[attempt.run_id]
        ended = msgspec.structs.replace(attempt, spent=Spent(tokens=tokens))
        events = report(self.plan, ended, outcome, self.now)
        self.apply(events)
        self.tokens += tokens
        assert report(self.plan, ended, outcome, self.now) == [], "an attempt ended twice"
        return events

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
        if isinstance(event, Started):
            assert self.plan.status == "idle"
        if isinstance(event, Stopped | Paused):
            assert not self.attempts
        if isinstance(event, StepReopened):
            assert (self.plan.steps[event.step_id].status == "running") == event.interrupted
        if isinstance(event, StepReopened) and not event.interrupted:
            self.may_repeat.add(event.step_id)
        if isinstance(event, StepCompleted):
            completed = [e.step_id for e in self.log if isinstance(e, StepCompleted)]
            completed += [step_id for e in self.log if isinstance(e, Created) for step_id in e.completed]
            assert event.step_id not in completed or event.step_id in self.may_repeat
            self.may_repeat.discard(event.step_id)

    @rule()
    def drive(self) -> None:
        """The driver does what is due, until nothing is."""
        for _ in range(20):
            due = advance(self.plan, self.now)
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
    @rule(data=st.data(), outcome=outcomes, tokens=st.integers(0, 3))
    def end_attempt(self, data: st.DataObject, outcome: Outcome, tokens: int) -> None:
        """An attempt that the plan has given up only has a cost, however it ends."""
        attempt = self.attempts[data.draw(st.sampled_from(sorted(self.attempts)))]
        is_canceled = attempt.run_id in self.plan.canceled_runs
        events = self.end(attempt, outcome, tokens)
        assert not is_canceled or [type(event) for event in events] == [AttemptCharged]

    @rule(available=st.booleans())
    def probe(self, *, available: bool) -> None:
        if needs_probe(self.plan, self.now):
            self.apply(report_probe(self.plan, available=available, now=self.now))

    @rule(seconds=st.sampled_from([0.1, 1, 10, 100, 4000]), waited=st.sampled_from([0, 1, 100, 4000]))
    def let_time_pass(self, seconds: float, waited: float) -> None:
        self.now += timedelta(seconds=seconds)
        waits = {step_id: timedelta(seconds=waited) for step_id in self.plan.running_steps}
        expired = expired_steps(self.plan, self.now, waits)
        assert expired == [
            step_id
            for step_id in expired_steps(self.plan, self.now)
            if step_id in expired_steps(self.plan, self.now - waits[step_id])
        ]
        under_way = runs_under_way(self.plan)
        for attempt in [under_way[run_id] for step_id in expired if (run_id := self.plan.steps[step_id].run_id)]:
            self.apply(report(self.plan, attempt, AttemptExpired(error="It took too long."), self.now))

    @rule()
    def lose_the_driver(self) -> None:
        """Another driver reads the events, and finds all runs lost."""
        stored = msgspec.json.decode(msgspec.json.encode(self.log), type=list[PlanEvent])
        assert stored == self.log
        read = fold(stored)
        assert read == self.plan
        self.plan = read
        for attempt in list(self.attempts.values()):
            self.end(attempt, AttemptLost(), tokens=2)

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
        assert {run_id: attempt.step_id for run_id, attempt in self.attempts.items()} == {
            run_id: attempt.step_id for run_id, attempt in runs_under_way(self.plan).items()
        }
        assert self.plan.spent == Spent(tokens=self.tokens)

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
        if self.plan.status == "paused":
            self.apply(decide(self.plan, Resume(), self.now))
        for attempt in list(self.attempts.values()):
            self.end(attempt, AttemptCompleted(summary="done"))
        if needs_probe(self.plan, self.now):
            self.apply(report_probe(self.plan, available=False, now=self.now))
        due = advance(self.plan, self.now)
        self.apply(due)
        if not due and not self.attempts and (later := next_time(self.plan)):
            assert later > self.now, "the driver would not wait"
            self.now = later


TestPlans = Plans.TestCase
TestPlans.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
