"""The task of a step has all that its agent needs, however long the texts of the plan are."""

from khala.domain.plans.plan import (
    MAX_CRITERIA,
    MAX_CRITERION_CHARACTERS,
    MAX_ERROR_CHARACTERS,
    MAX_GOAL_CHARACTERS,
    MAX_INSTRUCTIONS_CHARACTERS,
    MAX_SUMMARY_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    Plan,
    PlanConfig,
    PlannedStep,
    PlanStep,
)
from khala.domain.plans.tasks import HOW_TO_END, MAX_SUMMARIES, MAX_TASK_CHARACTERS, checkout_of, task_of


def plan_of(*steps: PlanStep, goal: str = "Sell tea") -> Plan:
    by_id = {step.planned.id: step for step in steps}
    config = PlanConfig(agents=("default",))
    return Plan(title="Shop", goal=goal, config=config, mode="autopilot", max_iterations=50, steps=by_id)


def finished(step_id: str, summary: str | None, title: str = "Rent a room") -> PlanStep:
    return PlanStep(planned=PlannedStep(id=step_id, title=title), status="completed", summary=summary)


def test_a_task_has_the_goal_the_finished_steps_and_the_step_with_its_last_error() -> None:
    planned = PlannedStep(id="tea", title="Buy tea", instructions="Green and black.", acceptance=("Both are there.",))
    tea = PlanStep(planned=planned, status="open", error="The market was closed.")
    waiting = PlanStep(planned=PlannedStep(id="open", title="Open the door"))
    task = task_of(
        plan_of(finished("room", "At the\nmarket"), finished("sign", None, "Paint a sign"), tea, waiting), tea
    )
    assert task.split("\n\n") == [
        "# Plan: Shop",
        "Sell tea",
        "Steps that are complete:\n- Rent a room: At the market\n- Paint a sign: done",
        "# Your step: Buy tea",
        "Green and black.",
        "Acceptance criteria:\n- Both are there.",
        "The last attempt failed: The market was closed.",
        HOW_TO_END,
    ]
    assert checkout_of(plan_of(tea), tea) is None


def test_of_the_longest_texts_only_the_summaries_are_shortened() -> None:
    planned = PlannedStep(
        id="last",
        title="L" * MAX_TITLE_CHARACTERS,
        instructions="I" * MAX_INSTRUCTIONS_CHARACTERS,
        acceptance=("C" * MAX_CRITERION_CHARACTERS,) * MAX_CRITERIA,
    )
    last = PlanStep(planned=planned, error="E" * MAX_ERROR_CHARACTERS)
    title, summary = "T" * MAX_TITLE_CHARACTERS, "S" * MAX_SUMMARY_CHARACTERS
    before = [finished(f"s{number}", summary, f"{number:02}{title[2:]}") for number in range(MAX_SUMMARIES + 5)]
    task = task_of(plan_of(*before, last, goal="G" * MAX_GOAL_CHARACTERS), last)
    assert MAX_TASK_CHARACTERS - MAX_SUMMARIES < len(task) <= MAX_TASK_CHARACTERS
    assert task.endswith(HOW_TO_END)
    for text in ("G" * MAX_GOAL_CHARACTERS, planned.instructions, *planned.acceptance, "E" * MAX_ERROR_CHARACTERS):
        assert text in task
    assert ("\n- 04T" in task, "\n- 05T" in task, "\n- 54T" in task) == (False, True, True)
    short = task_of(plan_of(*before, PlanStep(planned=PlannedStep(id="last", title="Last"))), before[-1])
    assert len(short) < MAX_TASK_CHARACTERS / 2, "summaries do not fill the whole task"
