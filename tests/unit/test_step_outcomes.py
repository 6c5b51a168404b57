"""How an attempt of a step ended, by its run: only what the agent says completes a step, and no failed run does."""

import pytest

from khala.domain.chat import RunStatus
from khala.domain.fold import Content, TextBlock, ToolBlock
from khala.domain.parts import Finish, RunFailure, TokenUsage
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
from khala.domain.plans.results import COMPLETE_STEP, outcome_of

MARKED = TextBlock(text="The tests pass.\n<Promise>complete</Promise>")
QUOTED = TextBlock(text='I end with "<promise>COMPLETE</promise>".')


def call(state: str) -> ToolBlock:
    return ToolBlock(tool_call_id="c", tool=COMPLETE_STEP, state=state, args={"summary": "Done"})


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        ((MARKED,), AttemptCompleted(summary="The tests pass.")),
        ((TextBlock(text="It is done."),), AttemptUnfinished()),
        ((QUOTED,), AttemptUnfinished()),
        ((), AttemptUnfinished()),
        ((call("completed"),), AttemptCompleted(summary="Done")),
        ((call("failed"), TextBlock(text="I could not say so.")), AttemptUnfinished()),
        ((call("completed"), MARKED), AttemptCompleted(summary="Done")),
    ],
)
def test_a_run_that_ends_well_completes_its_step_only_if_the_agent_says_so(content: Content, outcome: Outcome) -> None:
    assert outcome_of("final", content, None, None) == outcome


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (RunFailure(code="failed", message="Status 1"), AttemptFailed(error="Status 1", code="failed")),
        (
            RunFailure(code="refused", message="401", cause="invalid_key"),
            AttemptUnavailable(error="401", code="refused", cause="invalid_key"),
        ),
        (RunFailure(code="rate_limited", message="429", retry_after=7), AttemptLimited(retry_after=7)),
        (RunFailure(code="overloaded", message="529"), AttemptLimited()),
        (
            RunFailure(code="unavailable", message="It is missing."),
            AttemptUnavailable(error="It is missing.", code="unavailable"),
        ),
        (RunFailure(code="conflict", message="a.txt"), AttemptConflicted(error="a.txt", code="conflict")),
        (RunFailure(code="interrupted", message="Gone"), AttemptLost()),
        (RunFailure(code="budget", message="No more"), AttemptOverBudget()),
        (None, AttemptFailed(error="The run failed.", code="internal")),
    ],
)
def test_a_run_that_failed_completes_nothing_whatever_it_has_written(
    failure: RunFailure | None, outcome: Outcome
) -> None:
    for content in ((), (MARKED,), (call("completed"),)):
        assert outcome_of("error", content, None, failure) == outcome


@pytest.mark.parametrize(("status", "outcome"), [("canceled", AttemptCanceled()), ("final", AttemptOverBudget())])
def test_a_run_that_was_canceled_or_reached_its_budget_is_no_failure(status: RunStatus, outcome: Outcome) -> None:
    assert outcome_of(status, (MARKED,), Finish(reason="budget", usage=TokenUsage()), None) == outcome
