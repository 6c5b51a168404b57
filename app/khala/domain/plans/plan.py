"""A plan and its steps, as they are now. All of it follows from the plan's events: see `khala.domain.plans.fold`."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Meta

from khala.domain.chat import MAX_AGENT_NAME_CHARACTERS

PlanMode: TypeAlias = Literal["all", "step", "autopilot"]
"""How a plan goes on after a step.

`all` executes every step and stops at the first failure. `step` pauses after each step until a person approves the
result. `autopilot` retries, skips and changes agents by itself.
"""
PlanStatus: TypeAlias = Literal["idle", "running", "pausing", "paused", "stopping", "stopped"]
StepStatus: TypeAlias = Literal["open", "running", "completed", "failed", "skipped", "cancelled"]
PauseReason: TypeAlias = Literal["requested", "review", "step_failed", "no_progress", "all_limited", "budget", "access"]
"""Why a plan paused. `access`: the person who started it may no longer write in its thread."""
PlanEnd: TypeAlias = Literal["completed", "max_iterations", "no_tasks", "error", "interrupted"]
"""Why a plan stopped. `no_tasks`: steps are left, and none of them can run. `interrupted`: a person stopped it."""
FailureStrategy: TypeAlias = Literal["retry", "skip", "abort"]

MAX_STEPS = 1_000
MAX_PARALLEL = 8
MAX_AGENTS = 10
MAX_ITERATIONS = 10_000
MAX_INTERRUPTIONS = 3
"""Times in a row that a step may lose its executor. Then it fails, because it may be what ends the executor."""
MIN_USD, MAX_USD = Decimal("0.0001"), 1_000_000
"""The bounds of a plan's budget."""
MAX_TITLE_CHARACTERS = 200
MAX_GOAL_CHARACTERS = 20_000
MAX_INSTRUCTIONS_CHARACTERS = 20_000
MAX_CRITERIA = 50
MAX_CRITERION_CHARACTERS = 1_000
MAX_SUMMARY_CHARACTERS = 2_000
MAX_ERROR_CHARACTERS = 2_000

StepId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
AgentName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_AGENT_NAME_CHARACTERS)]
Title: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARACTERS)]
Criterion: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_CRITERION_CHARACTERS)]


class PlanBudget(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The most that a plan may spend. None: no limit. `usd` is a decimal string on the wire."""

    usd: Decimal | None = None
    tokens: Annotated[int, Meta(gt=0, le=10**12)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=10**9)] | None = None

    def __post_init__(self) -> None:
        if self.usd is not None and not (self.usd.is_finite() and MIN_USD <= self.usd <= MAX_USD):
            raise ValueError(f"usd must be between {MIN_USD} and {MAX_USD:,}.")


class PlanGit(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Commits the work of each completed step that a command agent does in a Git checkout.

    A step fails if the checkout has changes that are not committed, unless `allow_dirty`.
    """

    allow_dirty: bool = False


class PlanConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The rules of a plan. `agents` has the primary agent first, then its fallbacks in order.

    `no_progress`: attempts in a row that may end without completing their step. `rate_limit_retries`: attempts of a
    step with the same agent after a rate limit, before the next agent is tried. `git` commits the work of steps.
    """

    agents: Annotated[tuple[AgentName, ...], Meta(min_length=1, max_length=MAX_AGENTS)]
    strategy: FailureStrategy = "retry"
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 2
    retry_base_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 2_000
    rate_limit_retries: Annotated[int, Meta(ge=0, le=100)] = 3
    step_delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 500
    step_timeout_seconds: Annotated[int, Meta(ge=1, le=7 * 86_400)] = 3_600
    parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL)] = 1
    no_progress: Annotated[int, Meta(ge=1, le=1_000)] = 3
    recover_primary: bool = True
    budget: PlanBudget = PlanBudget()
    git: PlanGit | None = None


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A step as it was planned. Steps with a lower `priority` run first. `agent` replaces the plan's agent."""

    id: StepId
    title: Title
    instructions: Annotated[str, Meta(max_length=MAX_INSTRUCTIONS_CHARACTERS)] = ""
    acceptance: Annotated[tuple[Criterion, ...], Meta(max_length=MAX_CRITERIA)] = ()
    depends_on: Annotated[tuple[StepId, ...], Meta(max_length=MAX_STEPS)] = ()
    priority: Annotated[int, Meta(ge=-1_000_000, le=1_000_000)] = 0
    phase: Annotated[str, Meta(max_length=MAX_TITLE_CHARACTERS)] | None = None
    agent: AgentName | None = None


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
    run_id: UUID | None = None
    """The run of the last attempt."""
    budget: PlanBudget = PlanBudget()
    """The share of the plan's budget that the last attempt had."""
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
    """The cost of attempts. `usd` is a decimal string on the wire."""

    usd: Decimal = Decimal(0)
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(usd=self.usd + other.usd, tokens=self.tokens + other.tokens, seconds=self.seconds + other.seconds)


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The steps by status, each once. `blocked` ones are not in `open`: they depend on a step that can't complete."""

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

    title: str
    goal: str = ""
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
    canceled_runs: dict[UUID, str] = {}
    """The runs of attempts that were given up before they had ended, with their steps. Their cost is not counted yet,
    and the plan neither pauses nor stops before it is."""
    last_ended_at: datetime | None = None
    needs: int = 0
    """The level of the drivers that may drive the plan."""

    @property
    def running_steps(self) -> Sequence[str]:
        """The ids of the steps under way."""
        return [step_id for step_id, step in self.steps.items() if step.status == "running"]

    @property
    def busy(self) -> bool:
        """Whether an attempt is under way, or has to end before the plan pauses or stops."""
        return bool(self.canceled_runs or self.running_steps)
