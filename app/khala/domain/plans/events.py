"""The events of a plan: append-only facts. A plan is the fold of its events.

Events that give up a run that has not ended have it as `canceled_run`. An `AttemptCharged` follows, with its cost.
"""

from datetime import datetime
from typing import TypeAlias
from uuid import UUID

import msgspec

from khala.domain.plans.plan import PauseReason, PlanBudget, PlanConfig, PlanEnd, PlanMode, PlannedStep, Spent


class EventStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    """An event, and the time at which it was decided."""

    at: datetime


class Created(EventStruct, frozen=True, kw_only=True, tag="created"):
    """The plan begins to exist. It is idle. `completed` has the ids of the steps that were done before.

    Only drivers of level `needs` or above drive the plan: see `khala.domain.program_level`.
    """

    title: str
    goal: str = ""
    config: PlanConfig
    mode: PlanMode
    max_iterations: int
    steps: tuple[PlannedStep, ...]
    completed: tuple[str, ...] = ()
    needs: int = 0


class Started(EventStruct, frozen=True, kw_only=True, tag="started"):
    """A person started the plan."""


class Pausing(EventStruct, frozen=True, kw_only=True, tag="pausing"):
    """No step starts any more. The plan is paused when those under way have ended."""

    reason: PauseReason


class Paused(EventStruct, frozen=True, kw_only=True, tag="paused"):
    """The plan is paused: nothing is under way, and nothing starts until the plan is resumed."""

    reason: PauseReason


class Resumed(EventStruct, frozen=True, kw_only=True, tag="resumed"):
    """The plan goes on. All agents may be tried again, and no step waits any longer."""


class Stopping(EventStruct, frozen=True, kw_only=True, tag="stopping"):
    """No step starts any more. The plan has stopped when the steps under way have been canceled."""

    reason: PlanEnd


class Stopped(EventStruct, frozen=True, kw_only=True, tag="stopped"):
    """The end: exactly one, as the last event."""

    reason: PlanEnd


class ModeChanged(EventStruct, frozen=True, kw_only=True, tag="mode_changed"):
    """A person changed the mode."""

    mode: PlanMode


class BudgetChanged(EventStruct, frozen=True, kw_only=True, tag="budget_changed"):
    """A person changed what the plan may spend."""

    budget: PlanBudget


class ConfigChanged(EventStruct, frozen=True, kw_only=True, tag="config_changed"):
    """A person changed the rules, and what the plan may spend. If the plan's agent is left out, the primary follows."""

    config: PlanConfig


class IterationsAdded(EventStruct, frozen=True, kw_only=True, tag="iterations_added"):
    """A person allowed more iterations."""

    count: int


class IterationsRemoved(EventStruct, frozen=True, kw_only=True, tag="iterations_removed"):
    """A person allowed fewer iterations."""

    count: int


class StepStarted(EventStruct, frozen=True, kw_only=True, tag="step_started"):
    """An attempt of a step begins, as the run `run_id`. Attempts of a step are numbered from 1.

    `budget` is its share of the plan's, which is reserved until the attempt ends.
    """

    step_id: str
    attempt: int
    agent: str
    run_id: UUID | None = None
    budget: PlanBudget = PlanBudget()


class AttemptEvent(EventStruct, frozen=True, kw_only=True):
    """An attempt ends."""

    step_id: str
    attempt: int
    spent: Spent = Spent()


class StepCompleted(AttemptEvent, frozen=True, kw_only=True, tag="step_completed"):
    """The agent completed the step."""

    summary: str


class StepFailed(AttemptEvent, frozen=True, kw_only=True, tag="step_failed"):
    """An attempt failed, and the step is not tried again. `code` and `cause` say why, if that is known."""

    error: str
    code: str | None = None
    cause: str | None = None
    canceled_run: UUID | None = None


class StepRetrying(AttemptEvent, frozen=True, kw_only=True, tag="step_retrying"):
    """An attempt failed. The next one starts no earlier than `not_before`."""

    error: str
    code: str | None = None
    cause: str | None = None
    not_before: datetime
    canceled_run: UUID | None = None


class StepUnfinished(AttemptEvent, frozen=True, kw_only=True, tag="step_unfinished"):
    """An attempt ended without an error, and without completing the step. The step is open again."""


class AgentRateLimited(AttemptEvent, frozen=True, kw_only=True, tag="rate_limited"):
    """The agent reached a rate limit. The step is open again, and starts no earlier than `not_before`."""

    agent: str
    not_before: datetime


class AgentUnavailable(AttemptEvent, frozen=True, kw_only=True, tag="agent_unavailable"):
    """The agent could not be started. The step is open again."""

    agent: str
    error: str
    code: str | None = None
    cause: str | None = None


class AttemptCharged(EventStruct, frozen=True, kw_only=True, tag="attempt_charged"):
    """The cost of an attempt that was canceled or lost. Its run has ended, and is not a `canceled_run` any more."""

    step_id: str
    spent: Spent
    run_id: UUID | None = None


class StepReopened(EventStruct, frozen=True, kw_only=True, tag="step_reopened"):
    """A step is open again.

    `interrupted`: its executor was lost, or the plan was paused or stopped at once. Otherwise a person asked for it,
    and its counts of failures start again.
    """

    step_id: str
    interrupted: bool = False
    lost: bool = False
    """Whether the executor was lost. A step that loses too many fails."""
    canceled_run: UUID | None = None


class StepSkipped(EventStruct, frozen=True, kw_only=True, tag="step_skipped"):
    """A step is left out: by a person, or because it failed too often."""

    step_id: str
    by_person: bool = False
    by_requester: bool = False
    """By the person for whom the plan acts."""
    canceled_run: UUID | None = None


class StepCancelled(EventStruct, frozen=True, kw_only=True, tag="step_cancelled"):
    """A person canceled a step. What depends on it does not run. `by_requester`: as in `StepSkipped`."""

    step_id: str
    by_requester: bool = False
    canceled_run: UUID | None = None


class AgentSwitched(EventStruct, frozen=True, kw_only=True, tag="agent_switched"):
    """Another agent executes the steps that start from now on."""

    agent: str
    reason: str
    by_person: bool = False


class AgentLimited(EventStruct, frozen=True, kw_only=True, tag="agent_limited"):
    """An agent is not tried again until the plan is resumed, or until it is probed."""

    agent: str


class RecoveryAttempted(EventStruct, frozen=True, kw_only=True, tag="recovery_attempted"):
    """The primary agent was probed between two steps."""

    agent: str
    available: bool


class AllLimited(EventStruct, frozen=True, kw_only=True, tag="all_limited"):
    """No agent is left to try. The plan pauses."""


class NoProgress(EventStruct, frozen=True, kw_only=True, tag="no_progress"):
    """Too many attempts in a row ended without completing their step. The plan pauses."""

    attempts: int


class Edited(EventStruct, frozen=True, kw_only=True, tag="edited"):
    """A person changed the steps, the title or the goal.

    `changed` has whole steps, and `order` the ids of all steps. `by_requester`: as in `StepSkipped`.
    """

    title: str | None = None
    goal: str | None = None
    added: tuple[PlannedStep, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[PlannedStep, ...] = ()
    order: tuple[str, ...] = ()
    by_requester: bool = False


PlanEvent: TypeAlias = (
    Created
    | Started
    | Pausing
    | Paused
    | Resumed
    | Stopping
    | Stopped
    | ModeChanged
    | BudgetChanged
    | ConfigChanged
    | IterationsAdded
    | IterationsRemoved
    | StepStarted
    | StepCompleted
    | StepFailed
    | StepRetrying
    | StepUnfinished
    | AgentRateLimited
    | AgentUnavailable
    | AttemptCharged
    | StepReopened
    | StepSkipped
    | StepCancelled
    | AgentSwitched
    | AgentLimited
    | RecoveryAttempted
    | AllLimited
    | NoProgress
    | Edited
)
