"""Attempts: how an agent's work on a step ends, and the events that follow."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TypeAlias, TypedDict, assert_never
from uuid import UUID

import msgspec

from khala.domain.backoff import Backoff
from khala.domain.plans.events import (
    AgentLimited,
    AgentRateLimited,
    AgentSwitched,
    AgentUnavailable,
    AllLimited,
    AttemptCharged,
    NoProgress,
    Pausing,
    PlanEvent,
    StepCompleted,
    StepFailed,
    StepReopened,
    StepRetrying,
    StepSkipped,
    StepUnfinished,
    Stopping,
)
from khala.domain.plans.plan import MAX_INTERRUPTIONS, PauseReason, Plan, PlanEnd, PlanStep, Spent

MIN_RETRY_AFTER_SECONDS = 1
MAX_RETRY_AFTER_SECONDS = 3_599
RATE_LIMIT_SECONDS = (5, 15, 45)
"""The waits after rate limits in a row that tell no time."""
UNFINISHED = "The agent ended without completing the step."


class AttemptCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """The agent completed the step."""

    summary: str


class AttemptFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ended with an error. `code` and `cause` are those of the run's failure."""

    error: str
    code: str | None = None
    cause: str | None = None


class AttemptExpired(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt takes too long. Its run has not ended, and is to be canceled."""

    error: str


class AttemptConflicted(msgspec.Struct, frozen=True, kw_only=True):
    """The agent completed the step, and its changes conflict with those of others. A person has to decide.

    `code` is that of the run's failure.
    """

    error: str
    code: str | None = None


class AttemptUnfinished(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ended without an error, and the agent did not say that the step is complete."""


class AttemptLimited(msgspec.Struct, frozen=True, kw_only=True):
    """The agent reached a rate limit. `retry_after` is in seconds."""

    retry_after: float | None = None


class AttemptOverBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt reached its budget, or one of those that it shares."""


class AttemptUnavailable(msgspec.Struct, frozen=True, kw_only=True):
    """The agent could not be started. `code` and `cause` are those of the run's failure."""

    error: str
    code: str | None = None
    cause: str | None = None


class AttemptLost(msgspec.Struct, frozen=True, kw_only=True):
    """The executor of the attempt is gone."""


class AttemptCanceled(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt was canceled from outside the plan."""


Outcome: TypeAlias = (
    AttemptCompleted
    | AttemptFailed
    | AttemptExpired
    | AttemptConflicted
    | AttemptUnfinished
    | AttemptLimited
    | AttemptOverBudget
    | AttemptUnavailable
    | AttemptLost
    | AttemptCanceled
)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a step, as its driver sees it. `run_id` tells it from one of a new step with the same id."""

    step_id: str
    number: int
    run_id: UUID | None = None
    spent: Spent = Spent()


def runs_under_way(plan: Plan) -> dict[UUID, Attempt]:
    """The attempts whose ends the plan has to hear of, by their runs: those under way, and those that were given up."""
    attempts = {
        run_id: Attempt(step_id=step_id, number=0, run_id=run_id) for run_id, step_id in plan.canceled_runs.items()
    }
    for step_id in plan.running_steps:
        step = plan.steps[step_id]
        if step.run_id is not None:
            attempts[step.run_id] = Attempt(step_id=step_id, number=step.attempts, run_id=step.run_id)
    return attempts


def report(plan: Plan, attempt: Attempt, outcome: Outcome, now: datetime) -> list[PlanEvent]:
    """The events that follow from the end of an attempt. If it was given up, only its cost counts, and that once."""
    step = plan.steps.get(attempt.step_id)
    if step is None or step.status != "running" or (step.attempts, step.run_id) != (attempt.number, attempt.run_id):
        has_ended = not isinstance(outcome, AttemptExpired)
        return [_charged(attempt, now)] if has_ended and attempt.run_id in plan.canceled_runs else []
    return list(_Report(plan, step, attempt, now).events(outcome))


def _charged(attempt: Attempt, now: datetime) -> AttemptCharged:
    return AttemptCharged(at=now, step_id=attempt.step_id, spent=attempt.spent, run_id=attempt.run_id)


class _Report:
    """The events after one attempt."""

    def __init__(self, plan: Plan, step: PlanStep, attempt: Attempt, now: datetime) -> None:
        self._plan = plan
        self._step = step
        self._attempt = attempt
        self._now = now
        self._agent = step.agent or plan.agent

    def events(self, outcome: Outcome) -> Iterator[PlanEvent]:
        match outcome:
            case AttemptCompleted():
                yield from self._completed(outcome.summary)
            case AttemptFailed():
                yield from self._failed(outcome.error, code=outcome.code, cause=outcome.cause)
            case AttemptExpired():
                yield from self._failed(outcome.error, code="step_timeout", canceled_run=self._attempt.run_id)
            case AttemptConflicted():
                yield StepFailed(**self._ended(), error=outcome.error, code=outcome.code)
                if self._plan.mode == "step":
                    yield from self._pause("step_failed")
            case AttemptUnfinished():
                yield from self._unfinished()
            case AttemptLimited():
                yield from self._limited(outcome.retry_after)
            case AttemptOverBudget():
                yield StepUnfinished(**self._ended())
                yield from self._pause("budget")
            case AttemptUnavailable():
                yield self._unavailable(outcome)
                yield from self._next_agent("unavailable")
            case AttemptLost() if self._step.interruptions + 1 >= MAX_INTERRUPTIONS:
                yield from self._failed(
                    f"Its executor was lost {MAX_INTERRUPTIONS} times in a row.", code="interrupted"
                )
            case AttemptLost() | AttemptCanceled():
                if self._attempt.spent != Spent():
                    yield _charged(self._attempt, self._now)
                yield StepReopened(
                    at=self._now, step_id=self._attempt.step_id, interrupted=True, lost=isinstance(outcome, AttemptLost)
                )
            case _:
                assert_never(outcome)

    def _completed(self, summary: str) -> Iterator[PlanEvent]:
        yield StepCompleted(**self._ended(), summary=summary)
        if self._plan.mode == "step":
            yield from self._pause("review")

    def _unavailable(self, outcome: AttemptUnavailable) -> AgentUnavailable:
        return AgentUnavailable(
            **self._ended(), agent=self._agent, error=outcome.error, code=outcome.code, cause=outcome.cause
        )

    def _failed(
        self, error: str, *, code: str | None = None, cause: str | None = None, canceled_run: UUID | None = None
    ) -> Iterator[PlanEvent]:
        plan, step = self._plan, self._step
        if plan.mode == "autopilot" and plan.config.strategy == "retry" and step.failures < plan.config.max_retries:
            wait = Backoff(first_seconds=plan.config.retry_base_ms / 1000).delay(step.failures + 1)
            not_before = self._later(wait)
            yield StepRetrying(
                **self._ended(), error=error, code=code, cause=cause, not_before=not_before, canceled_run=canceled_run
            )
            return
        yield StepFailed(**self._ended(), error=error, code=code, cause=cause, canceled_run=canceled_run)
        if plan.mode == "step":
            yield from self._pause("step_failed")
        elif plan.mode == "all" or plan.config.strategy == "abort":
            yield from self._stop("error")
        else:
            yield StepSkipped(at=self._now, step_id=self._attempt.step_id)

    def _unfinished(self) -> Iterator[PlanEvent]:
        if self._plan.mode != "autopilot":
            yield from self._failed(UNFINISHED, code="unfinished")
            return
        yield StepUnfinished(**self._ended())
        fruitless = self._plan.fruitless + 1
        if fruitless >= self._plan.config.no_progress:
            yield NoProgress(at=self._now, attempts=fruitless)
            yield from self._pause("no_progress")

    def _limited(self, retry_after: float | None) -> Iterator[PlanEvent]:
        is_last = self._step.rate_limits >= self._plan.config.rate_limit_retries
        wait = 0.0 if is_last else rate_limit_wait(self._step.rate_limits, retry_after)
        yield AgentRateLimited(**self._ended(), agent=self._agent, not_before=self._later(wait))
        if is_last:
            yield from self._next_agent("rate_limited")

    def _next_agent(self, reason: str) -> Iterator[PlanEvent]:
        """Leave this agent. If it is the plan's, the next one follows that was not left before."""
        plan = self._plan
        yield AgentLimited(at=self._now, agent=self._agent)
        limited = plan.limited_agents | {self._agent}
        if plan.agent not in limited:
            return
        following = next((agent for agent in plan.config.agents if agent not in limited), None)
        if following is not None:
            yield AgentSwitched(at=self._now, agent=following, reason=reason)
            return
        yield AllLimited(at=self._now)
        yield from self._pause("all_limited")

    def _pause(self, reason: PauseReason) -> Iterator[PlanEvent]:
        if self._plan.status == "running":
            yield Pausing(at=self._now, reason=reason)

    def _stop(self, reason: PlanEnd) -> Iterator[PlanEvent]:
        yield Stopping(at=self._now, reason=reason)
        yield from interrupt_steps(self._plan, self._now, but=self._attempt.step_id)

    def _later(self, seconds: float) -> datetime:
        return self._now + timedelta(seconds=seconds)

    def _ended(self) -> "_Ended":
        return _Ended(
            at=self._now,
            step_id=self._attempt.step_id,
            attempt=self._attempt.number,
            spent=self._attempt.spent,
        )


def interrupt_steps(plan: Plan, now: datetime, *, but: str | None = None) -> list[StepReopened]:
    """The events that open the steps under way again and give up their runs, but not this one."""
    return [
        StepReopened(at=now, step_id=step_id, interrupted=True, canceled_run=plan.steps[step_id].run_id)
        for step_id in plan.running_steps
        if step_id != but
    ]


class _Ended(TypedDict):
    """The fields of every event that ends an attempt."""

    at: datetime
    step_id: str
    attempt: int
    spent: Spent


def rate_limit_wait(rate_limits: int, retry_after: float | None) -> float:
    """Seconds before the next attempt after a rate limit. `rate_limits` counts those in a row before this one."""
    if retry_after is not None and MIN_RETRY_AFTER_SECONDS <= retry_after <= MAX_RETRY_AFTER_SECONDS:
        return retry_after
    return RATE_LIMIT_SECONDS[min(rate_limits, len(RATE_LIMIT_SECONDS) - 1)]
