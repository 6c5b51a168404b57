"""The isolation of runs after losses, and the outcome of ended child processes."""

import itertools
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from khala.domain.isolation_policy import (
    Interruption,
    IsolatedOutcome,
    isolated_outcome,
    needs_isolation,
    outcome_in_other_process,
)
from khala.runs.isolation import LIMIT_SLACK_SECONDS, environment, time_limit
from khala.store.budgets.ledger import LedgerEntry, RunAccount


def test_a_run_is_isolated_from_its_second_loss_on() -> None:
    assert [needs_isolation(lost) for lost in range(5)] == [False, False, True, True, True]


def test_a_run_that_its_child_process_has_ended_needs_nothing_more() -> None:
    for stopped, began, code in itertools.product([None, *Interruption], [False, True], [0, 3, 14, -9]):
        assert isolated_outcome(held=False, stopped=stopped, began=began, exit_code=code) is IsolatedOutcome.DONE


@pytest.mark.parametrize("code", [1, 3, 14, -9, -11])
def test_a_child_process_that_dies_ends_its_run(code: int) -> None:
    assert isolated_outcome(held=True, stopped=None, began=True, exit_code=code) is IsolatedOutcome.INTERRUPTED


@pytest.mark.parametrize(("began", "code"), [(False, 0), (False, 1), (False, -9), (True, 0)])
def test_a_child_process_that_never_started_or_released_the_run_counts_no_loss(began: bool, code: int) -> None:
    assert isolated_outcome(held=True, stopped=None, began=began, exit_code=code) is IsolatedOutcome.DROPPED


@pytest.mark.parametrize("code", [0, -9])
@pytest.mark.parametrize(
    ("stopped", "expected"),
    [
        (Interruption.CANCEL, IsolatedOutcome.CANCEL),
        (Interruption.HAND_OVER, IsolatedOutcome.HAND_OVER),
        (Interruption.LOST, IsolatedOutcome.DROPPED),
    ],
)
def test_a_stopped_child_process_counts_no_loss_for_its_run(
    stopped: Interruption, expected: IsolatedOutcome, code: int
) -> None:
    assert isolated_outcome(held=True, stopped=stopped, began=True, exit_code=code) is expected


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("final", "final"), ("error", "error"), ("blocked", "blocked"), ("queued", "hand_over"), ("running", "lost"),
     (None, "lost")],
)  # fmt: skip
def test_the_outcome_of_an_isolated_run_is_counted_like_any_other(status: str | None, outcome: str) -> None:
    assert outcome_in_other_process(status) == outcome


def entry(measure: str, most: int) -> LedgerEntry:
    now = datetime.now(UTC)
    return LedgerEntry(scope="run", measure=measure, key=b"", starts_at=now, reserved=Decimal(1), most=Decimal(most))  # type: ignore[arg-type]


def test_a_child_process_is_killed_some_time_after_its_own_time_limit() -> None:
    entries = (entry("tokens", 5), entry("seconds", 900), entry("seconds", 700))
    account = RunAccount(entries=entries, seconds=Decimal(100))
    assert time_limit(account) == 600 + LIMIT_SLACK_SECONDS
    assert time_limit(RunAccount(entries=entries, seconds=Decimal(1000))) == LIMIT_SLACK_SECONDS
    assert time_limit(RunAccount(entries=entries[:1])) is None


def test_a_child_process_has_its_parents_settings_and_the_current_database() -> None:
    given = {"KHALA_MODEL": "demo", "DATABASE_URL": "", "DATABASE_DIRECT_URL": "direct", "KHALA_METRICS": "here:1"}
    common = {"KHALA_MODEL": "demo", "DATABASE_URL": "url", "KHALA_METRICS": ""}
    assert environment("url", "url", given) == common | {"DATABASE_DIRECT_URL": ""}
    assert environment("url", "direct", given) == common | {"DATABASE_DIRECT_URL": "direct"}
