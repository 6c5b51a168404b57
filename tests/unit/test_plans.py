"""Plans by example: the situations in which loops of agents are known to go wrong."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest

from khala.domain.errors import Conflict, InvalidInput, NotFound
from khala.domain.plans.attempts import (
    Attempt,
    AttemptCompleted,
    AttemptConflicted,
    AttemptFailed,
    AttemptLimited,
    AttemptLost,
    AttemptUnavailable,
    AttemptUnfinished,
    Outcome,
    rate_limit_wait,
    report,
)
from khala.domain.plans.commands import (
    CancelStep,
    ChangeBudget,
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
from khala.domain.plans.dependencies import check_steps, count_steps
from khala.domain.plans.engine import advance, needs_probe, next_time, report_probe
from khala.domain.plans.events import Created, PlanEvent
from khala.domain.plans.fold import apply, create
from khala.domain.plans.plan import (
    FailureStrategy,
    Plan,
    PlanBudget,
    PlanConfig,
    PlanMode,
    PlannedStep,
    PlanStatus,
    Spent,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Driver:
    """A plan, and a clock that the test moves. It stores what a driver would store."""

    def __init__(
        self,
        *steps: PlannedStep,
        mode: PlanMode = "autopilot",
        iterations: int = 100,
        config: PlanConfig | None = None,
        completed: tuple[str, ...] = (),
    ) -> None:
        config = config or PlanConfig(agents=("first", "second"), step_delay_ms=0)
        created = Created(
            at=NOON,
            title="Plan",
            config=config,
            mode=mode,
            max_iterations=iterations,
            steps=steps,
            completed=completed,
        )
        self.plan: Plan = create(created)
        self.now = NOON
        self.log: list[PlanEvent] = []
        self.command(Start())

    def command(self, command: PlanCommand) -> None:
        self._apply(decide(self.plan, command, self.now))
        self._advance()

    def end(self, step_id: str, outcome: Outcome, spent: Spent | None = None) -> None:
        """End the attempt of a running step."""
        attempt = Attempt(step_id=step_id, number=self.plan.steps[step_id].attempts, spent=spent or Spent())
        self._apply(report(self.plan, attempt, outcome, self.now))
        self._advance()

    def complete(self, *step_ids: str) -> None:
        for step_id in step_ids:
            self.end(step_id, AttemptCompleted(summary="done"))

    def wait(self) -> timedelta:
        """Wait until something is due, and return for how long."""
        time = next_time(self.plan)
        assert time is not None
        waited, self.now = time - self.now, time
        self._advance()
        return waited

    def probe(self, *, available: bool) -> None:
        self._apply(report_probe(self.plan, available=available, now=self.now))
        self._advance()

    @property
    def running(self) -> Sequence[str]:
        return self.plan.running_steps

    @property
    def types(self) -> list[str]:
        """The types of the events, in order."""
        return [type(event).__struct_config__.tag for event in self.log]  # type: ignore[misc]

    def _advance(self) -> None:
        while due := advance(self.plan, self.now):
            self._apply(due)

    def _apply(self, events: Sequence[PlanEvent]) -> None:
        for event in events:
            apply(self.plan, event)
            self.log.append(event)


def step(step_id: str, *depends_on: str, priority: int = 0, agent: str | None = None) -> PlannedStep:
    return PlannedStep(id=step_id, title=step_id, depends_on=depends_on, priority=priority, agent=agent)


def test_steps_run_by_dependencies_and_then_by_priority() -> None:
    driver = Driver(step("late", priority=9), step("second", "first"), step("first", priority=5))
    order: list[str] = []
    while driver.running:
        order += driver.running
        driver.complete(*driver.running)
    assert order == ["first", "second", "late"]
    driver = Driver(step("last", "a", "b"), step("a"), step("b", priority=1))
    driver.complete("a")
    assert driver.running == ["b"], "one of two dependencies is not enough"
    driver.complete("b", "last")
    assert (driver.plan.status, driver.plan.end) == ("stopped", "completed")
    assert driver.types[-2:] == ["stopping", "stopped"]


@pytest.mark.parametrize(
    ("iterations", "budget"), [(1, PlanBudget()), (100, PlanBudget(tokens=1))], ids=["iterations", "budget"]
)
def test_a_step_that_may_not_start_beside_another_one_is_not_due(iterations: int, budget: PlanBudget) -> None:
    config = PlanConfig(agents=("first",), parallel=2, step_delay_ms=0, step_timeout_seconds=60, budget=budget)
    driver = Driver(step("a"), step("b"), config=config, iterations=iterations)
    assert driver.running == ["a"]
    assert next_time(driver.plan) == NOON + timedelta(seconds=60)


def test_steps_run_side_by_side_up_to_the_limit() -> None:
    config = PlanConfig(agents=("first",), parallel=2, step_delay_ms=0)
    driver = Driver(step("a"), step("b"), step("c", "a"), config=config)
    assert driver.running == ["a", "b"]
    driver.complete("a")
    assert driver.running == ["b", "c"]


def test_a_failed_step_is_retried_with_growing_waits_and_then_skipped() -> None:
    driver = Driver(step("a"), step("b"), step("c", "a"))
    waits = []
    for _ in range(2):
        driver.end("a", AttemptFailed(error="no"))
        driver.complete(*driver.running)
        waits.append(driver.wait())
    driver.end("a", AttemptFailed(error="no"))
    assert waits == [timedelta(seconds=2), timedelta(seconds=4)]
    assert driver.plan.steps["a"].status == "skipped"
    assert driver.plan.steps["a"].error == "no"
    assert count_steps(driver.plan).blocked == 1
    assert driver.plan.end == "no_tasks"


def test_a_plan_that_aborts_stops_at_the_first_failure_and_opens_what_was_under_way() -> None:
    driver = Driver(step("a"), step("b"), config=PlanConfig(agents=("first",), strategy="abort", parallel=2))
    driver.end("a", AttemptFailed(error="no"))
    assert (driver.plan.status, driver.plan.end) == ("stopped", "error")
    assert [driver.plan.steps[name].status for name in "ab"] == ["failed", "open"]


def test_all_steps_at_once_stop_at_the_first_failure() -> None:
    driver = Driver(step("a"), step("b"), mode="all")
    driver.end("a", AttemptUnfinished())
    assert (driver.plan.status, driver.plan.end) == ("stopped", "error")


def test_step_by_step_each_result_waits_for_approval() -> None:
    driver = Driver(step("a"), step("b"), mode="step", config=PlanConfig(agents=("first",), parallel=8))
    assert driver.running == ["a"]
    driver.complete("a")
    assert (driver.plan.status, driver.plan.pause_reason, driver.running) == ("paused", "review", [])
    driver.command(RetryStep(step_id="a"))
    driver.command(Resume())
    driver.wait()
    assert driver.running == ["a"]
    driver.end("a", AttemptFailed(error="no"))
    assert (driver.plan.status, driver.plan.pause_reason) == ("paused", "step_failed")
    driver.command(ChangeMode(mode="autopilot"))
    driver.command(Resume())
    driver.wait()
    assert driver.running == ["b"]


def test_a_pause_waits_for_the_step_under_way_and_can_be_taken_back() -> None:
    driver = Driver(step("a"), step("b"))
    driver.command(Pause())
    assert (driver.plan.status, driver.running) == ("pausing", ["a"])
    driver.command(Resume())
    driver.command(Pause())
    driver.complete("a")
    assert (driver.plan.status, driver.running) == ("paused", [])
    driver.command(Resume())
    assert driver.running == ["b"]


def test_a_forced_pause_opens_the_step_under_way() -> None:
    driver = Driver(step("a"))
    driver.command(Pause())
    driver.command(Pause(force=True))
    assert driver.plan.status == "paused"
    assert driver.plan.steps["a"].status == "open"


@pytest.mark.parametrize("command", [Pause(), Stop()])
def test_a_plan_that_waits_pauses_and_stops_at_once(command: PlanCommand) -> None:
    driver = Driver(step("a"))
    driver.end("a", AttemptFailed(error="no"))
    driver.command(command)
    assert driver.plan.status in ("paused", "stopped")


def test_attempts_without_progress_pause_the_plan() -> None:
    driver = Driver(step("a"))
    for _ in range(3):
        driver.end("a", AttemptUnfinished())
    assert (driver.plan.status, driver.plan.pause_reason) == ("paused", "no_progress")
    assert driver.types.count("no_progress") == 1


def test_a_rate_limit_is_waited_out_and_then_the_next_agent_follows() -> None:
    driver = Driver(step("a"))
    waits = []
    for _ in range(3):
        driver.end("a", AttemptLimited())
        waits.append(driver.wait().total_seconds())
    driver.end("a", AttemptLimited())
    assert waits == [5, 15, 45]
    assert (driver.plan.agent, driver.plan.agent_reason) == ("second", "rate_limited")
    assert driver.running == ["a"]


def test_the_fallback_agents_follow_in_their_order() -> None:
    config = PlanConfig(agents=("first", "second", "third"), rate_limit_retries=0, step_delay_ms=0)
    driver = Driver(step("a"), config=config)
    agents = [driver.plan.steps["a"].agent]
    for outcome in (AttemptLimited(), AttemptUnavailable(error="It is missing.")):
        driver.end("a", outcome)
        agents.append(driver.plan.steps["a"].agent)
    assert agents == ["first", "second", "third"]
    assert driver.plan.agent_reason == "unavailable"


def test_if_all_agents_are_limited_the_plan_pauses_with_the_step_open_and_a_resume_retries_it() -> None:
    config = PlanConfig(agents=("first", "second", "third"), rate_limit_retries=0)
    driver = Driver(step("a"), config=config)
    driver.end("a", AttemptLimited())
    driver.wait()
    driver.end("a", AttemptUnavailable(error="not installed"))
    driver.wait()
    assert driver.plan.agent == "third"
    driver.end("a", AttemptLimited())
    assert (driver.plan.status, driver.plan.pause_reason) == ("paused", "all_limited")
    assert driver.plan.steps["a"].status == "open"
    driver.command(Resume())
    driver.wait()
    driver.probe(available=True)
    assert (driver.running, driver.plan.steps["a"].agent) == (["a"], "first")


def test_the_primary_agent_is_probed_between_steps_and_takes_over_again() -> None:
    config = PlanConfig(agents=("first", "second"), rate_limit_retries=0, step_delay_ms=0)
    driver = Driver(step("a"), step("b"), step("c"), config=config)
    driver.end("a", AttemptLimited())
    assert driver.running == ["a"], "an agent that was limited just now is not probed"
    driver.complete("a")
    assert needs_probe(driver.plan, driver.now)
    driver.probe(available=False)
    assert driver.plan.steps["b"].agent == "second"
    driver.complete("b")
    driver.probe(available=True)
    assert driver.plan.steps["c"].agent == "first"
    assert driver.plan.agent_reason is None


def test_an_agent_that_a_person_chose_takes_the_next_step_and_stays() -> None:
    driver = Driver(step("a"), step("b"))
    driver.command(SwitchAgent(agent="second"))
    assert driver.plan.steps["a"].agent == "first"
    driver.complete("a")
    assert driver.plan.steps["b"].agent == "second"
    with pytest.raises(InvalidInput, match="It has: first, second"):
        driver.command(SwitchAgent(agent="unknown"))
    assert driver.plan.agent == "second"


def test_a_steps_own_agent_is_left_when_it_is_limited() -> None:
    config = PlanConfig(agents=("first",), rate_limit_retries=0, step_delay_ms=0)
    driver = Driver(step("a", agent="own"), config=config)
    assert driver.plan.steps["a"].agent == "own"
    driver.end("a", AttemptLimited())
    assert driver.plan.steps["a"].agent == "first"


@pytest.mark.parametrize(
    ("retry_after", "waits"), [(None, [5, 15, 45, 45]), (0, [5, 15, 45, 45]), (3600, [5, 15, 45, 45]), (3599, [3599])]
)
def test_the_wait_after_a_rate_limit(retry_after: float | None, waits: list[float]) -> None:
    assert [rate_limit_wait(number, retry_after) for number in range(len(waits))] == waits


def test_a_plan_stops_at_its_iterations_unless_some_are_added() -> None:
    driver = Driver(step("a"), step("b"), step("c"), iterations=1)
    driver.command(ChangeIterations(by=1))
    driver.complete("a")
    with pytest.raises(InvalidInput, match="has begun 2"):
        driver.command(ChangeIterations(by=-1))
    driver.complete("b")
    assert (driver.plan.status, driver.plan.end) == ("stopped", "max_iterations")


def test_a_step_that_loses_its_executor_too_often_fails() -> None:
    driver = Driver(step("a"), config=PlanConfig(agents=("first",), strategy="skip"))
    for _ in range(3):
        assert driver.running == ["a"]
        driver.end("a", AttemptLost())
    assert driver.plan.steps["a"].status == "skipped"


@pytest.mark.parametrize("strategy", ["retry", "abort"])
@pytest.mark.parametrize(("mode", "running"), [("all", ["c"]), ("autopilot", ["c"]), ("step", [])])
def test_a_conflict_fails_its_step_without_a_retry_and_not_the_plan(
    strategy: FailureStrategy, mode: PlanMode, running: list[str]
) -> None:
    config = PlanConfig(agents=("first",), strategy=strategy, step_delay_ms=0)
    driver = Driver(step("a"), step("b", "a"), step("c"), config=config, mode=mode)
    driver.end("a", AttemptConflicted(error="In x."))
    assert (driver.plan.steps["a"].status, driver.plan.steps["a"].error) == ("failed", "In x.")
    assert (driver.running, driver.plan.steps["b"].status) == (running, "open")
    assert driver.plan.pause_reason == ("step_failed" if mode == "step" else None)


def test_a_spent_budget_pauses_the_plan_until_it_is_raised() -> None:
    config = PlanConfig(agents=("first",), step_delay_ms=0, budget=PlanBudget(usd=Decimal(1)))
    driver = Driver(step("a"), step("b"), config=config)
    driver.end("a", AttemptCompleted(summary="done"), Spent(usd=Decimal(1)))
    assert (driver.plan.status, driver.plan.pause_reason) == ("paused", "budget")
    driver.command(ChangeBudget(budget=PlanBudget(usd=Decimal(2))))
    driver.command(Resume())
    assert driver.running == ["b"]


def test_a_skipped_step_lets_others_run_and_a_canceled_one_does_not() -> None:
    driver = Driver(step("a"), step("b", "a"), step("c", "b"))
    driver.command(SkipStep(step_id="a"))
    assert driver.running == ["b"]
    driver.command(CancelStep(step_id="b"))
    assert driver.plan.end == "no_tasks"


def test_steps_can_be_edited_unless_they_run_or_are_completed() -> None:
    driver = Driver(step("a"), step("b"))
    driver.command(Edit(add=(step("c", "b"),), change=(step("b", "a"),)))
    with pytest.raises(Conflict, match="'a' is running"):
        driver.command(Edit(remove=("a",)))
    with pytest.raises(InvalidInput, match="'c' depends on 'b', which is to be removed"):
        driver.command(Edit(remove=("b",)))
    with pytest.raises(InvalidInput, match="b → c → b"):
        driver.command(Edit(change=(step("b", "c"),)))
    with pytest.raises(NotFound):
        driver.command(Edit(remove=("d",)))
    driver.complete("a", "b", "c")
    assert driver.plan.end == "completed"


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([step("a"), step("a")], "two steps with the id 'a'"),
        ([step("a", "b")], "depends on 'b', which does not exist"),
        ([step("a", "a")], "a → a"),
        ([step("a", "c"), step("b", "a"), step("c", "b")], "a → c → b → a|c → b → a → c|b → a → c → b"),
        ([step(str(number)) for number in range(1001)], "at most 1,000 steps"),
    ],
)
def test_steps_that_cannot_be_ordered_are_refused(steps: list[PlannedStep], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        check_steps(steps)


@pytest.mark.parametrize("command", [Start(), Resume(), Pause(force=True), RetryStep(step_id="a")])
def test_a_command_that_does_not_fit_is_refused(command: PlanCommand) -> None:
    driver = Driver(step("a"))
    if isinstance(command, Pause):
        driver.command(Pause())
        driver.complete("a")
    with pytest.raises(Conflict):
        driver.command(command)


FITTING: dict[str, set[str]] = {
    "idle": {"Start", "Stop"},
    "running": {"Pause", "Stop"},
    "pausing": {"Resume", "Stop"},
    "paused": {"Resume", "Stop"},
    "stopping": set(),
    "stopped": set(),
}
"""The commands that fit each status."""


@pytest.mark.parametrize("status", FITTING)
def test_in_each_status_only_the_commands_that_fit_are_accepted(status: PlanStatus) -> None:
    for command in (Start(), Pause(), Resume(), Stop()):
        plan = Driver(step("a")).plan
        plan.status = status
        if type(command).__name__ in FITTING[status]:
            assert decide(plan, command, NOON), (status, command)
            continue
        with pytest.raises(Conflict, match=f"{status}|was not started|has stopped"):
            decide(plan, command, NOON)


def test_nothing_follows_the_end() -> None:
    driver = Driver(step("a"))
    driver.command(Stop())
    assert (driver.plan.end, driver.types[-1]) == ("interrupted", "stopped")
    with pytest.raises(Conflict, match="has stopped"):
        driver.command(RetryStep(step_id="a"))
    assert report(driver.plan, Attempt(step_id="a", number=1), AttemptCompleted(summary="late"), driver.now) == []


def test_a_step_that_was_done_at_creation_is_not_executed() -> None:
    config = PlanConfig(agents=("first",), step_delay_ms=0)
    steps = (step("a"), step("b", "a"))
    driver = Driver(*steps, config=config, completed=("a",))
    assert driver.running == ["b"]
    driver.complete("b")
    assert driver.plan.end == "completed"
    assert Driver(*steps, config=config, completed=("a", "b")).plan.end == "completed"


def test_an_error_of_an_edit_names_its_path() -> None:
    driver = Driver(step("a"), step("b", "a"), step("c"))
    edit = Edit(add=(step("d"),), remove=("c",), change=(step("b", "missing"),))
    with pytest.raises(InvalidInput, match="'missing', which does not exist") as unknown:
        decide(driver.plan, edit, NOON)
    assert unknown.value.path == "change[0]"
    with pytest.raises(InvalidInput, match="two steps") as twice:
        decide(driver.plan, Edit(add=(step("d"), step("a"))), NOON)
    assert twice.value.path == "add[1]"


def test_the_middle_of_a_long_cycle_is_not_shown() -> None:
    ring = [step(f"s{number}", f"s{(number + 1) % 1_000}") for number in range(1_000)]
    with pytest.raises(InvalidInput, match=r"… \(1,000 steps\) …") as cycle:
        check_steps(ring)
    assert len(cycle.value.message) < 500


def test_steps_are_refused_that_could_not_be_stored() -> None:
    for wrong, path in ((step("a b"), "id"), (msgspec.structs.replace(step("a"), title="a" * 201), "title")):
        with pytest.raises(InvalidInput) as error:
            check_steps([wrong])
        assert error.value.path == f"steps[0].{path}"
    for text, storable in (("a\0b", False), ("\ud800", False), ("a\\u0000b", True), ("a\\\0b", False)):
        try:
            check_steps([msgspec.structs.replace(step("a"), instructions=text)])
        except InvalidInput:
            assert not storable
        else:
            assert storable
    with pytest.raises(InvalidInput, match="no step 'b'"):
        check_steps([step("a")], completed=("b",))


def test_a_plan_has_a_bounded_number_of_dependencies() -> None:
    chain = [f"s{number}" for number in range(200)]
    steps = [PlannedStep(id=name, title=name, depends_on=tuple(chain[:at])) for at, name in enumerate(chain)]
    with pytest.raises(InvalidInput, match="at most 10,000 dependencies"):
        check_steps(steps)
    check_steps(steps[:100])


@pytest.mark.parametrize("usd", ["0", "-1", "NaN", "Infinity", "1000001"])
def test_a_budget_of_a_plan_is_an_amount_of_money_within_bounds(usd: str) -> None:
    with pytest.raises(ValueError, match=r"between 0\.0001 and 1,000,000"):
        PlanBudget(usd=Decimal(usd))


def test_the_end_of_a_removed_steps_run_does_not_end_a_new_step_with_its_id() -> None:
    driver = Driver(step("a"), step("b", "a"))
    driver.plan.steps["a"].run_id = UUID(int=2)
    driver.plan.canceled_runs[UUID(int=1)] = "a"
    old = Attempt(step_id="a", number=1, run_id=UUID(int=1), spent=Spent(tokens=7))
    (charged,) = report(driver.plan, old, AttemptCompleted(summary="old"), NOON)
    apply(driver.plan, charged)
    assert (driver.plan.steps["a"].status, driver.plan.spent.tokens) == ("running", 7)
    assert report(driver.plan, old, AttemptCompleted(summary="old"), NOON) == []
