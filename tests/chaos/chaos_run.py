"""A chaos run from beginning to end: the world, its users, the faults, the rest, and the verdicts."""

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
from tests.chaos.schedule import Schedule
from tests.chaos.users import Refused, User
from tests.chaos.world import World, world

UP = 100.0
"""Seconds that all processes have to be at work in the beginning."""
REST = 90.0
"""Seconds after the last fault in which every run has to end, and every observer to know."""
QUIET = 3.0
"""Seconds for which all has to be at rest."""
ACTIVE = "SELECT id, thread_id, status FROM runs WHERE status IN ('queued', 'running', 'blocked')"


class Result:
    """What a run came to."""

    def __init__(self, made: World, users: Sequence[User], found: Sequence[Verdict]) -> None:
        self.faults = made.faults
        self.verdicts = found
        self.asked = sum(user.asked for user in users)
        self.refused = sum(user.refused for user in users)
        self.productions = len(made.model.productions)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not any(one.problems for one in self.verdicts)


async def run(schedule: Schedule, folder: Path) -> Result:
    """Carry the schedule out; logs go to `folder`."""
    failures: list[str] = []
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(world(folder))
        await stack.enter_async_context(_supervised(made))
        made.told("all is started")
        await _up(made)
        made.told("all are at work")
        users = [User(made, script) for script in schedule.scripts]
        for user in users:
            await user.open()
            await user.following(stack)
        made.began = time.monotonic()
        await _storm(made, users, schedule, failures)
        made.told("the faults are over")
        await _rest(made, users, failures)
        return Result(made, users, await verdicts(made, users, failures))


async def _storm(made: World, users: Sequence[User], schedule: Schedule, failures: list[str]) -> None:
    async def guarded(user: User) -> None:
        try:
            await user.live()
        except Refused as error:
            failures.append(str(error))
        except Exception:
            failures.append(f"{user.name}: {traceback.format_exc()}")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(faults.all_of(made, schedule.faults))
        for user in users:
            tasks.create_task(guarded(user))


@asynccontextmanager
async def _supervised(made: World) -> AsyncIterator[None]:
    task = asyncio.create_task(made.watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _up(made: World) -> None:
    """Once all processes are at work."""
    async with asyncio.timeout(UP), httpx.AsyncClient(trust_env=False, timeout=10) as http:
        for member in made.webs:
            while True:
                with suppress(httpx.HTTPError):
                    if (await http.get(f"http://127.0.0.1:{member.port}/api/health/ready")).status_code == 200:
                        break
                await asyncio.sleep(0.1)
        for member in made.members.values():
            while not member.at_work():
                await asyncio.sleep(0.1)


async def _rest(made: World, users: Sequence[User], failures: list[str]) -> None:
    """Nothing goes wrong any more: every run ends, questions are answered, and every observer hears of it.

    Requests that their clients have given up may still be carried out, by a server that had no time for them until now:
    so it must stay at rest for a while.
    """
    began = time.monotonic()
    quiet: float | None = None
    while time.monotonic() < began + REST and (quiet is None or time.monotonic() < quiet + QUIET):
        quiet = (quiet or time.monotonic()) if await _at_rest(made, users) else None
        await asyncio.sleep(0.5)
    made.told(f"at rest after {(quiet or time.monotonic()) - began:.1f} s")
    async with made.connection() as connection:
        left = await connection.fetch(ACTIVE)
    failures += [f"run {row['id']} of thread {row['thread_id']} is still {row['status']}" for row in left]


async def _at_rest(made: World, users: Sequence[User]) -> bool:
    """Whether all runs have ended, and all observers know; answers what is asked."""
    owners = {user.thread_id: user for user in users}
    async with made.connection() as connection:
        active: Sequence[asyncpg.Record] = await connection.fetch(ACTIVE)
    for row in active:
        if row["status"] == "blocked":
            with suppress(Refused):
                await owners[str(row["thread_id"])].answer(str(row["id"]))
    if active:
        return False
    for user in users:
        with suppress(Refused):
            if not any(views_of(user, await user.snapshot())):
                continue
        return False
    return True
