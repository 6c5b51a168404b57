"""Plans on the wire: in the feed of their thread, and over REST."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from khala.domain.chat import WireStruct
from khala.domain.plans.plan import (
    Counts,
    PauseReason,
    Plan,
    PlanBudget,
    PlanConfig,
    PlanEnd,
    PlanMode,
    PlannedStep,
    PlanStatus,
    PlanStep,
    Spent,
    StepStatus,
)

MAX_FEED_STEPS = 50
MAX_FEED_EVENTS = 100
"""Changed steps and new events in one delta. If there are more, it has none of them: read them over REST."""
MAX_FEED_LIST_BYTES = 24 * 1024
"""Bytes of the changed steps, and of the new events, in one delta: with more, it has none of them either."""
MAX_FEED_TEXT_CHARACTERS = 300
"""Characters of a summary or an error in the feed."""
MAX_FEED_PLANS = 20
"""Plans in a snapshot, the newest ones."""


class PlanEntry(WireStruct, frozen=True, kw_only=True):
    """A plan without its steps.

    `reason`: why it pauses or has stopped. `agent` does the next steps; `agentReason` says why it is not the primary
    one. `iteration` counts the attempts of all steps. `eventSeq` is the number of the last event, and `editedRevision`
    the thread's revision of the last change of what the steps are.
    """

    id: UUID
    thread_id: UUID
    title: str
    mode: PlanMode
    status: PlanStatus
    reason: PauseReason | PlanEnd | None = None
    agent: str
    agent_reason: str | None = None
    iteration: int
    max_iterations: int
    counts: Counts
    spent: Spent
    budget: PlanBudget
    event_seq: int
    revision: int
    edited_revision: int
    created_at: datetime
    updated_at: datetime


class PlanDetail(PlanEntry, frozen=True, kw_only=True):
    """A plan with its goal and its rules."""

    goal: str
    config: PlanConfig


class StepProgress(WireStruct, frozen=True, kw_only=True):
    """The progress of a step, in the feed. `runId` is the run of the last attempt; texts are cut."""

    plan_id: UUID
    id: str
    status: StepStatus
    attempts: int
    agent: str | None = None
    run_id: UUID | None = None
    started_at: datetime | None = None
    not_before: datetime | None = None
    summary: str | None = None
    error: str | None = None


class StepDetail(StepProgress, frozen=True, kw_only=True):
    """A step as it was planned, and its progress with whole texts. `blocked`: it can't run, because of another step."""

    planned: PlannedStep
    blocked: bool = False


class PlanEventEntry(WireStruct, frozen=True, kw_only=True):
    """An event of a plan. `data` has the fields of the event; in the feed, without steps and long texts."""

    plan_id: UUID
    seq: int
    type: str
    step_id: str | None = None
    at: datetime
    data: dict[str, Any]


class PlanChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of the plans of a thread. `steps` and `events` are None where there are too many."""

    plans: Sequence[PlanEntry] = ()
    steps: Sequence[StepProgress] | None = ()
    events: Sequence[PlanEventEntry] | None = ()


def progress_of(plan_id: UUID, step_id: str, step: PlanStep, *, whole: bool = False) -> dict[str, Any]:
    """The fields of `StepProgress`. Texts are cut unless `whole`."""
    most = None if whole else MAX_FEED_TEXT_CHARACTERS
    return {
        "plan_id": plan_id,
        "id": step_id,
        "status": step.status,
        "attempts": step.attempts,
        "agent": step.agent,
        "run_id": step.run_id,
        "started_at": step.started_at,
        "not_before": step.not_before,
        "summary": None if step.summary is None else step.summary[:most],
        "error": None if step.error is None else step.error[:most],
    }


def entry_fields(plan: Plan, counts: Counts) -> dict[str, Any]:
    """The fields of `PlanEntry` that follow from the plan."""
    return {
        "title": plan.title,
        "mode": plan.mode,
        "status": plan.status,
        "reason": plan.pause_reason or plan.end,
        "agent": plan.agent,
        "agent_reason": plan.agent_reason,
        "iteration": plan.iteration,
        "max_iterations": plan.max_iterations,
        "counts": counts,
        "spent": plan.spent,
        "budget": plan.budget,
    }
