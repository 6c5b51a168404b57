"""Carries out a chaos run: deployment, users and faults, then rest, then the checks of all promises."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import httpx

from tests.chaos import faults
from tests.chaos.checkers import Verdict, verdicts, views_of
from tests.chaos.deployment import Deployment, running_deployment
from tests.chaos.schedule import Schedule
from tests.chaos.users import UnexpectedResponse, User

START_TIMEOUT_SECONDS = 100.0
"""For all processes to become ready."""
REST_TIMEOUT_SECONDS = 90.0
"""For every run to end after the last fault, and for every observer to receive that."""
REST_SECONDS = 3.0
"""Time for which the deployment has to stay at rest."""
ACTIVE_PLANS = "SELECT id, thread_id, status FROM plans WHERE status <> 'stopped'"
COMMANDS = {"idle": "start", "paused": "resume", "pausing": "resume"}
"""The commands after which a plan goes on, by its status."""
ACTIVE_RUNS = "SELECT id, thread_id, status FROM runs WHERE status IN ('queued', 'running', 'blocked')"


class Result:
    """The result of a chaos run."""

    def __init__(self, deployment: Deployment, users: Sequence[User], verdicts: Sequence[Verdict]) -> None:
        self.faults = deployment.faults
        self.verdicts = verdicts
        self.sends = sum(user.sends for user in users)
        self.refused = sum(user.refused for user in users)
        self.outputs = len(deployment.model.outputs)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not any(verdict.problems for verdict in self.verdicts)


async def run(schedule: Schedule, folder: Path) -> Result:
    """Carry out the schedule; logs go to `folder`."""
    failures: list[str] = []
    async with AsyncExitStack() as stack:
        deployment = await stack.enter_async_context(running_deployment(folder))
        await stack.enter_async_context(_supervised(deployment))
        deployment.record_event("all processes are started")
        await _wait_ready(deployment)
        deployment.record_event("all processes are ready")
        users = [User(deployment, script) for script in schedule.scripts]
        for user in users:
            await user.open()
            await user.following(stack)
        deployment.began = time.monotonic()
        await _run_faults(deployment, users, schedule, failures)
        deployment.record_event("the faults have ended")
        await _wait_for_rest(deployment, users, failures)
        return Result(deployment, users, await verdicts(deployment, users, failures))


async def _run_faults(deployment: Deployment, users: Sequence[User], schedule: Schedule, failures: list[str]) -> None:
    async def act(user: User) -> None:
        try:
            await user.run_script()
        except UnexpectedResponse as error:
            failures.append(str(error))
        except Exception:
            failures.append(f"{user.name}: {traceback.format_exc()}")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(faults.inject(deployment, schedule.faults))
        for user in users:
            tasks.create_task(act(user))


@asynccontextmanager
async def _supervised(deployment: Deployment) -> AsyncIterator[None]:
    task = asyncio.create_task(deployment.supervise())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _wait_ready(deployment: Deployment) -> None:
    """Wait until all processes are ready."""
    async with asyncio.timeout(START_TIMEOUT_SECONDS), httpx.AsyncClient(trust_env=False, timeout=10) as http:
        for member in deployment.webs:
            while True:
                with suppress(httpx.HTTPError):
                    if (await http.get(f"http://127.0.0.1:{member.port}/api/health/ready")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        for member in deployment.members.values():
            while not member.is_ready():
                await asyncio.sleep(0.1)


async def _wait_for_rest(deployment: Deployment, users: Sequence[User], failures: list[str]) -> None:
    """Wait, without faults, until every run has ended and every observer has received that; answer approvals meanwhile.

    A server may still carry out requests that their clients have given up. So the deployment has to stay at rest for a
    while.
    """
    began = time.monotonic()
    rest_began: float | None = None
    while time.monotonic() < began + REST_TIMEOUT_SECONDS and (
        rest_began is None or time.monotonic() < rest_began + REST_SECONDS
    ):
        rest_began = (rest_began or time.monotonic()) if await _at_wait_for_rest(deployment, users) else None
        await asyncio.sleep(0.5)
    deployment.record_event(f"at rest after {(rest_began or time.monotonic()) - began:.1f} s")
    async with deployment.connection() as connection:
        active = [*await connection.fetch(ACTIVE_RUNS), *await connection.fetch(ACTIVE_PLANS)]
    failures += [f"run or plan {row['id']} of thread {row['thread_id']} is still {row['status']}" for row in active]


async def _at_wait_for_rest(deployment: Deployment, users: Sequence[User]) -> bool:
    """Whether all runs and plans have ended, and all observers are up to date. Approves, and resumes paused plans."""
    owners = {user.thread_id: user for user in users}
    async with deployment.connection() as connection:
        active: Sequence[asyncpg.Record] = await connection.fetch(ACTIVE_RUNS)
        plans: Sequence[asyncpg.Record] = await connection.fetch(ACTIVE_PLANS)
    for row in plans:
        if row["status"] in COMMANDS:
            with suppress(UnexpectedResponse):
                await owners[str(row["thread_id"])].command_plan(str(row["id"]), COMMANDS[row["status"]])
    for row in active:
        if row["status"] == "blocked":
            with suppress(UnexpectedResponse):
                await owners[str(row["thread_id"])].answer(str(row["id"]))
    if active or plans:
        return False
    for user in users:
        with suppress(UnexpectedResponse):
            if not any(views_of(user, await user.snapshot())):
                continue
        return False
    return True
