"""A whole plan: a scripted model checks out a project, adds a function, fails once, and completes it at the second try.

The project comes from a server that speaks a repository host's protocol.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from khala.domain.access import Caller
from khala.domain.plans.commands import Start
from khala.domain.plans.results import COMPLETE_STEP
from khala.store.postgres.database import Database
from tests.support.account_with_data import account, own_thread
from tests.support.in_process import khala
from tests.support.plans import ThreadPlan, step
from tests.support.providers import Call, Reply, serving
from tests.support.repository_archives import tar_gz
from tests.support.repository_host import ArchiveServer, archive_server
from tests.support.wires import UseTool

BUGGY = "def median(values):\n    return sorted(values)[len(values) // 2]\n"
CORRECT = """def median(values):
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
"""
TESTS = """
import unittest

class MedianTest(unittest.TestCase):
    def test_odd(self):
        self.assertEqual(median([3, 1, 2]), 2)

    def test_even(self):
        self.assertEqual(median([4, 1, 2, 3]), 2.5)

unittest.main(argv=["tests"])
"""
README = "# Statistics\n"
MEDIAN = "project/median.py"
ADDED = "# Statistics\n\n`median(values)` returns the middle of the values.\n"
PROJECT = {"README.md": README.encode(), "mean.py": b"def mean(values):\n    return sum(values) / len(values)\n"}


def write(path: str, content: str) -> UseTool:
    return UseTool(name="write_file", args={"path": path, "content": content})


def check_out(url: str) -> UseTool:
    return UseTool(name="load_repo", args={"url": url, "into": "project"})


def read(path: str) -> UseTool:
    return UseTool(name="read_file", args={"path": path})


def edit(path: str, old: str, new: str) -> UseTool:
    return UseTool(name="edit_file", args={"path": path, "old": old, "new": new})


def run_tests(code: str) -> UseTool:
    return UseTool(name="run_code", args={"language": "python", "code": code + TESTS})


def complete(summary: str) -> UseTool:
    return UseTool(name=COMPLETE_STEP, args={"summary": summary})


class ScriptedDeveloper:
    """Replies of the model: one list for each attempt of the function's step, and one for the documentation."""

    def __init__(self, repository: str) -> None:
        failed = "The test of an even number of values fails."
        self.attempts: list[list[UseTool | str]] = [
            [check_out(repository), read("project/mean.py"), write(MEDIAN, BUGGY), run_tests(BUGGY), failed],
            [write(MEDIAN, CORRECT), run_tests(CORRECT), complete("median.py has the function, and is tested.")],
        ]
        self.documents: list[UseTool | str] = [edit("project/README.md", README, ADDED), complete("The README has it.")]
        self.tasks: list[str] = []
        self.outputs: list[str] = []

    def __call__(self, call: Call) -> Reply:
        messages = call.body["messages"]
        task = next(message["content"] for message in reversed(messages) if message["role"] == "user")
        done = [message["content"] for message in messages if message["role"] == "tool"]
        self.outputs += done[-1:]
        if not done:
            self.tasks.append(task)
        is_function = "# Your step: Add the function" in task
        attempt = sum("# Your step: Add the function" in task for task in self.tasks)
        replies = self.attempts[attempt - 1] if is_function else self.documents
        reply = replies[len(done)]
        return Reply(tokens=(reply,)) if isinstance(reply, str) else Reply(tokens=(), calls=(reply,))


@pytest.fixture
async def host() -> AsyncIterator[ArchiveServer]:
    async with archive_server() as made:
        made.archives["statistics"] = tar_gz(PROJECT)
        yield made


@pytest.fixture
async def developer(host: ArchiveServer) -> ScriptedDeveloper:
    return ScriptedDeveloper(host.url("statistics"))


@pytest.fixture
async def url(developer: ScriptedDeveloper) -> AsyncIterator[str]:
    async with serving(default=developer) as server:
        yield server.url


async def test_a_plan_adds_a_tested_function_to_a_project(
    database_url: str, db: Database, developer: ScriptedDeveloper, url: str, host: ArchiveServer
) -> None:
    env: dict[str, Any] = {
        "KHALA_MODEL": "openai:developer", "OPENAI_API_KEY": "key", "OPENAI_BASE_URL": f"{url}/v1",
        "KHALA_COOLDOWN_MS": "0", "KHALA_REPOSITORY_HOSTS": f"github={host.origin}", "KHALA_FETCH_ALLOW": "127.0.0.0/8",
    }  # fmt: skip
    async with khala(database_url, **env) as server, account(server) as person:
        thread = await own_thread(person)
        plan = ThreadPlan(db, thread, Caller(user_id=UUID(person.id)))
        acceptance = ("The tests pass.",)
        await plan.create(
            step("function", "Add median() with its tests.", title="Add the function", acceptance=acceptance),
            step("documents", "Describe median() in the README.", title="Document it", depends_on=("function",)),
        )
        await plan.command(Start())
        approved = asyncio.create_task(approve_all(thread, plan))
        stored = await plan.wait(lambda stored: stored.plan.status == "stopped")
        approved.cancel()
        assert stored.plan.end == "completed"
        assert [one.attempts for one in stored.plan.steps.values()] == [2, 1]
        assert "FAIL: test_even" in "\n".join(developer.outputs)
        assert "Steps that are complete:\n- Add the function: median.py has the function" in developer.tasks[-1]
        assert "return sum(values) / len(values)" in "\n".join(developer.outputs), "it has read the project"
        async with db.driver() as driver:
            files = {row["path"]: row["content"] for row in await driver.fetch("SELECT path, content FROM files")}
        changed = {"README.md": ADDED.encode(), "median.py": CORRECT.encode()}
        assert files.pop("project/.khala-repository.json"), "where the project is from"
        assert files == {f"project/{path}": content for path, content in (PROJECT | changed).items()}


async def approve_all(thread: Any, plan: ThreadPlan) -> None:
    """Approve the programs of the steps, as a person would who is asked."""
    while True:
        for one in (await plan.read()).plan.steps.values():
            if one.run_id is None:
                continue
            found = (await thread.http.get(f"/api/runs/{one.run_id}/approvals")).json()["items"]
            for approval in found:
                if approval["state"] == "pending":
                    path = f"/api/runs/{one.run_id}/approvals/{approval['toolCallId']}"
                    await thread.http.post(path, json={"approved": True})
        await asyncio.sleep(0.05)
