"""Documents of plans by example: checklists as people and tools write them, and the files of ralph-tui."""

from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.plans.documents.markdown_blocks import MAX_LINES
from khala.domain.plans.documents.markdown_reader import read_markdown
from khala.domain.plans.documents.markdown_writer import write_markdown
from khala.domain.plans.documents.plan_document import MAX_DOCUMENT_BYTES, PlanDocument, document_of
from khala.domain.plans.documents.prd_json import read_prd, write_prd
from khala.domain.plans.documents.task_text import TaskText, read_task_text
from khala.domain.plans.plan import Plan, PlanConfig, PlannedStep, PlanStep


def read(text: str) -> PlanDocument:
    return read_markdown(dedent(text))


def test_phases_ids_and_dependencies_of_a_list_of_tasks() -> None:
    document = read("""\
        # Tasks: Photo albums

        Albums that are sorted by date.

        ## Phase 1: Setup

        - [x] T001 Create the project
        - [ ] T002 [P] Install the linter (depends on T001)

        ## Phase 2: Core

        - [ ] T003 Add the model, depends on: T001, T002
        """)
    assert (document.title, document.goal) == ("Tasks: Photo albums", "Albums that are sorted by date.")
    assert document.completed == ("T001",)
    assert document.steps == (
        PlannedStep(id="T001", title="Create the project", phase="Phase 1: Setup"),
        PlannedStep(id="T002", title="[P] Install the linter", depends_on=("T001",), phase="Phase 1: Setup"),
        PlannedStep(id="T003", title="Add the model", depends_on=("T001", "T002"), phase="Phase 2: Core"),
    )


def test_nested_tasks_with_ids_are_steps_of_a_phase_and_others_are_criteria() -> None:
    document = read("""\
        - [ ] 1. Set up
          - [x] 1.1 Create the project
            - Use the template
          - [ ] 1.2 Add the linter
        - [ ] 2. Sign in (after: 1)
          - [ ] The form has two fields
          - [ ] A wrong password is refused
        """)
    assert [(step.id, step.phase, step.depends_on) for step in document.steps] == [
        ("1.1", "Set up", ()),
        ("1.2", "Set up", ()),
        ("2", None, ("1.1", "1.2")),
    ]
    assert document.steps[0].instructions == "- Use the template"
    assert document.steps[2].acceptance == ("The form has two fields", "A wrong password is refused")


def test_labels_instructions_and_criteria_below_a_task() -> None:
    document = read("""\
        1. [ ] **US-001**: Add the form
           to the page

           As a user I sign in.

           ```py
           - [ ] this is code
           ```

           **Acceptance criteria:**

           - It has two fields,
             and a button
           - It is `fast`

           - **Depends on:** US-002 and #3
           - Priority: P2
           - Agent: command:claude
        2. [ ] **US-002** Add the table
        3. [ ] Write it down
        """)
    assert document.steps[0] == PlannedStep(
        id="US-001",
        title="Add the form to the page",
        instructions="As a user I sign in.\n\n```py\n- [ ] this is code\n```",
        acceptance=("It has two fields, and a button", "It is `fast`"),
        depends_on=("US-002", "3"),
        priority=2,
        agent="command:claude",
    )
    assert [step.id for step in document.steps] == ["US-001", "US-002", "3"]


def test_a_numbered_list_without_boxes_is_a_plan_too() -> None:
    document = read("""\
        Make tea

        1. Boil water
        2. Pour it (after: 1)
        """)
    assert document.goal == "Make tea"
    assert [(step.id, step.title, step.depends_on) for step in document.steps] == [
        ("1", "Boil water", ()),
        ("2", "Pour it", ("1",)),
    ]


def test_boxes_in_code_comments_and_front_matter_are_no_steps() -> None:
    document = read("""\
        ---
        title: "- [ ] no"
        ---
        <!--
        - [ ] no
        -->

        ```
        - [ ] no
        ```

        - [ ] yes
        """)
    assert [step.title for step in document.steps] == ["yes"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("UTF-8 is used", (None, "UTF-8 is used", ())),
        ("3 retries at most", (None, "3 retries at most", ())),
        ("Rest (after lunch)", (None, "Rest (after lunch)", ())),
        ("[P] Go", (None, "[P] Go", ())),
        ("1.2.3) Go", ("1.2.3", "Go", ())),
        ("[T001] Go [deps: T002,T003]", ("T001", "Go", ("T002", "T003"))),
        ("`T001` Go — depends on: `T002`", ("T001", "Go", ("T002",))),
        ("US-2.1: Go (after: step 1)", ("US-2.1", "Go", ("1",))),
        ("T001", (None, "T001", ())),
    ],
)
def test_ids_and_dependencies_in_the_text_of_a_task(text: str, parts: tuple[str | None, str, tuple[str, ...]]) -> None:
    assert read_task_text(text) == TaskText(*parts)


def test_a_checklist_is_written_for_people() -> None:
    document = PlanDocument(
        title="Albums",
        goal="Sorted by date.",
        steps=(
            PlannedStep(id="US-001", title="Add the table"),
            PlannedStep(id="US-002", title="Add the model", depends_on=("US-001",), acceptance=("It is typed",)),
            PlannedStep(id="docs", title="Write it down", instructions="- Short\n- Clear", phase="Docs", priority=2),
        ),
        completed=("US-001",),
    )
    text = dedent("""\
        # Albums

        Sorted by date.

        - [x] US-001: Add the table

        - [ ] US-002: Add the model

          - Depends on: US-001
          - Acceptance:
            - [ ] It is typed

        ## Docs

        - [ ] Write it down

          > - Short
          > - Clear

          - Id: docs
          - Priority: 2
        """)
    assert write_markdown(document) == text


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("Nothing to do", "", "no steps"),
        ("# A\n\n- [ ] a\n- [ ]\n", "line 4", "needs a title"),
        ("- [ ] a\n\n- [ ] b (after: x)", "line 3", "depends on 'x', which does not exist"),
        (
            "- [ ] pack: a\n- [ ] b (after: pack)",
            "line 2",
            "There are: '1', '2'. Write an item '- Id: pack' below",
        ),
        ("- [ ] T001 a (after: T003)\n- [ ] T002 b (after: T001)\n- [ ] T003 c (after: T002)", "line ", "T001 → "),
        ("- [ ] T001 a\n- [ ] T001 b", "line 2", "two steps with the id 'T001'"),
        ("# " + "a" * 201 + "\n\n- [ ] a", "line 1", "title may have at most 200 characters, not 201"),
        ("- [ ] " + "a" * 100_000, "line 1", "The text of the task has 100,000 characters"),
        ("- [ ] a\n  - Id: no spaces", "line 1", "The id of a step"),
        ("- [ ] a\n\n  " + "b" * 20_001, "line 1", "length <= 20000"),
        ("- [ ] a\n" + "  - [ ] b\n" * 51, "line 1", "length <= 50"),
        ("- [ ] a\n" * 1_001, "line 1001", "at most 1,000 steps"),
        ("a" * 20_001 + "\n\n- [ ] a", "line 1", "goal may have at most 20,000 characters"),
        ("\n" * MAX_LINES, "", "lines"),
        ("\ud800", "", "not text in Unicode"),
    ],
)
def test_an_error_names_the_line(text: str, path: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_markdown(text)
    assert message in error.value.message
    assert error.value.path.removesuffix("1" if path == "line " else "") == path


STORY = {"id": "US-001", "title": "Add the table", "passes": False}
PRD = {
    "project": "Albums",
    "branchName": "ralph/albums",
    "description": "Sorted by date.",
    "userStories": [
        STORY | {"passes": True, "priority": 1, "acceptanceCriteria": ["It is typed"], "notes": "", "labels": ["db"]},
        STORY | {"id": "US-002", "description": "As a user …", "dependsOn": ["US-001"]},
    ],
    "metadata": {"sourcePrd": "./prd.md"},
}


def test_a_prd_is_read_and_written_over_itself() -> None:
    document = read_prd(msgspec.json.encode(PRD))
    assert (document.title, document.goal, document.completed) == ("Albums", "Sorted by date.", ("US-001",))
    assert document.steps == (
        PlannedStep(id="US-001", title="Add the table", acceptance=("It is typed",), priority=1),
        PlannedStep(id="US-002", title="Add the table", instructions="As a user …", depends_on=("US-001",), priority=3),
    )
    written = msgspec.json.decode(write_prd(document, over=msgspec.json.encode(PRD)))
    assert written["name"] == "Albums"
    assert "project" not in written
    assert (written["branchName"], written["metadata"]) == (PRD["branchName"], PRD["metadata"])
    assert written["userStories"][0] == PRD["userStories"][0] | {"description": "", "dependsOn": []}  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "path", "message"),
    [
        ("[]", "", "Expected `object`"),
        ("{", "", "not JSON"),
        ('{"tasks": []}', "", "userStories"),
        ({"userStories": []}, "", "no steps"),
        ({"userStories": [STORY, STORY]}, "userStories[1]", "two steps"),
        ({"userStories": [{"id": "a", "title": "a"}]}, "userStories[0]", "passes"),
        (
            {"userStories": [STORY | {"acceptanceCriteria": [1]}]},
            "userStories[0].acceptanceCriteria[0]",
            "Expected `str`",
        ),
        ({"userStories": [STORY | {"priority": "high"}]}, "userStories[0].priority", "Expected `int"),
        ({"userStories": [STORY | {"priority": 10**7}]}, "userStories[0].priority", "Expected `int` <= 1000000"),
        ({"userStories": [STORY | {"id": "a b"}]}, "userStories[0].id", "The id of a step"),
        ({"userStories": [STORY | {"title": "a" * 201}]}, "userStories[0].title", "length <= 200"),
        (
            {"userStories": [STORY | {"acceptanceCriteria": ["a" * 1_001]}]},
            "userStories[0].acceptanceCriteria[0]",
            "<= 1000",
        ),
        ({"userStories": [STORY | {"dependsOn": ["US-001"] * 1_001}]}, "userStories[0].dependsOn", "length <= 1000"),
        ({"userStories": [STORY] * 1_001}, "userStories", "at most 1,000 steps"),
        ({"userStories": [STORY], "name": "a" * 201}, "name", "not 201"),
    ],
)
def test_an_error_names_the_path(content: object, path: str, message: str) -> None:
    encoded = content.encode() if isinstance(content, str) else msgspec.json.encode(content)
    with pytest.raises(InvalidInput) as error:
        read_prd(encoded)
    assert message in error.value.message
    assert error.value.path == path


def test_a_task_that_is_too_long_for_a_title_begins_the_instructions() -> None:
    text = "word " * 60
    (step,) = read_markdown(f"- [ ] T001 {text}\n\n  More").steps
    assert (len(step.title), step.title[-1]) == (200, "…")
    assert step.instructions == f"{text.strip()}\n\nMore"


def test_a_document_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(PayloadTooLarge):
        read_markdown("a" * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(PayloadTooLarge):
        read_prd(b" " * (MAX_DOCUMENT_BYTES + 1))


def test_the_document_of_a_plan_says_which_steps_are_completed() -> None:
    steps = [PlannedStep(id=name, title=name) for name in ("a", "b", "c")]
    plan = Plan(title="Title", goal="Goal", config=PlanConfig(agents=("one",)), mode="all", max_iterations=1)
    plan.steps = {step.id: PlanStep(planned=step) for step in steps}
    plan.steps["b"].status, plan.steps["c"].status = "completed", "skipped"
    assert document_of(plan) == PlanDocument(title="Title", goal="Goal", steps=tuple(steps), completed=("b",))


def test_the_example_of_the_documentation_is_a_plan() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plan-documents.md").read_text()
    document = read_markdown(page.partition("```markdown\n")[2].partition("\n```")[0])
    assert document == PlanDocument(
        title="Photo albums",
        goal="Albums that are sorted by date, for one family.",
        steps=(
            PlannedStep(id="US-001", title="Add the table", phase="Phase 1: Storage"),
            PlannedStep(
                id="US-002",
                title="Add the model",
                instructions="As a developer I read and write albums by a model.",
                acceptance=("The model is typed", "The tests pass"),
                depends_on=("US-001",),
                priority=2,
                phase="Phase 1: Storage",
                agent="reviewer",
            ),
        ),
        completed=("US-001",),
    )
