"""The order in which the work of steps side by side is merged."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from khala.domain.plans.merges import merge_deadline, steps_to_merge_first
from khala.domain.plans.plan import Plan, PlanBudget, PlanConfig, PlannedStep, PlanStep

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def plan(parallel: int = 3) -> Plan:
    """Three commands side by side, the last one with the priority of the first, and a step that waits for `b`."""
    steps = [PlannedStep(id=step, title=step) for step in "abc"]
    found = {
        step.id: PlanStep(planned=step, status="running", agent="command:x", attempts=1, started_at=NOW)
        for step in steps
    }
    config = PlanConfig(agents=("command:x",), parallel=parallel, step_timeout_seconds=60)
    return Plan(title="Plan", config=config, mode="all", max_iterations=9, status="running", steps=found)


def open_step(*depends_on: str) -> PlanStep:
    return PlanStep(planned=PlannedStep(id="d", title="d", depends_on=depends_on))


def test_steps_wait_for_those_before_them_in_the_order_of_starts() -> None:
    found = plan()
    assert [steps_to_merge_first(found, step) for step in "abc"] == [[], ["a"], ["a", "b"]]
    found.steps["c"].planned = msgspec.structs.replace(found.steps["c"].planned, priority=-1)
    assert [steps_to_merge_first(found, step) for step in "abc"] == [["c"], ["c", "a"], []]


@pytest.mark.parametrize("status", ["completed", "failed", "skipped", "cancelled", "open"])
def test_no_step_waits_for_one_that_is_not_under_way(status: str) -> None:
    found = plan(parallel=8)
    found.steps["a"] = msgspec.structs.replace(found.steps["a"], status=status, not_before=NOW)
    found.steps["a"].planned = msgspec.structs.replace(found.steps["a"].planned, depends_on=("c",))
    assert steps_to_merge_first(found, "b") == []


def test_no_step_waits_for_an_agent_that_merges_nothing() -> None:
    found = plan()
    found.steps["a"].agent = "default"
    assert steps_to_merge_first(found, "b") == []


def test_no_step_waits_if_another_one_needs_its_result_or_its_place() -> None:
    found = plan()
    found.steps["d"] = open_step("b")
    assert (steps_to_merge_first(found, "b"), steps_to_merge_first(found, "c")) == ([], ["a", "b"])
    found.steps["d"] = open_step("b", "c")
    assert steps_to_merge_first(found, "b") == ["a"]
    found.steps["d"] = open_step()
    assert steps_to_merge_first(found, "b") == []
    found.config = msgspec.structs.replace(found.config, parallel=4)
    assert steps_to_merge_first(found, "b") == ["a"]
    found.config, found.status = msgspec.structs.replace(found.config, parallel=3), "pausing"
    assert steps_to_merge_first(found, "b") == ["a"]


def test_no_step_waits_that_has_a_budget_of_time_or_is_not_under_way() -> None:
    found = plan()
    found.steps["b"].budget = PlanBudget(seconds=9)
    assert steps_to_merge_first(found, "b") == steps_to_merge_first(found, "gone") == []


def test_a_step_waits_for_at_most_half_of_the_time_that_it_has_left() -> None:
    assert merge_deadline(plan(), "b", NOW + timedelta(seconds=20)) == NOW + timedelta(seconds=40)
    assert merge_deadline(plan(), "b", NOW + timedelta(seconds=90)) == NOW + timedelta(seconds=90)
