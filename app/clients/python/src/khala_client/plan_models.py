"""Plans: long work in steps, as a client creates and reads them."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from khala_client.wire import WireStruct


class PlannedStep(WireStruct, frozen=True, kw_only=True):
    """A step as it was planned. Steps with a lower `priority` run first. `agent` replaces the plan's agent."""

    id: str
    title: str
    instructions: str = ""
    acceptance: Sequence[str] = ()
    depends_on: Sequence[str] = ()
    priority: int = 0
    phase: str | None = None
    agent: str | None = None


class PlanBudget(WireStruct, frozen=True, kw_only=True):
    """The most that a plan may spend. None: no limit."""

    usd: Decimal | None = None
    tokens: int | None = None
    seconds: float | None = None


class PlanSpent(WireStruct, frozen=True, kw_only=True):
    """The cost of all attempts so far."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    seconds: float = 0.0


class PlanGit(WireStruct, frozen=True, kw_only=True):
    """Commits the work of steps that commands do in a Git checkout."""

    allow_dirty: bool = False


class PlanConfig(WireStruct, frozen=True, kw_only=True):
    """The rules of a plan. What is None has the server's default. `strategy` is retry, skip or abort."""

    agents: Sequence[str] | None = None
    strategy: str | None = None
    max_retries: int | None = None
    retry_base_ms: int | None = None
    rate_limit_retries: int | None = None
    step_delay_ms: int | None = None
    step_timeout_seconds: int | None = None
    parallel: int | None = None
    no_progress: int | None = None
    recover_primary: bool | None = None
    budget: PlanBudget | None = None
    git: PlanGit | None = None


class StepCounts(WireStruct, frozen=True, kw_only=True):
    """The number of a plan's steps in each state."""

    open: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0
    blocked: int = 0


class PlanEntry(WireStruct, frozen=True, kw_only=True):
    """A plan without its steps. `mode` is all, step or autopilot.

    `status` is idle, running, pausing, paused, stopping or stopped, and `reason` says why it pauses or has stopped.
    `event_seq` is the number of its last event.
    """

    id: UUID
    thread_id: UUID
    title: str
    mode: str
    status: str
    reason: str | None = None
    agent: str
    agent_reason: str | None = None
    iteration: int = 0
    max_iterations: int = 0
    counts: StepCounts = StepCounts()
    spent: PlanSpent = PlanSpent()
    budget: PlanBudget = PlanBudget()
    event_seq: int
    revision: int
    edited_revision: int = 0
    created_at: datetime
    updated_at: datetime


class PlanInfo(PlanEntry, frozen=True, kw_only=True):
    """A plan with its goal and its rules."""

    goal: str = ""
    config: PlanConfig = PlanConfig()


class StepProgress(WireStruct, frozen=True, kw_only=True):
    """The progress of a step. `status` is open, running, completed, failed, skipped or cancelled."""

    plan_id: UUID
    id: str
    status: str
    attempts: int = 0
    agent: str | None = None
    run_id: UUID | None = None
    started_at: datetime | None = None
    not_before: datetime | None = None
    summary: str | None = None
    error: str | None = None


class StepInfo(StepProgress, frozen=True, kw_only=True):
    """A step as it was planned, and its progress. `blocked`: it cannot run, because of another step."""

    planned: PlannedStep
    blocked: bool = False


class PlanEvent(WireStruct, frozen=True, kw_only=True):
    """An event of a plan, numbered by `seq`. `data` has the fields of its type."""

    plan_id: UUID
    seq: int
    type: str
    step_id: str | None = None
    at: datetime
    data: dict[str, Any]


class PlanEventPage(WireStruct, frozen=True, kw_only=True):
    """Events of a plan, in order."""

    items: tuple[PlanEvent, ...]
    next_after: int = 0
    has_more: bool = False
