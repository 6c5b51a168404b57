"""The rules of plans for Git."""

from datetime import UTC, datetime

import msgspec

from khala.domain.chat import StepCheckout
from khala.domain.plans.config_changes import PlanConfigChanges
from khala.domain.plans.events import Created
from khala.domain.plans.fold import create
from khala.domain.plans.plan import PlanConfig, PlanGit, PlanMode, PlannedStep
from khala.domain.plans.tasks import checkout_of


def test_the_rules_for_git_are_changed_and_turned_off() -> None:
    config = PlanConfig(agents=("first",))
    for body, git in (({"git": {"allowDirty": True}}, PlanGit(allow_dirty=True)), ({}, PlanGit(allow_dirty=True)),
                      ({"git": None}, None)):  # fmt: skip
        config = msgspec.convert(body, PlanConfigChanges).apply(config)
        assert config.git == git


def checkout(mode: PlanMode = "all", parallel: int = 1, *completed: str) -> StepCheckout | None:
    config = PlanConfig(agents=("first",), parallel=parallel, git=PlanGit())
    steps = (PlannedStep(id="a", title="A"),)
    created = Created(at=datetime(2026, 1, 1, tzinfo=UTC), title="Plan", config=config, mode=mode, max_iterations=9,
                      steps=steps, completed=completed)  # fmt: skip
    plan = create(created)
    plan.steps["a"].summary = "done" if completed else None
    return checkout_of(plan, plan.steps["a"])


def test_steps_have_worktrees_if_they_may_run_side_by_side() -> None:
    assert checkout("all", 1) == checkout("step", 2) == StepCheckout(title="A", worktree=False)
    assert checkout("all", 2) == checkout("autopilot", 2) == StepCheckout(title="A", worktree=True)


def test_a_step_that_was_completed_before_begins_anew() -> None:
    assert checkout("all", 1, "a") == StepCheckout(title="A", resumes=False)
