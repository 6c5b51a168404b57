"""Remote agents, the tokens of their workers, and a worker that sends what a test tells it to."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from khala.store.postgres.database import Database
from khala_client.worker import RunContext, Worker
from tests.support.account_with_data import Account, account, own_thread
from tests.support.client import Thread, client, text_of
from tests.support.in_process import InProcessServer

CALL = {"kind": "tool-call", "data": {"toolCallId": "call_1", "step": 1, "tool": "deploy", "args": {"to": "prod"}}}
RUNNING = {"kind": "tool-status", "data": {"toolCallId": "call_1", "state": "running"}}
RESULT: dict[str, Any] = {
    "kind": "tool-result",
    "data": {"toolCallId": "call_1", "ok": True, "summary": "done", "durationMs": 3, "output": {"b": 1, "a": [1.5]}},
}
"""The parts of one tool call, in their order."""


async def create_agent(who: Account, name: str, **fields: Any) -> dict[str, Any]:
    """A remote agent of the account."""
    body = {"name": name, "title": name, "executor": "remote"} | fields
    return dict((await who.http.post("/api/agents", json=body)).raise_for_status().json())


async def create_token(who: Account, *agents: str) -> dict[str, Any]:
    """A worker's token for these agents."""
    body = {"name": "worker", "scopes": ["execute"], "agents": list(agents)}
    return dict((await who.http.post("/api/tokens", json=body)).raise_for_status().json())


def text(*texts: str) -> list[dict[str, Any]]:
    """Parts with these texts."""
    return [{"kind": "text-delta", "data": {"text": one}} for one in texts]


class RawWorker:
    """A worker that sends single requests."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self.http.post(f"/api/executor/{path}", json=body)

    async def claim(self, *, wait: float = 5, claim_id: str = "", **more: Any) -> list[dict[str, Any]]:
        body = {"claimId": claim_id or str(uuid.uuid4()), "waitSeconds": wait} | more
        return list((await self.post("claim", body)).raise_for_status().json().get("runs", []))

    async def claimed(self, **more: Any) -> "RawRun":
        """Claim one run, which must be there."""
        (run,) = await self.claim(**more)
        return RawRun(self, run)


class RawRun:
    """A run that a raw worker has claimed."""

    def __init__(self, worker: RawWorker, run: dict[str, Any]) -> None:
        self.worker = worker
        self.data = run
        self.id: str = run["runId"]
        self.epoch: int = run["epoch"]
        self.seq: int = run["nextSeq"]

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.worker.post(f"runs/{self.id}/{path}", {"epoch": self.epoch} | body)

    async def append(self, parts: Sequence[dict[str, Any]], *, seq: int | None = None, **more: Any) -> httpx.Response:
        """Append parts, by default at the next seq."""
        answer = await self.post("parts", seq=self.seq if seq is None else seq, parts=list(parts), **more)
        if answer.is_success:
            self.seq = answer.json()["nextSeq"]
        return answer

    async def finish(self, status: str = "completed", **more: Any) -> httpx.Response:
        return await self.post("finish", **({"seq": self.seq, "status": status} | more))

    async def heartbeat(self) -> dict[str, Any]:
        body = {"runs": [{"runId": self.id, "epoch": self.epoch}]}
        (state,) = (await self.worker.post("heartbeat", body)).raise_for_status().json()["runs"]
        return dict(state)


class RemoteScene:
    """An account with a remote agent of an own name, its thread and its worker."""

    def __init__(self, who: Account, agent: str, thread: Thread, worker: RawWorker, token: dict[str, Any]) -> None:
        self.who = who
        self.agent = agent
        self.thread = thread
        self.worker = worker
        self.token = token

    async def send(self, message: str = "Hello", **options: Any) -> dict[str, Any]:
        """Send a message to the agent."""
        return await self.thread.send(message, options={"agent": self.agent} | options)

    async def answer(self) -> dict[str, Any]:
        """The thread's last message."""
        return dict((await self.thread.snapshot())["messages"][-1])

    async def answer_text(self) -> str:
        """The text of the thread's last message."""
        return text_of(await self.answer())

    async def begin(self, message: str = "Hello", **options: Any) -> RawRun:
        """Send a message to the agent, and claim its run."""
        sent = await self.send(message, **options)
        run = await self.worker.claimed()
        assert run.id == sent["runId"]
        return run


@asynccontextmanager
async def worker_client(server: InProcessServer, secret: str) -> AsyncIterator[RawWorker]:
    """A worker with this token."""
    async with client(server.url, headers={"Authorization": f"Bearer {secret}"}) as http:
        yield RawWorker(http)


@asynccontextmanager
async def remote_scene(server: InProcessServer, **fields: Any) -> AsyncIterator[RemoteScene]:
    """A new account with a remote agent and a worker."""
    async with account(server) as who:
        agent = f"agent-{uuid.uuid4().hex[:8]}"
        await create_agent(who, agent, **fields)
        token = await create_token(who, agent)
        async with worker_client(server, token["token"]) as worker:
            yield RemoteScene(who, agent, await own_thread(who), worker, token)


@asynccontextmanager
async def working(
    scene: RemoteScene, server: InProcessServer, function: Callable[[RunContext], Awaitable[None]], **options: Any
) -> AsyncIterator[Worker]:
    """A worker whose runs of the scene's agent are executed by this function."""
    worker = Worker(server.url, scene.token["token"], grace_seconds=0, **options)
    worker.agent(scene.agent)(function)
    async with running(worker):
        yield worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Run the worker for as long as this is open."""
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await task


async def lapse_lease(server: InProcessServer, run_id: str) -> None:
    """As if the worker had sent no heartbeat for the time of a lease, and had no other run to claim."""
    db = Database(server.database_url)
    async with db.driver() as driver:
        await driver.execute(
            "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE id = $1", uuid.UUID(run_id)
        )
        await driver.execute("NOTIFY khala_runs")
    await db.close()
