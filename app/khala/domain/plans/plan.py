"""A plan and its steps, as they are now. All of it follows from the plan's events: see `khala.domain.plans.fold`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

PlanMode: TypeAlias = Literal["all", "step", "autopilot"]
"""How a plan goes on after a step.

`all` executes every step and stops at the first failure. `step` pauses after each step until a person approves the
result. `autopilot` retries, skips and changes agents by itself.
"""
PlanStatus: TypeAlias = Literal["idle", "running", "pausing", "paused", "stopping", "stopped"]
StepStatus: TypeAlias = Literal["open", "running", "completed", "failed", "skipped", "cancelled"]
PauseReason: TypeAlias = Literal["requested", "review", "step_failed", "no_progress", "all_limited", "budget"]
PlanEnd: TypeAlias = Literal["completed", "max_iterations", "no_tasks", "error", "interrupted"]
"""Why a plan stopped. `no_tasks`: steps are left, and none of them can run. `interrupted`: a person stopped it."""
FailureStrategy: TypeAlias = Literal["retry", "skip", "abort"]

MAX_STEPS = 1_000
MAX_PARALLEL = 8
MAX_AGENTS = 10
MAX_ITERATIONS = 10_000
MAX_INTERRUPTIONS = 3
"""Times in a row that a step may lose its executor. Then it fails, because it may be what ends the executor."""


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The most that a plan may spend. None: no limit."""

    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None


class PlanConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The rules of a plan. `agents` has the primary agent first, then its fallbacks in order.

    `no_progress`: attempts in a row that may end without completing their step. `rate_limit_retries`: attempts of a
    step with the same agent after a rate limit, before the next agent is tried.
    """

    agents: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_AGENTS)]
    strategy: FailureStrategy = "retry"
    max_retries: int = 2
    retry_base_ms: int = 2_000
    rate_limit_retries: int = 3
    step_delay_ms: int = 500
    step_timeout_seconds: int = 3_600
    parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL)] = 1
    no_progress: int = 3
    recover_primary: bool = True
    budget: PlanBudget = PlanBudget()


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A step as it was planned. Steps with a lower `priority` run first. `agent` replaces the plan's agent."""

    id: str
    title: str
    instructions: str = ""
    acceptance: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    priority: int = 0
    phase: str | None = None
    agent: str | None = None


class PlanStep(msgspec.Struct, kw_only=True):
    """A step and its progress.

    `attempts` counts all attempts, and numbers them from 1. `failures`, `rate_limits` and `interruptions` count those
    that ended so since the step was last opened by a person; rate limits also start again with another agent. An open
    step starts no earlier than `not_before`. `error` is that of the last attempt.
    """

    planned: PlannedStep
    status: StepStatus = "open"
    attempts: int = 0
    failures: int = 0
    rate_limits: int = 0
    interruptions: int = 0
    agent: str | None = None
    started_at: datetime | None = None
    not_before: datetime | None = None
    summary: str | None = None
    error: str | None = None
    by_person: bool = False
    """Whether a person skipped the step. Then the steps that depend on it may run."""

    @property
    def satisfied(self) -> bool:
        """Whether the steps that depend on this one may run."""
        return self.status == "completed" or (self.status == "skipped" and self.by_person)

    @property
    def ended(self) -> bool:
        """Whether no attempt follows unless a person asks for one."""
        return self.status not in ("open", "running")


class Spent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The cost of attempts."""

    usd: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(usd=self.usd + other.usd, tokens=self.tokens + other.tokens, seconds=self.seconds + other.seconds)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The steps by status. `blocked` ones are open, and depend on a step that ended without completing."""

    open: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0
    blocked: int = 0


class Plan(msgspec.Struct, kw_only=True):
    """A plan as of its last event. Only the fold changes it.

    `agent` executes the next steps; `agent_reason` says why it is not the primary one. `limited_agents` reached a rate
    limit or were unavailable since the plan was last resumed. `iteration` counts the attempts of all steps, and
    `fruitless` those in a row that ended without completing their step, and without an error. `last_ended_at` is the
    end of the last attempt.
    """

    config: PlanConfig
    mode: PlanMode
    max_iterations: int
    budget: PlanBudget = PlanBudget()
    status: PlanStatus = "idle"
    pause_reason: PauseReason | None = None
    end: PlanEnd | None = None
    steps: dict[str, PlanStep] = {}
    agent: str = ""
    agent_reason: str | None = None
    chosen_by_person: bool = False
    limited_agents: set[str] = set()
    iteration: int = 0
    probed_at: int = 0
    """The iteration after which the primary agent was last probed."""
    fruitless: int = 0
    spent: Spent = Spent()
    last_ended_at: datetime | None = None

    @property
    def running_steps(self) -> Sequence[str]:
        """The ids of the steps under way."""
        return [step_id for step_id, step in self.steps.items() if step.status == "running"]
