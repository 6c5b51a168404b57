"""Isolated runs: a run that has lost executors is executed in a process of its own, where it affects no other run."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support import postgres
from tests.support.agents import act, call, rules
from tests.support.client import Thread, text_of
from tests.support.observed_run import assert_verified, notices, numbered
from tests.support.poison import HARMLESS, POISONED
from tests.support.ports import free_port
from tests.support.server import Server, Worker, ended

LEASE = 1.5
WATCHDOG = 5.0
EXIT_CODE = 14
"""Of a process that the watchdog ended, as the documents promise."""
INTERRUPTED = "The answer was interrupted too often. Please try again."
COMMAND = "execute-run"
PROMPTLY = 60.0

pytestmark = pytest.mark.timeout(240)


class Stage:
    """An API server without executors, and workers that messages can harm."""

    def __init__(self, http: httpx.AsyncClient, database_url: str, folder: Path, env: dict[str, str]) -> None:
        self.http = http
        self.workers: list[Worker] = []
        self.exits: list[int] = []
        """The exit codes of restarted workers."""
        self._database_url = database_url
        self._folder = folder
        self._env = env

    async def start_worker(self) -> Worker:
        """Start another worker, and wait until it is ready."""
        metrics = {"KHALA_METRICS": f"127.0.0.1:{free_port()}"}
        worker = Worker(self._folder / f"worker{len(self.workers)}.log", self._env | metrics)
        self.workers.append(worker)
        await asyncio.to_thread(worker.start)
        await asyncio.to_thread(worker.wait_for, "Khala works as")
        return worker

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Restart workers that end, as an operator's units do, while the context is open."""
        watching = asyncio.create_task(self._supervise())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})

    async def _supervise(self) -> None:
        while True:
            for worker in self.workers:
                if (code := worker.ended_with()) is not None:
                    self.exits.append(code)
                    await asyncio.to_thread(worker.start)
            await asyncio.sleep(0.1)

    async def thread(self) -> Thread:
        return await Thread.create(self.http)

    async def lost(self, times: int) -> None:
        """Set the count of lost executors of every run; only before there are workers."""
        assert not self.workers
        await postgres.execute(self._database_url, f"UPDATE runs SET lost = {times}")

    async def child(self) -> psutil.Process:
        """The child process of an isolated run, once it executes the run and all workers run again."""
        await until(self._is_isolated)
        return self.children()[0]

    async def replaced(self, times: int) -> None:
        """Wait until so many workers have ended and all run again. A held one may end after the child has begun."""

        async def all_run() -> bool:
            return len(self.exits) >= times and all(worker.running() for worker in self.workers)

        await until(all_run)

    async def _is_isolated(self) -> bool:
        return bool(self.children()) and all(worker.running() for worker in self.workers)

    def children(self) -> list[psutil.Process]:
        """The child processes of isolated runs."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                found += [process for process in psutil.Process(worker.pid).children() if executes(process)]
        return found

    async def metric(self, name: str) -> float:
        """A metric of the first worker; 0 if it was never counted."""
        async with httpx.AsyncClient(timeout=10) as http:
            text = (await http.get(f"http://{self.workers[0].env['KHALA_METRICS']}/metrics")).raise_for_status().text
        return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)), 0.0)

    def logs(self) -> str:
        return "".join(worker.log.read_text() for worker in self.workers)


def executes(process: psutil.Process) -> bool:
    """Whether this process executes an isolated run."""
    with suppress(psutil.NoSuchProcess):
        return COMMAND in process.cmdline()
    return False


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = PROMPTLY) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.05)


async def until_gone(process: psutil.Process, *, within: float = 10.0) -> None:
    """Wait until the process ends."""

    async def is_gone() -> bool:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE

    await until(is_gone, within=within)


async def message_of(thread: Thread, sent: dict[str, str]) -> dict[str, object]:
    return next(
        message for message in (await thread.snapshot())["messages"] if message["id"] == sent["assistantMessageId"]
    )


async def until_begun(thread: Thread, sent: dict[str, str]) -> None:
    """Wait until the answer has text."""

    async def has_text() -> bool:
        return bool(await thread.parts(sent["runId"]))

    await until(has_text)


@pytest.fixture
def watchdog() -> float:
    """The watchdog's timeout in seconds."""
    return WATCHDOG


@pytest.fixture
async def stage(database_url: str, tmp_path: Path, watchdog: float) -> AsyncIterator[Stage]:
    env = POISONED | {
        "DATABASE_URL": database_url,
        "KHALA_HOME": str(tmp_path / "home"),
        "KHALA_MODEL": "demo",
        "KHALA_LEASE_SECONDS": str(LEASE),
        "KHALA_WATCHDOG_SECONDS": str(watchdog),
        "KHALA_GRACE_SECONDS": "0",
        "KHALA_COOLDOWN_MS": "0",
    }
    server = Server(tmp_path / "server.log", env | HARMLESS, "--no-executor")
    with ended(server):
        server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            stage = Stage(http, database_url, tmp_path, env)
            try:
                yield stage
            finally:
                children = stage.children()
                with ended(*stage.workers):
                    pass
                for child in children:
                    await until_gone(child)
    assert_verified({"DATABASE_URL": database_url})
    assert not [line for process in (server, *stage.workers) for line in process.crashes()]


@pytest.mark.parametrize("poison", ["/hold", "/die"])
async def test_a_run_that_kills_its_executors_is_ended_in_a_child_process_and_others_finish(
    stage: Stage, poison: str
) -> None:
    await stage.start_worker()
    await stage.start_worker()
    threads = [await stage.thread() for _ in range(3)]
    async with stage.supervised():
        others = [(thread, await thread.send("/words=120 /pace=10")) for thread in threads]
        for thread, sent in others:
            await until_begun(thread, sent)
        bad = await stage.thread()
        sent = await bad.send(f"{poison} /words=3")
        await stage.child()
        await stage.replaced(2)
        pids = {worker.pid for worker in stage.workers}
        late = await stage.thread()
        late_sent = await late.send("/words=20 /pace=20")
        run = await bad.ended(sent["runId"], within=90)
        assert (run["status"], run["finish"]["reason"]) == ("error", "error")
        assert text_of(await message_of(bad, sent)) == INTERRUPTED
        assert len(stage.exits) == 2
        assert set(stage.exits) == {EXIT_CODE if poison == "/hold" else 7}
        # Its third process executed no other run.
        assert {worker.pid for worker in stage.workers} == pids
        assert (await late.ended(late_sent["runId"], within=90))["status"] == "final"
        assert notices(await message_of(late, late_sent)) == []
        for thread, other in others:
            assert (await thread.ended(other["runId"], within=120))["status"] == "final"
            assert text_of(await message_of(thread, other)) == numbered(120)
        assert len(stage.exits) == 2
    assert '"verdict": "interrupted"' in stage.logs()
    if poison == "/hold":
        assert stage.logs().count('watchdog_ended_process"') == 3


async def test_a_harmless_isolated_run_is_answered_and_the_next_one_is_not_isolated(stage: Stage) -> None:
    thread = await stage.thread()
    sent = await thread.send("/words=30 /pace=20")
    await stage.lost(2)
    worker = await stage.start_worker()
    child = await stage.child()
    run = await thread.ended(sent["runId"])
    assert (run["status"], run["attempt"]) == ("final", 1)
    message = await message_of(thread, sent)
    assert (text_of(message), notices(message)) == (numbered(30), [])
    await until_gone(child)
    async with asyncio.timeout(10):
        while not await stage.metric('khala_isolated_runs_ended_total{outcome="done"}'):
            await asyncio.sleep(0.05)
    assert await stage.metric('khala_runs_ended_total{outcome="final"}') == 1
    again = await thread.send("/words=3")
    await thread.ended(again["runId"])
    assert worker.log.read_text().count("isolated_run_started") == 1
    assert await stage.metric('khala_runs_claimed_total{taken_over="no"}') == 2


async def test_isolated_runs_take_turns_and_delay_no_other_run(stage: Stage) -> None:
    suspects = [await stage.thread() for _ in range(4)]
    sends = [(thread, await thread.send("/words=20 /pace=10")) for thread in suspects]
    await stage.lost(2)
    await stage.start_worker()
    await stage.child()
    innocent = await stage.thread()
    sent = await innocent.send("/words=3")
    await innocent.ended(sent["runId"])
    most = 0

    async def all_ended() -> bool:
        nonlocal most
        most = max(most, len(stage.children()))
        return all([(await thread.run(sent["runId"]))["status"] == "final" for thread, sent in sends])

    await until(all_ended)
    assert most == 2


@pytest.mark.parametrize("watchdog", [0.0])
async def test_an_isolated_run_is_canceled_even_where_it_hangs(stage: Stage) -> None:
    calm, frozen = await stage.thread(), await stage.thread()
    calm_sent = await calm.send("/words=3 /hang=3")
    sent = await frozen.send("/sleep")
    await stage.lost(2)
    await stage.start_worker()
    await until_begun(calm, calm_sent)
    await until_hanging(stage)
    children = stage.children()
    assert len(children) == 2
    for thread, response in ((calm, calm_sent), (frozen, sent)):
        answer = await thread.http.post(f"/api/runs/{response['runId']}/cancel", headers=thread.headers)
        assert answer.status_code == 202
    for thread, response in ((calm, calm_sent), (frozen, sent)):
        assert (await thread.ended(response["runId"]))["status"] == "canceled"
    for child in children:
        await until_gone(child)
    assert stage.workers[0].log.read_text().count('"verdict": "cancel"') == 1


async def until_hanging(stage: Stage) -> None:
    """Wait until a child process has logged that it hangs."""

    async def hangs() -> bool:
        return "poison: /sleep" in stage.workers[0].log.read_text()

    await until(hangs)


async def test_an_isolated_run_waits_for_approval_and_continues_after_it(stage: Stage) -> None:
    thread = await stage.thread()
    await rules(thread, _all="ask")
    agent = await act(thread, f"{call('todo_add', text='x')} /say Finished.")
    await stage.lost(2)
    worker = await stage.start_worker()
    (card,) = await agent.until("blocked", within=PROMPTLY)
    assert (await agent.decide(card["toolCallId"], approved=True)).status_code == 200
    run = await agent.ended(within=PROMPTLY)
    assert run["status"] == "final"
    assert (await agent.text()).endswith("Finished.")
    assert worker.log.read_text().count("isolated_run_started") >= 1


async def test_an_isolated_run_is_handed_over_when_its_worker_is_to_stop(stage: Stage) -> None:
    thread = await stage.thread()
    sent = await thread.send("/words=60 /pace=10")
    await stage.lost(2)
    worker = await stage.start_worker()
    await until_begun(thread, sent)
    child = await stage.child()
    assert worker.kill(signal.SIGTERM) == 0
    await until_gone(child)
    assert (await thread.run(sent["runId"]))["status"] == "queued"
    await stage.start_worker()
    run = await thread.ended(sent["runId"], within=PROMPTLY)
    assert (run["status"], run["attempt"]) == ("final", 2)
    message = await message_of(thread, sent)
    assert (text_of(message), notices(message)) == (numbered(60), ["resumed"])


async def test_a_killed_worker_ends_its_child_process_and_the_run_counts_no_loss(stage: Stage) -> None:
    thread = await stage.thread()
    sent = await thread.send("/words=60 /pace=10")
    await stage.lost(2)
    worker = await stage.start_worker()
    await until_begun(thread, sent)
    child = await stage.child()
    worker.kill()
    await until_gone(child, within=2)
    await stage.start_worker()
    run = await thread.ended(sent["runId"], within=PROMPTLY)
    assert (run["status"], run["attempt"]) == ("final", 2)
    assert text_of(await message_of(thread, sent)) == numbered(60)


async def test_an_isolated_run_that_exhausts_memory_ends_and_its_worker_stays(stage: Stage) -> None:
    thread = await stage.thread()
    sent = await thread.send("/eat")
    await stage.lost(2)
    worker = await stage.start_worker()
    before = worker.pid
    run = await thread.ended(sent["runId"], within=PROMPTLY)
    assert run["status"] == "error"
    assert worker.running()
    assert worker.pid == before
    worker.log.write_text(worker.log.read_text().replace("model_turn_crashed", "turn ended by MemoryError"))
