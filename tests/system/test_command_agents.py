"""Executors that are killed while commands run: no process is left, and nothing is repeated."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from khala.domain import ids
from tests.support.agents import Agent
from tests.support.client import Thread
from tests.support.command_agents import with_mark, write_commands
from tests.support.server import Server, Worker, ended

LEASE = 1.5
PROMPTLY = 60.0


@pytest.fixture
def mark() -> str:
    """A part of the command line of all commands."""
    return ids.new().hex


@pytest.fixture
async def stage(database_url: str, tmp_path: Path, mark: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[Worker]]]:
    """An API server without executors, and two executors, of which one is started."""
    config = write_commands(tmp_path, "hang", mark=mark)
    env = {
        "DATABASE_URL": database_url, "KHALA_MODEL": "demo", "KHALA_LEASE_SECONDS": str(LEASE),
        "KHALA_GRACE_SECONDS": "0", "KHALA_COMMANDS": str(config),
    }  # fmt: skip
    server = Server(tmp_path / "server.log", env, "--no-executor")
    workers = [Worker(tmp_path / f"worker{number}.log", env) for number in range(2)]
    with ended(server, *workers):
        server.start()
        workers[0].start()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            yield http, workers


async def hanging(http: httpx.AsyncClient, mark: str) -> Agent:
    """A run whose command hangs, ignores SIGTERM, and has made a daemon."""
    thread = await Thread.create(http)
    agent = Agent(thread, await thread.send("Hi", options={"agent": "command:hang"}))
    async with asyncio.timeout(PROMPTLY):
        while (await agent.text()).count("hanging") < 2:
            await asyncio.sleep(0.05)
    assert len(with_mark(mark)) >= 3  # the supervisor, the command, the daemon
    return agent


async def assert_interrupted(agent: Agent, mark: str) -> None:
    """The run ends with an error, its process is gone, and was not started again."""
    assert (await agent.ended(within=PROMPTLY))["status"] == "error"
    assert [error["code"] for error in await agent.parts("error")] == ["interrupted"]
    assert await agent.states() == ["cancelled"]
    assert (await agent.text()).count("hanging") == 2  # of the command and of its daemon
    async with asyncio.timeout(PROMPTLY):
        while with_mark(mark):
            await asyncio.sleep(0.05)


async def test_no_process_is_left_of_a_command_whose_executor_was_killed(
    stage: tuple[httpx.AsyncClient, list[Worker]], mark: str
) -> None:
    http, (first, second) = stage
    agent = await hanging(http, mark)
    first.kill()
    async with asyncio.timeout(PROMPTLY):
        while with_mark(mark):
            await asyncio.sleep(0.05)
    second.start()
    await assert_interrupted(agent, mark)


async def test_a_command_whose_executor_shuts_down_is_ended_and_not_continued(
    stage: tuple[httpx.AsyncClient, list[Worker]], mark: str
) -> None:
    http, (first, second) = stage
    agent = await hanging(http, mark)
    first.kill(15)
    assert not with_mark(mark)
    second.start()
    await assert_interrupted(agent, mark)
