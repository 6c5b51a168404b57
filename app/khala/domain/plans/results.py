"""Results: how the run of an attempt ended, for its plan. Pure."""

import re
from decimal import Decimal

from khala.domain.chat import RunStatus
from khala.domain.fold import Content, TextBlock, ToolBlock, text_of
from khala.domain.parts import Finish, RunFailure
from khala.domain.plans.attempts import (
    AttemptCanceled,
    AttemptCompleted,
    AttemptConflicted,
    AttemptFailed,
    AttemptLimited,
    AttemptLost,
    AttemptOverBudget,
    AttemptUnavailable,
    AttemptUnfinished,
    Outcome,
)
from khala.domain.plans.completion import COMPLETION_MARKER, is_marked_complete
from khala.domain.plans.plan import MAX_ERROR_CHARACTERS, MAX_SUMMARY_CHARACTERS, Spent

COMPLETE_STEP = "complete_step"
"""The tool by which an agent says that its step is complete."""
LIMITS = frozenset({"rate_limited", "overloaded"})
"""The codes of failures that count as a rate limit."""
UNAVAILABLE = frozenset({"unavailable", "refused", "agent_not_found"})
"""The codes of failures after which the next agent is tried at once."""
CONFLICT = "conflict"
"""The code of a failure to merge a step's work."""
_MARKER = re.compile(re.escape(COMPLETION_MARKER), re.IGNORECASE)


def outcome_of(status: RunStatus, content: Content, finish: Finish | None, failure: RunFailure | None) -> Outcome:
    """The outcome of an attempt, by its run, which has ended.

    A run that failed is a failure whatever its text says. One that did not fail completes the step if the agent called
    `complete_step`, or wrote the marker. To end without an error is not enough.
    """
    if status == "canceled":
        return AttemptCanceled()
    if status == "error":
        return _failure(failure or RunFailure(code="internal", message="The run failed."))
    if finish is not None and finish.reason == "budget":
        return AttemptOverBudget()
    summary = _summary(content)
    return AttemptUnfinished() if summary is None else AttemptCompleted(summary=summary)


def spent_of(finish: Finish | None) -> Spent:
    """The cost of a run."""
    if finish is None:
        return Spent()
    return Spent(
        usd=Decimal(finish.cost_usd or 0),
        tokens=finish.usage.input_tokens + finish.usage.output_tokens,
        seconds=(finish.total_ms or 0) / 1000,
    )


def _failure(failure: RunFailure) -> Outcome:
    if failure.code in LIMITS:
        return AttemptLimited(retry_after=failure.retry_after)
    error = failure.message[:MAX_ERROR_CHARACTERS]
    if failure.code in UNAVAILABLE:
        return AttemptUnavailable(error=error, code=failure.code, cause=failure.cause)
    if failure.code == "interrupted":
        return AttemptLost()
    if failure.code == CONFLICT:
        return AttemptConflicted(error=error, code=failure.code)
    if failure.code == "budget":
        return AttemptOverBudget()
    return AttemptFailed(error=error, code=failure.code, cause=failure.cause)


def _summary(content: Content) -> str | None:
    """The summary of a completed step; None if the agent did not say that it is complete."""
    for block in reversed(content):
        if isinstance(block, ToolBlock) and block.tool == COMPLETE_STEP and block.state == "completed":
            return str((block.args or {}).get("summary", ""))[:MAX_SUMMARY_CHARACTERS]
    last = next((block.text for block in reversed(content) if isinstance(block, TextBlock) and block.text.strip()), "")
    return marked_summary(text_of(content), last)


def marked_summary(text: str, last: str) -> str | None:
    """The summary of a step that this text completes by the marker, from its last block. None without the marker."""
    if not is_marked_complete(text):
        return None
    return _MARKER.sub("", last).strip()[-MAX_SUMMARY_CHARACTERS:]
