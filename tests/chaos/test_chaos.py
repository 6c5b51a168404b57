"""Chaos for a few seconds, and whether those who judge it would notice."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.chaos import stored
from tests.chaos.__main__ import report
from tests.chaos.model import Production, asking, question
from tests.chaos.running import run
from tests.chaos.schedule import FAULTS, Schedule, Step, made
from tests.chaos.stored import Stored
from tests.chaos.watchers import Seen

SEED, SECONDS, USERS = 11, 6.0, 3
RUN, THREAD = "a-run", "a-thread"
FINISH = ("finish", {"reason": "stop"})


@pytest.mark.timeout(300)
async def test_a_few_seconds_of_chaos_break_no_promise() -> None:
    # Not pytest's own folder, which nobody else may enter: as root, Postgres is somebody else.
    folder = Path(tempfile.mkdtemp(prefix="khala-chaos-test-"))
    result = await run(made(SEED, SECONDS, users=USERS), folder)
    assert result.kept, f"{report(result)}\nLogs are in {folder}"
    assert result.asked > result.refused
    assert result.productions
    shutil.rmtree(folder)


def test_a_seed_decides_everything_and_a_schedule_can_be_kept() -> None:
    plan = made(7, 600)
    assert made(7, 600) == plan
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Schedule) == plan
    assert {fault.kind for fault in plan.faults} == set(FAULTS)
    assert made(8, 600).faults != plan.faults
    assert {fault.kind for fault in made(7, 600, only=["kill", "clock"]).faults} == {"kill", "clock"}
    assert made(7, 600, only=["kill"]).scripts == plan.scripts


def test_what_a_user_asks_is_what_the_model_reads() -> None:
    step = Step(kind="send", pause=0, words=7, pace=30, rounds=(("risk", "deed"), ("deed",)))
    body = {"messages": [{"role": "user", "content": asking("u1.2", step)}, {"role": "assistant", "content": "x"}]}
    assert question(body) == ("u1.2", 7, 30, (("risk", "deed"), ("deed",)))


def said(number: int, words: int, *, of: int | None = None) -> Production:
    """A call of the model that said so many words of those that it meant to say."""
    return Production(number, "u0.1", of or words, said=[f"<{number}.{place}> " for place in range(words)])


def found(*parts: tuple[str, dict[str, Any]], status: str = "final", **more: Any) -> Stored:
    """A database with one run."""
    runs: Any = [{"id": RUN, "status": status}]
    nothing: dict[str, Any] = {"run_log": [], "part_log": [], "revisions": [], "messages": []}
    return Stored(runs=runs, parts={RUN: list(parts)}, **(nothing | more))


def text(number: int, *words: int) -> tuple[str, dict[str, Any]]:
    return "text-delta", {"text": "".join(f"<{number}.{word}> " for word in words)}


RESUMED = ("notice", {"code": "resumed", "message": "It goes on."})
GOOD = (text(1, 0, 1), RESUMED, text(2, 0), text(2, 1, 2), FINISH)
CALLS = {1: said(1, 4), 2: said(2, 3)}


def test_an_answer_of_what_two_calls_said_is_good() -> None:
    assert list(stored.texts(found(*GOOD), CALLS)) == []


def test_an_answer_that_failed_keeps_what_was_said() -> None:
    failed = ("text-delta", {"text": "\n\nIt broke."}), ("error", {"message": "It broke."})
    assert list(stored.texts(found(text(1, 0, 1), *failed, ("finish", {"reason": "error"})), CALLS)) == []


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((text(1, 0, 2), RESUMED, text(2, 0, 1, 2), FINISH), "not what call 1 said"),
        ((text(1, 0, 0), RESUMED, text(2, 0, 1, 2), FINISH), "not what call 1 said"),
        ((text(2, 0, 1), FINISH), "for the whole"),
        ((RESUMED, FINISH), "without a last word"),
        ((text(2, 0), RESUMED, text(1, 0, 1, 2, 3), FINISH), "out of order"),
        ((text(1, 0), RESUMED, text(1, 0, 1, 2, 3), FINISH), "once more"),
        ((text(9, 0), FINISH), "no model said"),
        ((text(1, 0), text(2, 0, 1, 2), FINISH), "not what call 1 said"),
    ],
)
def test_a_character_lost_or_doubled_is_noticed(parts: Any, problem: str) -> None:
    (first, *_) = stored.texts(found(*parts), CALLS)
    assert problem in first


def logged(status: str, epoch: int, owner: str | None) -> dict[str, Any]:
    return {"run_id": RUN, "status": status, "epoch": epoch, "lease_owner": owner}


def test_what_ended_and_goes_on_is_noticed() -> None:
    log: Any = [logged("running", 1, "one"), logged("final", 1, None), logged("running", 2, "two")]
    (problem,) = stored.terminal(found(FINISH, run_log=log))
    assert "was final and became running" in problem
    assert list(stored.terminal(found(FINISH, run_log=log[:2]))) == []
    assert list(stored.terminal(found(text(1, 0))))


def test_an_epoch_with_two_holders_is_noticed() -> None:
    log: Any = [logged("running", 1, "one"), logged("running", 1, "two")]
    assert list(stored.leases(found(run_log=log), lambda port: set()))
    log = [logged("running", 1, "one"), logged("running", 2, "two")]
    assert list(stored.leases(found(run_log=log), lambda port: set())) == []


def written(*rows: tuple[int, int, str]) -> Any:
    """Parts by (seq, epoch, writer), with the writer's name for its port."""
    return [{"run_id": RUN, "seq": seq, "revision": seq, "epoch": epoch, "port": who} for seq, epoch, who in rows]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(0, 1, "work-0#1"), (1, 1, "work-1#1")], "several executors"),
        ([(0, 1, "work-0#1"), (1, 1, "work-0#2")], "several executors"),
        ([(0, 2, "work-0#1"), (1, 1, "work-1#1")], "that was over"),
        ([(0, 1, "work-0#1"), (1, 1, "web-0#1"), (2, 1, "work-0#1")], "after a server had ended it"),
        ([(0, 1, "work-0#1"), (2, 1, "work-0#1")], "not written in order"),
    ],
)
def test_parts_of_whoever_holds_no_lease_are_noticed(rows: Any, problem: str) -> None:
    assert any(problem in one for one in stored.leases(found(part_log=written(*rows)), lambda port: {str(port)}))
    good = written((0, 1, "work-0#1"), (1, 2, "work-1#1"), (2, 2, "web-0#1"))
    assert list(stored.leases(found(part_log=good), lambda port: {str(port)})) == []


def test_a_gap_in_revisions_is_noticed() -> None:
    steps: Any = [{"thread_id": THREAD, "before": before, "after": after} for before, after in ((0, 1), (1, 2), (3, 4))]
    (problem,) = stored.revisions(found(revisions=steps))
    assert "from revision 2 on at 3" in problem


def test_an_observer_notices_what_comes_after_the_end() -> None:
    seen = Seen(THREAD)
    head = {"id": "m", "role": "assistant", "seq": 1, "status": "final"}
    seen.apply({"type": "snapshot", "revision": 1, "messages": [head | {"content": []}]})
    with pytest.raises(AssertionError, match="was final and is streaming"):
        seen.apply(
            {"type": "delta", "from": 1, "revision": 2, "messages": [head | {"status": "streaming"}], "parts": []}
        )
    part = {"messageId": "m", "seq": 1, "kind": "text-delta", "data": {"text": "x"}}
    seen = Seen(THREAD)
    seen.apply({"type": "snapshot", "revision": 1, "messages": [head | {"content": []}]})
    with pytest.raises(AssertionError, match="which has ended"):
        seen.apply({"type": "delta", "from": 1, "revision": 2, "messages": [], "parts": [part]})
