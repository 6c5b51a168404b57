"""Plans whose steps are done by commands in a Git checkout."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.plans.commands import Start
from khala.domain.plans.plan import Plan, PlanGit, PlannedStep
from khala.store.postgres.database import Database
from tests.support.checkouts import git, make_checkout, subjects
from tests.support.in_process import InProcessServer
from tests.support.plans import ThreadPlan, step
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = r"""
sed -n 's/^write //p' > "$1/$$"
read -r name text < "$1/$$"
echo "$text" > "$name"
until [ "$name" != slow ] || [ -e "$1/go" ]; do sleep 0.02; done
if [ "$name" = same ]; then
  touch "$1/$text"
  until [ "$(ls "$1" | grep -c together)" -ge 2 ]; do sleep 0.02; done
fi
printf 'Wrote %s.\n\n<promise>COMPLETE</promise>\n' "$name"
"""
"""Writes the file that the task names. Two that write `same` wait for each other, and `slow` waits for the test."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkout(tmp_path_factory.mktemp("git") / "work")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str, folder: Path) -> AsyncIterator[InProcessServer]:
    path, notes = folder.parent / "commands.json", folder.parent / "notes"
    notes.mkdir()
    command = {"argv": ["sh", "-c", SCRIPT, "sh", str(notes)], "folder": str(folder), "guests": True, "timeout": 20}
    path.write_text(json.dumps({"commands": {"write": command | {"git": True}, "plain": command}}))
    async with shared(postgres_url, template, KHALA_COMMANDS=str(path), KHALA_WELCOME="") as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def plan(server: InProcessServer) -> AsyncIterator[ThreadPlan]:
    db = Database(server.database_url, pool_size=1)
    yield ThreadPlan(db, await server.thread())
    await db.close()


async def end_of(plan: ThreadPlan, *steps: PlannedStep, agent: str = "command:write", parallel: int = 1) -> Plan:
    """The plan with these steps when it has stopped or paused."""
    await plan.create(*steps, agents=(agent,), git=PlanGit(), mode="all", parallel=parallel)
    await plan.command(Start())
    return (await plan.wait(lambda stored: stored.plan.status in ("stopped", "paused"))).plan


async def test_each_completed_step_is_a_commit_in_order(plan: ThreadPlan, folder: Path) -> None:
    first = step("a", "write one 1", title="Write one")
    ended = await end_of(plan, first, step("b", "write two 2", title="Write two", depends_on=("a",)))
    assert (ended.end, subjects(folder)[-2:]) == ("completed", ["Write one", "Write two"])
    assert git(folder, "log", "-1", "--format=%b") == f"Wrote two.\n\nKhala-Step: {plan.id}/b"


async def test_of_two_steps_that_conflict_one_fails_and_the_plan_goes_on_with_the_others(
    plan: ThreadPlan, folder: Path
) -> None:
    both = [step(name, f"write same {name}", priority=-1) for name in ("together", "together2")]
    ended = await end_of(plan, *both, step("c", "write other 3"), parallel=2)
    [failed] = (found for found in ended.steps.values() if found.status == "failed")
    assert sorted(found.status for found in ended.steps.values()) == ["completed", "completed", "failed"]
    assert (ended.end, failed.attempts) == ("no_tasks", 1)
    assert failed.error is not None
    assert "conflict with others in same." in failed.error
    [kept] = (path.parent for path in folder.with_name("work.khala").rglob("same"))
    assert (kept / "same").read_text() == f"{failed.planned.id}\n"
    assert str(kept) in failed.error
    assert git(folder, "status", "--porcelain") == ""


@pytest.mark.parametrize("dependent", [False, True])
async def test_steps_side_by_side_are_merged_in_order_unless_that_holds_another_step_up(
    plan: ThreadPlan, folder: Path, dependent: bool
) -> None:
    go = folder.parent / "notes/go"
    steps = [step("s", "write slow 1", title="Slow"), step("f", f"write fast {dependent}", title="Fast")]
    steps += [step("d", "write after 3", title="Dependent", depends_on=("f",))] if dependent else []
    await plan.create(*steps, agents=("command:write",), git=PlanGit(), mode="all", parallel=2)
    await plan.command(Start())
    if dependent:
        await plan.wait(lambda stored: stored.plan.steps["f"].status == "completed")
    else:
        async with asyncio.timeout(20):
            while f"refs/khala/done/{plan.id}/f-" not in git(folder, "for-each-ref", "--format=%(refname)"):
                await asyncio.sleep(0.05)
        assert not (folder / "fast").exists()
        await assert_followed(plan)
    go.touch()
    ended = (await plan.wait(lambda stored: stored.plan.status == "stopped")).plan
    go.unlink()
    (folder / "slow").unlink()
    git(folder, "commit", "-q", "--all", "-m", "Remove slow")
    order = ["Fast", "Slow"] if dependent else ["Slow", "Fast"]
    merged = git(folder, "log", "--reverse", "--first-parent", "--format=%s").replace("Merge ", "").split("\n")
    assert ended.end == "completed"
    assert [subject for subject in merged if subject in order][-2:] == order
    async with asyncio.timeout(20):  # What the plan left is removed.
        while str(plan.id) in git(folder, "for-each-ref", "--format=%(refname)"):
            await asyncio.sleep(0.05)


async def test_what_a_deleted_plan_left_is_removed_and_that_of_unknown_plans_stays(
    plan: ThreadPlan, folder: Path
) -> None:
    git(folder, "update-ref", f"refs/khala/done/{ids.new()}/step-1", "HEAD")
    await plan.create(step("a", "write deleted 1"), agents=("command:write",), git=PlanGit(), mode="step")
    await plan.command(Start())
    await plan.wait(lambda stored: stored.plan.status == "paused")
    assert refs(folder).count(str(plan.id)) == 1
    await plan.remove()
    async with asyncio.timeout(20):
        while len(refs(folder)) > 1:
            await asyncio.sleep(0.05)
    assert str(plan.id) not in refs(folder)


def refs(folder: Path) -> list[str]:
    """The plans of the refs of steps."""
    found = git(folder, "for-each-ref", "--format=%(refname)", "refs/khala/").split("\n")
    return [ref.split("/")[-2] for ref in found]


async def assert_followed(plan: ThreadPlan) -> None:
    """A snapshot has the active answers of steps, with what they have so far: deltas only have what follows."""
    async with asyncio.timeout(20):  # One of the commands may be about to start.
        while True:
            active = [message for message in (await plan.thread.snapshot())["messages"] if "step" in message]
            if len(active) == 2 and all(message["seq"] >= 3 for message in active):
                break
            await asyncio.sleep(0.05)
    for message in active:
        assert message["status"] == "streaming"
        assert "run_command" in [block.get("tool") for block in message["content"]]


async def test_a_dirty_folder_fails_the_step_before_its_command_runs(plan: ThreadPlan, folder: Path) -> None:
    (folder / "mine").touch()
    ended = await end_of(plan, step("a", "write fresh 1"))
    (folder / "mine").unlink()
    assert ended.steps["a"].error == f"{folder} has changes that are not committed: mine."
    assert not (folder / "fresh").exists()


async def test_a_command_without_the_operators_permission_does_not_run(plan: ThreadPlan, folder: Path) -> None:
    ended = await end_of(plan, step("a", "write forbidden 1"), agent="command:plain")
    assert (ended.status, ended.pause_reason) == ("paused", "all_limited")
    assert "operator does not allow" in str(ended.steps["a"].error)
    assert not (folder / "forbidden").exists()
