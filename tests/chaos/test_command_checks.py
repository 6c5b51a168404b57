"""Tests that the checks of plans and command agents detect violations."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from khala.domain import ids
from tests.chaos import command_checks, database_checks
from tests.chaos.command_agent import output_of
from tests.chaos.database_checks import DatabaseState
from tests.support.checkouts import git, make_checkout

PLAN, THREAD, RUN = ids.new(), ids.new(), ids.new()
CALL = ("tool-call", {"tool": "run_command", "toolCallId": "c", "args": {"command": "write"}})
STEP = {"id": "s0", "instructions": "#u1.1# words=3 pace=20 steps=complete"}
CREATED = {"type": "created", "steps": [{"id": "s0"}, {"id": "s1", "dependsOn": ["s0"]}]}
STARTED = {"type": "step_started", "stepId": "s0", "attempt": 1, "agent": "command:git", "runId": str(RUN)}
COMPLETED = {"type": "step_completed", "stepId": "s0"}
FAILED = {"type": "step_failed", "stepId": "s0"}
BEGAN = {"event": "began", "name": "u1.1", "token": "t", "words": 3, "at": 1.0}
DID = {"event": "did", "name": "u1.1", "token": "t", "at": 2.0}


def database(*events: dict[str, Any], text: str = "", status: str = "final", called: bool = True) -> DatabaseState:
    """A database with one plan, and one run that wrote this text."""
    log: Any = [
        {"plan_id": PLAN, "thread_id": THREAD, "seq": seq + 1, "data": json.dumps(event)}
        for seq, event in enumerate(events)
    ]
    runs: Any = [{"id": RUN, "status": status, "plan_id": PLAN, "options": '{"agent": "command:git"}'}]
    plans: Any = [{"id": PLAN, "event_seq": len(events), "status": "stopped", "state": '{"spent": {}}'}]
    steps: Any = [{"plan_id": PLAN, "id": "s0", "planned": json.dumps(STEP)}]
    run_log: Any = [{"run_id": RUN, "status": "final", "at": datetime.fromtimestamp(3.0, UTC)}]
    calls = [CALL] if called else []
    parts: Any = {str(RUN): [*calls, ("text-delta", {"text": text}), ("finish", {"reason": "stop"})]}
    return DatabaseState(
        runs=runs, parts=parts, run_log=run_log, part_log=[], revisions=[], messages=[],
        plans=plans, plan_steps=steps, plan_events=log,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "status", "problem"),
    [
        (output_of("t", 3), "final", None),
        (output_of("t", 3)[:9], "error", None),
        (output_of("t", 3)[:9], "final", "not whole"),
        (output_of("t", 4), "final", "other text"),
        ("<x.0> ", "error", "no command wrote"),
        ("Hi", "error", "no command wrote"),
    ],
)
def test_output_that_is_not_a_programs_is_detected(text: str, status: str, problem: str | None) -> None:
    found = list(command_checks.outputs(database(text=text, status=status), [BEGAN]))
    assert [problem in line for line in found] == [True] if problem else found == []


def test_an_attempt_that_only_merged_tells_the_end_of_an_earlier_output() -> None:
    told = "<t.1> <t.2>\n\n<promise>COMPLETE</promise>\n"
    assert list(command_checks.outputs(database(text=told, called=False), [BEGAN])) == []
    assert list(command_checks.outputs(database(text="<t.7> ", called=False), [BEGAN]))


def test_a_program_for_a_completed_step_and_a_second_effect_are_detected() -> None:
    state = database(CREATED, STARTED, COMPLETED)
    assert list(command_checks.effects(state, [BEGAN, DID])) == []
    assert "no effect" in next(command_checks.effects(state, [BEGAN]))
    assert "2 times" in next(command_checks.effects(state, [BEGAN, DID, DID]))
    assert "after it was completed" in next(command_checks.effects(state, [BEGAN, DID, BEGAN | {"at": 4.0}]))


@pytest.mark.parametrize(
    ("events", "reason", "problem"),
    [
        ((COMPLETED, COMPLETED | {"stepId": "s1"}), "completed", None),
        ((COMPLETED,), "completed", "not no end"),
        ((FAILED,), "no_tasks", None),
        ((COMPLETED, COMPLETED | {"stepId": "s1"}), "no_tasks", "not completed"),
        (({"type": "stopping", "reason": "interrupted"},), "interrupted", None),
    ],
)
def test_a_plan_that_ends_otherwise_than_its_steps_say_is_detected(
    events: tuple[dict[str, Any], ...], reason: str, problem: str | None
) -> None:
    found = list(database_checks.plans(database(CREATED, *events, {"type": "stopped", "reason": reason})))
    assert [problem in line for line in found] == [True] if problem else found == []


def test_a_step_that_is_missing_in_its_checkout_or_there_twice_is_detected(tmp_path: Path) -> None:
    state = database(CREATED, STARTED, COMPLETED)
    folder = make_checkout(tmp_path / str(THREAD))
    assert "not in" in next(command_checks.commits(state, tmp_path))
    commit(folder, PLAN)
    assert list(command_checks.commits(state, tmp_path)) == []
    commit(folder, PLAN)
    (folder / "more").touch()
    found = list(command_checks.commits(state, tmp_path))
    assert ["has changes" in found[0], "2 times" in found[1], len(found)] == [True, True, 2]


def commit(folder: Path, plan_id: UUID) -> None:
    (folder / "u1.1").touch()
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "--allow-empty", "-m", f"Do it\n\nKhala-Step: {plan_id}/s0")
