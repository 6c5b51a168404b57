"""A short chaos run, and tests that the checks detect violations."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos import database_checks
from tests.chaos.__main__ import report
from tests.chaos.chaos_run import run
from tests.chaos.database_checks import DatabaseState
from tests.chaos.model import ModelOutput, parse_prompt, prompt_text
from tests.chaos.observers import ObserverView
from tests.chaos.schedule import FAULTS, Action, Schedule, from_seed

SEED, SECONDS, USERS = 11, 6.0, 3
RUN, THREAD = "a-run", "a-thread"
FINISH = ("finish", {"reason": "stop"})


@pytest.mark.timeout(300)
async def test_a_few_seconds_of_chaos_break_no_promise() -> None:
    # Not pytest's own folder: under root, Postgres runs as another user, who may not enter that.
    folder = Path(tempfile.mkdtemp(prefix="khala-chaos-test-"))
    result = await run(from_seed(SEED, SECONDS, users=USERS), folder)
    assert result.kept, f"{report(result)}\nLogs are in {folder}"
    assert result.sends > result.refused
    assert result.outputs
    shutil.rmtree(folder)


def test_a_seed_determines_the_schedule_and_a_schedule_can_be_saved() -> None:
    plan = from_seed(7, 600)
    assert from_seed(7, 600) == plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Schedule) == plan
    assert {fault.kind for fault in plan.faults} == set(FAULTS)
    assert from_seed(8, 600).faults != plan.faults
    assert {fault.kind for fault in from_seed(7, 600, only=["kill", "clock"]).faults} == {"kill", "clock"}
    assert from_seed(7, 600, only=["kill"]).scripts == plan.scripts


def test_the_model_parses_the_instructions_of_a_user() -> None:
    action = Action(kind="send", pause=0, words=7, pace=30, tool_steps=(("risk", "deed"), ("deed",)))
    body = {
        "messages": [{"role": "user", "content": prompt_text("u1.2", action)}, {"role": "assistant", "content": "x"}]
    }
    assert parse_prompt(body) == ("u1.2", 7, 30, (("risk", "deed"), ("deed",)))


def output(number: int, words: int, *, of: int | None = None) -> ModelOutput:
    """A call of the model that sent `words` of its `of` words."""
    return ModelOutput(number, "u0.1", of or words, sent=[f"<{number}.{place}> " for place in range(words)])


def database(*parts: tuple[str, dict[str, Any]], status: str = "final", **more: Any) -> DatabaseState:
    """A database with one run."""
    runs: Any = [{"id": RUN, "status": status, "plan_id": None, "options": "{}"}]
    empty: dict[str, Any] = {"run_log": [], "part_log": [], "revisions": [], "messages": []}
    return DatabaseState(runs=runs, parts={RUN: list(parts)}, **(empty | more))


def text(number: int, *words: int) -> tuple[str, dict[str, Any]]:
    return "text-delta", {"text": "".join(f"<{number}.{word}> " for word in words)}


RESUMED = ("notice", {"code": "resumed", "message": "It goes on."})
GOOD = (text(1, 0, 1), RESUMED, text(2, 0), text(2, 1, 2), FINISH)
CALLS = {1: output(1, 4), 2: output(2, 3)}


def test_an_answer_with_the_output_of_two_calls_is_good() -> None:
    assert list(database_checks.texts(database(*GOOD), CALLS)) == []


def test_a_failed_answer_with_its_partial_text_is_good() -> None:
    failed = ("text-delta", {"text": "\n\nIt broke."}), ("error", {"message": "It broke."})
    assert list(database_checks.texts(database(text(1, 0, 1), *failed, ("finish", {"reason": "error"})), CALLS)) == []


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((text(1, 0, 2), RESUMED, text(2, 0, 1, 2), FINISH), "not the output of call 1"),
        ((text(1, 0, 0), RESUMED, text(2, 0, 1, 2), FINISH), "not the output of call 1"),
        ((text(2, 0, 1), FINISH), "it ends with"),
        ((RESUMED, FINISH), "without a final text"),
        ((text(2, 0), RESUMED, text(1, 0, 1, 2, 3), FINISH), "out of order"),
        ((text(1, 0), RESUMED, text(1, 0, 1, 2, 3), FINISH), "twice"),
        ((text(9, 0), FINISH), "no model sent"),
        ((text(1, 0), text(2, 0, 1, 2), FINISH), "not the output of call 1"),
    ],
)
def test_lost_or_duplicate_text_is_detected(parts: Any, problem: str) -> None:
    (first, *_) = database_checks.texts(database(*parts), CALLS)
    assert problem in first


def logged(status: str, epoch: int, owner: str | None) -> dict[str, Any]:
    return {"run_id": RUN, "status": status, "epoch": epoch, "lease_owner": owner}


def test_an_ended_run_that_continues_is_detected() -> None:
    log: Any = [logged("running", 1, "one"), logged("final", 1, None), logged("running", 2, "two")]
    (problem,) = database_checks.terminal(database(FINISH, run_log=log))
    assert "was final and became running" in problem
    assert list(database_checks.terminal(database(FINISH, run_log=log[:2]))) == []
    assert list(database_checks.terminal(database(text(1, 0))))


def test_an_epoch_with_two_holders_is_detected() -> None:
    log: Any = [logged("running", 1, "one"), logged("running", 1, "two")]
    assert list(database_checks.leases(database(run_log=log), lambda port: set()))
    log = [logged("running", 1, "one"), logged("running", 2, "two")]
    assert list(database_checks.leases(database(run_log=log), lambda port: set())) == []


def written(*rows: tuple[int, int, str]) -> Any:
    """Parts by (seq, epoch, writer), with the writer's name for its port."""
    return [{"run_id": RUN, "seq": seq, "revision": seq, "epoch": epoch, "port": writer} for seq, epoch, writer in rows]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(0, 1, "work-0#1"), (1, 1, "work-1#1")], "several executors"),
        ([(0, 1, "work-0#1"), (1, 1, "work-0#2")], "several executors"),
        ([(0, 2, "work-0#1"), (1, 1, "work-1#1")], "under an old epoch"),
        ([(0, 1, "work-0#1"), (1, 1, "web-0#1"), (2, 1, "work-0#1")], "after a web process had ended it"),
        ([(0, 1, "work-0#1"), (2, 1, "work-0#1")], "not written in order"),
    ],
)
def test_parts_by_a_process_without_a_lease_are_detected(rows: Any, problem: str) -> None:
    assert any(
        problem in line for line in database_checks.leases(database(part_log=written(*rows)), lambda port: {str(port)})
    )
    good = written((0, 1, "work-0#1"), (1, 2, "work-1#1"), (2, 2, "web-0#1"))
    assert list(database_checks.leases(database(part_log=good), lambda port: {str(port)})) == []


def test_a_gap_in_revisions_is_detected() -> None:
    steps: Any = [{"thread_id": THREAD, "before": before, "after": after} for before, after in ((0, 1), (1, 2), (3, 4))]
    (problem,) = database_checks.revisions(database(revisions=steps))
    assert "from revision 2 on at 3" in problem


def test_an_observer_detects_changes_after_the_end() -> None:
    view = ObserverView(THREAD)
    head = {"id": "m", "role": "assistant", "seq": 1, "status": "final"}
    view.apply({"type": "snapshot", "revision": 1, "messages": [head | {"content": []}]})
    with pytest.raises(AssertionError, match="was final and is streaming"):
        view.apply(
            {"type": "delta", "from": 1, "revision": 2, "messages": [head | {"status": "streaming"}], "parts": []}
        )
    part = {"messageId": "m", "seq": 1, "kind": "text-delta", "data": {"text": "x"}}
    view = ObserverView(THREAD)
    view.apply({"type": "snapshot", "revision": 1, "messages": [head | {"content": []}]})
    with pytest.raises(AssertionError, match="which has ended"):
        view.apply({"type": "delta", "from": 1, "revision": 2, "messages": [], "parts": [part]})
