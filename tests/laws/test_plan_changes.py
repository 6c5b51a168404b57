"""Laws of changes that models request, and of overviews: a repeated request does nothing, and overviews are bounded."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from khala.domain import ids
from khala.domain.errors import KhalaError
from khala.domain.plans.changes import PlanChangeRequest, commands_for, read_request
from khala.domain.plans.commands import decide
from khala.domain.plans.fold import apply, create
from khala.domain.plans.new_plans import created_event
from khala.domain.plans.overview import MAX_OVERVIEW_BYTES, MAX_STEP_BYTES, describe_plan, describe_step
from khala.domain.plans.plan import Plan, PlanConfig, PlannedStep

NOW = datetime(2026, 1, 1, tzinfo=UTC)
IDS = ["a", "b", "c", "d", "e"]
statuses = st.sampled_from(["open", "running", "completed", "failed", "skipped", "cancelled"])
some_ids = st.lists(st.sampled_from(IDS), max_size=3)
fields = st.fixed_dictionaries(
    {"id": st.sampled_from(IDS), "title": st.sampled_from(["one", "two"])},
    optional={"priority": st.integers(0, 2), "dependsOn": some_ids, "agent": st.none() | st.just("default")},
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "title": st.sampled_from(["Plan", "Other"]),
        "goal": st.sampled_from(["", "Goal"]),
        "add": st.lists(fields, max_size=2),
        "change": st.lists(fields, max_size=2),
        **dict.fromkeys(("remove", "order", "retry", "skip"), some_ids),
    },
)


def plan_of(steps: Sequence[PlannedStep], drawn: Sequence[str]) -> Plan:
    config = PlanConfig(agents=("default",))
    plan = create(created_event("Plan", "", steps, config, "all", now=NOW))
    for step, status in zip(plan.steps.values(), drawn, strict=True):
        step.status = status  # type: ignore[assignment]
    return plan


def carry_out(plan: Plan, request: PlanChangeRequest) -> int:
    """Carry the request out; returns the number of commands."""
    count = 0
    for command in commands_for(plan, request):
        for event in decide(plan, command, NOW):
            apply(plan, event)
        count += 1
    return count


@given(drawn=st.lists(statuses, min_size=3, max_size=3), fields=requests)
@settings(max_examples=300, deadline=None)
def test_the_same_request_again_changes_nothing(drawn: Sequence[str], fields: dict[str, Any]) -> None:
    plan = plan_of([PlannedStep(id=name, title="one") for name in IDS[:3]], drawn)
    try:
        request = read_request(fields)
        carry_out(plan, request)
    except KhalaError:
        return
    after = msgspec.msgpack.encode(plan)
    named = {*request.order} | {step["id"] for step in request.change}
    if named <= plan.steps.keys() and not named & {*request.remove}:
        assert carry_out(plan, request) == 0
    assert msgspec.msgpack.encode(plan) == after


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    lengths=st.lists(st.tuples(texts, st.integers(1, 200), st.integers(0, 2000), statuses), min_size=1, max_size=60),
    last=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_an_overview_is_bounded_and_names_what_matters_first(
    lengths: Sequence[tuple[str, int, int, str]], last: bool
) -> None:
    steps = [
        PlannedStep(id=f"S{n}", title=("t" + text * length)[:200], instructions="ü" * 20_000)
        for n, (text, length, _, _) in enumerate(lengths)
    ]
    plan = plan_of(steps, [status for *_, status in lengths])
    for step, (text, _, length, _) in zip(plan.steps.values(), lengths, strict=True):
        step.summary = step.error = (text * length)[:2000]
    plan.steps[steps[-1 if last else 0].id].status = "running"
    overview = describe_plan(plan)
    assert len(overview.encode()) <= MAX_OVERVIEW_BYTES
    running = [step_id for step_id, step in plan.steps.items() if step.status == "running"]
    assert f"[>] {running[0]} t" in overview
    shown = sum(line.startswith("[") for line in overview.split("\n"))
    assert shown == len(steps) or f"and {len(steps) - shown:,} more steps" in overview
    assert len(describe_step(plan, steps[0].id).encode()) <= MAX_STEP_BYTES


@given(name=st.text(), other=st.text())
def test_a_derived_id_is_stable_and_as_old_as_its_base(name: str, other: str) -> None:
    base = ids.new()
    derived = ids.derived(base, name)
    assert derived == ids.derived(base, name)
    assert (derived == ids.derived(base, other)) == (name == other)
    assert (derived.version, derived.variant) == (base.version, base.variant)
    assert ids.created_at(derived) == ids.created_at(base)
