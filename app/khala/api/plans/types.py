"""Request and response bodies of plans."""

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.api.types import ApiStruct
from khala.domain.chat import Run, RunOptions
from khala.domain.plans.config_changes import PlanConfigChanges
from khala.domain.plans.plan import (
    MAX_GOAL_CHARACTERS,
    MAX_ITERATIONS,
    MAX_STEPS,
    AgentName,
    PlanBudget,
    PlanMode,
    PlannedStep,
    Title,
)
from khala.domain.plans.views import PlanDetail, PlanEventEntry, StepDetail

Goal = Annotated[str, Meta(max_length=MAX_GOAL_CHARACTERS)]
StepName = Annotated[str, Meta(min_length=1, max_length=64)]
Steps = Annotated[Sequence[PlannedStep], Meta(max_length=MAX_STEPS)]
StepNames = Annotated[Sequence[StepName], Meta(max_length=MAX_STEPS)]
EventSeq = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class NewPlan(ApiStruct, frozen=True, kw_only=True):
    """A plan to create, which is idle. If the client generates `plan_id`, it can safely repeat the request.

    Without `config.agents`, the agent `default` executes the steps. Without `max_iterations`, each step can be retried
    as often as the rules allow.
    """

    plan_id: UUID | None = None
    title: Title
    goal: Goal = ""
    mode: PlanMode = "autopilot"
    max_iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    config: PlanConfigChanges = PlanConfigChanges()
    steps: Annotated[Sequence[PlannedStep], Meta(min_length=1, max_length=MAX_STEPS)]


class ImportedPlan(ApiStruct, frozen=True, kw_only=True):
    """A document of which a plan is created: a Markdown checklist, or the `prd.json` of ralph-tui.

    `title` replaces that of the document. The steps that the document says are done are not executed.
    """

    plan_id: UUID | None = None
    format: Literal["markdown", "prd"]
    document: str
    title: Title | None = None
    mode: PlanMode = "autopilot"
    max_iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    config: PlanConfigChanges = PlanConfigChanges()


class NewPlanDraft(ApiStruct, frozen=True, kw_only=True):
    """A goal of which a model makes a plan. If the client generates `plan_id`, it can safely repeat the request.

    `title`, `mode`, `max_iterations` and the rules in `config` replace what the model chooses. `options` are those of
    the model's run: its agent, its model, its budget and so on.
    """

    plan_id: UUID | None = None
    goal: Annotated[str, Meta(min_length=1, max_length=MAX_GOAL_CHARACTERS)]
    title: Title | None = None
    mode: PlanMode | None = None
    max_iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] | None = None
    config: PlanConfigChanges = PlanConfigChanges()
    options: RunOptions = msgspec.field(default_factory=RunOptions)


class PlanWithSteps(PlanDetail, frozen=True, kw_only=True):
    """A plan with its goal, its rules, and its steps in order."""

    steps: Sequence[StepDetail]


class PlanDraftState(ApiStruct, frozen=True, kw_only=True):
    """The run that makes a plan, and the plan when it is made. A run that has ended without a plan makes none."""

    plan_id: UUID
    run: Run
    plan: PlanWithSteps | None = None


class PlanEventPage(ApiStruct, frozen=True, kw_only=True):
    """Events of a plan, in order. Read on with `after=nextAfter` while there are more."""

    items: Sequence[PlanEventEntry]
    next_after: int
    has_more: bool


class PauseRequest(ApiStruct, frozen=True, kw_only=True):
    """How to pause. With `force`, the steps under way are canceled, and opened again."""

    force: bool = False


class PlanDetailChanges(ApiStruct, frozen=True, kw_only=True):
    """Changes of a plan. Fields that are absent stay as they are. `agent` is one of the plan's agents.

    `budget` replaces the whole budget; `config` has the rules to change.
    """

    title: Title | msgspec.UnsetType = msgspec.UNSET
    goal: Goal | msgspec.UnsetType = msgspec.UNSET
    mode: PlanMode | msgspec.UnsetType = msgspec.UNSET
    budget: PlanBudget | msgspec.UnsetType = msgspec.UNSET
    agent: AgentName | msgspec.UnsetType = msgspec.UNSET
    config: PlanConfigChanges | msgspec.UnsetType = msgspec.UNSET


class IterationsChange(ApiStruct, frozen=True, kw_only=True):
    """How many more iterations a plan may make, or fewer if `by` is negative.

    With `if_max_iterations`, the request can safely be repeated: it is the number to which `by` is added.
    """

    by: Annotated[int, Meta(ge=-MAX_ITERATIONS, le=MAX_ITERATIONS)]
    if_max_iterations: Annotated[int, Meta(ge=1, le=MAX_ITERATIONS)] | None = None


class PlanEdit(ApiStruct, frozen=True, kw_only=True):
    """Changes of the steps. `change` has whole steps, which replace those with the same ids.

    `order` has the ids of all steps after the edit. With `if_event_seq`, the edit fails if somebody has edited the plan
    after that event.
    """

    add: Steps = ()
    remove: StepNames = ()
    change: Steps = ()
    order: StepNames = ()
    if_event_seq: EventSeq | None = None
