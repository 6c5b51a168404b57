"""The executor protocol: workers claim runs of remote agents, write them, and go on where others ended."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from websockets import InvalidStatus, Subprotocol
from websockets.asyncio.client import ClientConnection, connect

from khala.signals.metrics import REGISTRY
from khala.store.postgres.database import Driver
from khala.store.runs import remote_runs
from khala.store.runs.leases import Lease
from khala.workers.attached_runs import AttachedRuns
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import account, own_thread
from tests.support.in_process import InProcessServer, khala
from tests.support.remote_workers import (
    CALL,
    RESULT,
    RUNNING,
    RawRun,
    RemoteScene,
    lapse_lease,
    remote_scene,
    text,
    worker_client,
)
from tests.support.shared_server import server_fixture, shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_SECONDS = "5"

server = server_fixture(KHALA_LEASE_SECONDS=LEASE_SECONDS)


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


async def test_a_worker_claims_a_run_writes_it_and_ends_it(scene: RemoteScene) -> None:
    sent = await scene.send("Who are you?")
    (claimed,) = await scene.worker.claim()
    assert claimed["messages"][-1]["content"] == [{"type": "text", "text": "Who are you?"}]
    assert claimed["agent"]["name"] == scene.agent
    assert (claimed["runId"], claimed["nextSeq"], claimed["epoch"]) == (sent["runId"], 0, 1)
    run = RawRun(scene.worker, claimed)
    assert (await run.append(text("I am ", "far away."))).json() == {"nextSeq": 2, "nextReceipt": 0}
    assert (await run.finish()).json() == {"status": "final"}
    ended = await scene.thread.ended(run.id)
    assert (ended["status"], ended["finish"]["reason"]) == ("final", "stop")
    assert await scene.answer_text() == "I am far away."
    assert [part["kind"] for part in await scene.thread.parts(run.id)] == ["text-delta", "text-delta", "finish"]


async def test_the_servers_own_executor_leaves_the_run_to_workers(scene: RemoteScene, server: InProcessServer) -> None:
    sent = await scene.send()
    other = await own_thread(scene.who)  # A run that is queued later, and answered by the server's executor.
    answered = await other.send("/words=3")
    assert (await other.ended(answered["runId"]))["status"] == "final"
    waiting = await scene.thread.run(sent["runId"])
    assert (waiting["status"], waiting["attempt"]) == ("queued", 0)
    async with asyncio.timeout(10):
        while "waitsUntil" not in await scene.thread.run(sent["runId"]):
            await asyncio.sleep(0.05)


async def test_a_claim_waits_for_a_run(scene: RemoteScene) -> None:
    claiming = asyncio.create_task(scene.worker.claim(wait=20))
    await asyncio.sleep(0)
    assert await scene.worker.claim(wait=0) == []
    sent = await scene.send()
    (claimed,) = await claiming
    assert claimed["runId"] == sent["runId"]


async def test_a_repeated_claim_returns_the_same_runs(scene: RemoteScene) -> None:
    await scene.send()
    claim_id = str(uuid.uuid4())
    first, again = [await scene.worker.claim(claim_id=claim_id) for _ in range(2)]
    assert [(one["runId"], one["epoch"]) for one in first] == [(one["runId"], one["epoch"]) for one in again]
    assert (await RawRun(scene.worker, again[0]).append(text("once"))).status_code == 200


async def test_repeated_parts_change_nothing_and_other_parts_are_refused(scene: RemoteScene) -> None:
    run = await scene.begin()
    receipts = [{"type": "model", "usage": {"inputTokens": 5, "outputTokens": 7}, "costUsd": "0.01"}]
    parts = [*text("a"), CALL, RUNNING, RESULT, *text("b")]
    for _ in range(2):
        answer = await run.append(parts, seq=0, receipts=receipts, receiptSeq=0)
        assert answer.json() == {"nextSeq": 5, "nextReceipt": 1}
    assert (await run.append(text("b", "c"), seq=4)).json()["nextSeq"] == 6
    assert_problem(await run.append(text("x"), seq=0), 409, "conflict")
    gap = await run.append(text("x"), seq=9)
    assert assert_problem(gap, 409, "wrong_seq")["expectedSeq"] == 6
    assert_problem(await run.append(text("x"), receipts=receipts, receiptSeq=3), 409, "wrong_seq")
    assert (await run.finish()).is_success
    ended = await scene.thread.ended(run.id)
    assert (ended["finish"]["usage"], ended["finish"]["costUsd"]) == ({"inputTokens": 5, "outputTokens": 7}, "0.01")
    assert await scene.answer_text() == "abc"


async def test_an_end_can_be_repeated_and_nothing_follows_it(scene: RemoteScene) -> None:
    run = await scene.begin()
    await run.append(text("done"))
    error = {"code": "upstream", "message": "The upstream is gone."}
    seq = run.seq
    for _ in range(2):
        assert (await run.finish("failed", error=error)).json() == {"status": "error"}
    assert_problem(await run.finish("completed"), 409, "run_ended")
    assert_problem(await run.append(text("more"), seq=seq), 409, "run_ended")
    assert not (await run.heartbeat())["held"]
    assert await scene.answer_text() == "done\n\nThe upstream is gone."


async def test_another_worker_goes_on_after_the_lease_and_the_first_one_is_fenced(
    scene: RemoteScene, server: InProcessServer
) -> None:
    first = await scene.begin()
    await first.append([*text("One, "), CALL, RUNNING, RESULT])
    await lapse_lease(server, first.id)
    second = await scene.worker.claimed()
    assert (second.id, second.data["takenOver"], second.data["nextSeq"]) == (first.id, True, 5)
    assert second.data["content"][1]["output"] == {"b": 1, "a": [1.5]}
    assert second.epoch > first.epoch
    assert_problem(await first.append(text("stale")), 409, "stale_epoch")
    assert_problem(await first.finish(), 409, "stale_epoch")
    assert not (await first.heartbeat())["held"]
    await second.append(text("two."))
    await second.finish()
    assert await scene.answer_text() == "One, two."


async def test_another_process_goes_on_with_the_same_worker(scene: RemoteScene, server: InProcessServer) -> None:
    run = await scene.begin()
    await run.append([*text("One, "), CALL, RUNNING, RESULT])
    async with (
        khala(server.database_url, with_executor=False, KHALA_LEASE_SECONDS=LEASE_SECONDS) as other,
        worker_client(other, scene.token["token"]) as elsewhere,
    ):
        there = RawRun(elsewhere, run.data)
        assert (await there.append([RESULT, *text("two, ")], seq=3)).json()["nextSeq"] == 5
        assert (await run.append(text("two, ", "three."), seq=4)).json()["nextSeq"] == 6
        there.seq = 6
        await there.append(text(" Four."))
        assert (await there.finish()).json() == {"status": "final"}
        assert (await run.finish(seq=7)).json() == {"status": "final"}
    assert await scene.answer_text() == "One, two, three. Four."


async def test_a_worker_hears_of_a_cancellation(scene: RemoteScene) -> None:
    run = await scene.begin()
    await run.append(text("So far"))
    assert not (await run.heartbeat())["cancelled"]
    (await scene.thread.http.post(f"/api/runs/{run.id}/cancel")).raise_for_status()
    assert (await run.heartbeat())["cancelled"]
    assert (await run.finish("cancelled")).json() == {"status": "canceled"}
    assert (await scene.thread.ended(run.id))["status"] == "canceled"


async def test_a_run_whose_worker_ignores_a_cancellation_is_ended(scene: RemoteScene, server: InProcessServer) -> None:
    run = await scene.begin()
    (await scene.thread.http.post(f"/api/runs/{run.id}/cancel")).raise_for_status()
    await lapse_lease(server, run.id)
    assert (await scene.thread.ended(run.id))["status"] == "canceled"
    assert_problem(await run.append(text("more")), 409, "stale_epoch")


async def test_a_call_waits_for_an_approval(scene: RemoteScene) -> None:
    run = await scene.begin()
    await run.append([CALL])
    assert_problem(await run.post("approvals", seq=1, toolCallId="call_9"), 409, "conflict")
    for _ in range(2):
        assert (await run.post("approvals", seq=1, toolCallId="call_1")).json()["nextSeq"] == 2
    run.seq = 2
    assert_problem(await run.append([RUNNING]), 409, "conflict")
    assert_problem(await run.append([RESULT]), 409, "conflict")
    decided = await scene.thread.http.post(
        f"/api/runs/{run.id}/approvals/call_1", json={"approved": True, "editedArgs": {"to": "test"}}
    )
    assert decided.is_success, decided.text
    (approval,) = (await run.heartbeat())["approvals"]
    assert (approval["state"], approval["editedArgs"]) == ("approved", {"to": "test"})
    async with asyncio.timeout(10):
        while (answer := await run.append([RUNNING, RESULT], seq=2)).status_code == 409:
            await asyncio.sleep(0.05)
    assert answer.json()["nextSeq"] == 4
    assert (await run.append([RUNNING, RESULT], seq=2)).is_success
    await run.finish()
    (card,) = [block for block in (await scene.answer())["content"] if block["type"] == "tool"]
    assert (card["state"], card["args"], card["reason"]) == ("completed", {"to": "test"}, "Approved by Tassadar.")


async def test_an_approved_call_runs_although_its_process_has_not_heard_of_the_decision(
    scene: RemoteScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refresh(*_: Any) -> None:
        """As if the notification were late."""

    monkeypatch.setattr(AttachedRuns, "refresh", refresh)
    run = await scene.begin()
    await run.append([CALL])
    await run.post("approvals", seq=1, toolCallId="call_1")
    assert_problem(await run.append([RUNNING], seq=2), 409, "conflict")
    await scene.thread.http.post(f"/api/runs/{run.id}/approvals/call_1", json={"approved": True})
    assert [one["state"] for one in (await run.heartbeat())["approvals"]] == ["approved"]
    assert (await run.append([RUNNING, RESULT], seq=2)).is_success
    await run.finish()


async def test_an_approved_call_runs_although_its_process_hears_of_the_decision_in_the_request(
    scene: RemoteScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, read_held = AttachedRuns.refresh, remote_runs.read_held
    attached: list[AttachedRuns] = []

    async def late(self: AttachedRuns, _: Driver) -> None:
        attached.append(self)

    async def hear(driver: Driver, leases: Sequence[Lease]) -> dict[UUID, bool]:
        monkeypatch.setattr(remote_runs, "read_held", read_held)
        await refresh(attached[-1], driver)
        return await read_held(driver, leases)

    monkeypatch.setattr(AttachedRuns, "refresh", late)
    run = await scene.begin()
    await run.append([CALL])
    await run.post("approvals", seq=1, toolCallId="call_1")
    await scene.thread.http.post(f"/api/runs/{run.id}/approvals/call_1", json={"approved": True})
    async with asyncio.timeout(10):
        while not attached:
            await asyncio.sleep(0.02)
    monkeypatch.setattr(remote_runs, "read_held", hear)
    assert (await run.append([RUNNING, RESULT], seq=2)).is_success
    await run.finish()


async def test_a_run_that_was_given_back_waits_for_a_decision(scene: RemoteScene) -> None:
    run = await scene.begin()
    await run.append([CALL])
    await run.post("approvals", seq=1, toolCallId="call_1")
    for _ in range(2):
        assert (await run.post("release", awaits=["call_1"])).json() == {"status": "blocked"}
    assert await scene.worker.claim(wait=0) == []
    await scene.thread.http.post(f"/api/runs/{run.id}/approvals/call_1", json={"approved": False, "reason": "No."})
    again = await scene.worker.claimed()
    assert [(one["state"], one["reason"]) for one in again.data["approvals"]] == [("denied", "No.")]
    assert_problem(await run.append(text("stale")), 409, "stale_epoch")
    failed = {"kind": "tool-result", "data": RESULT["data"] | {"ok": False}}
    assert (await again.append([failed], seq=2)).is_success


async def test_a_run_over_its_budget_ends(scene: RemoteScene) -> None:
    before = ended_runs("error")
    run = await scene.begin(budget={"usd": "0.05"})
    assert (await run.append(text("a"), receipts=[{"type": "model", "costUsd": "0.04"}])).is_success
    spent = [{"type": "model", "costUsd": "9999"}]
    assert_problem(await run.append(text("b"), receiptSeq=1, receipts=spent), 429, "budget_exhausted")
    ended = await scene.thread.ended(run.id)
    assert (ended["status"], ended["finish"]["reason"], ended["finish"]["costUsd"]) == ("error", "budget", "0.05")
    assert_problem(await run.append(text("c"), seq=2), 409, "run_ended")
    assert ended_runs("error") == before + 1


def ended_runs(outcome: str) -> float:
    return REGISTRY.get_sample_value("khala_runs_ended_total", {"outcome": outcome}) or 0.0


async def test_a_run_without_a_worker_fails_in_time(postgres_url: str, template: str) -> None:
    env = {"KHALA_WORKER_WAIT_SECONDS": "1", "KHALA_LEASE_SECONDS": "1"}
    async with shared(postgres_url, template, with_executor=False, **env) as server, remote_scene(server) as scene:
        sent = await scene.send()
        ended = await scene.thread.ended(sent["runId"])
        assert ended["status"] == "error"
        (error,) = [part["data"] for part in await scene.thread.parts(sent["runId"]) if part["kind"] == "error"]
        read = (await scene.thread.http.get(f"/api/runs/{sent['runId']}", headers=scene.thread.headers)).json()
        assert read["error"]["code"] == error["code"] == "no_worker"


async def test_the_server_goes_on_with_an_agent_that_is_remote_no_longer(scene: RemoteScene) -> None:
    changed = await scene.who.http.patch(f"/api/agents/{scene.agent}", json={"executor": "server"})
    assert changed.json().get("executor") is None
    sent = await scene.send("/words=3")
    assert (await scene.thread.ended(sent["runId"]))["status"] == "final"


class WorkerSocket:
    """A worker's socket: requests by their ids, and what the server sends of itself."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.pushed: list[dict[str, Any]] = []
        self._id = 0

    async def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The result of a request, or its problem."""
        number = await self.send(kind, **fields)
        return await self.read(lambda frame: frame.get("id") == number)

    async def send(self, kind: str, **fields: Any) -> int:
        self._id += 1
        await self.connection.send(json.dumps({"type": kind, "id": self._id} | fields))
        return self._id

    async def read(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next such frame. Others are kept in `pushed`."""
        async with asyncio.timeout(10):
            while True:
                frame: dict[str, Any] = json.loads(await self.connection.recv())
                if wanted(frame):
                    return dict(frame.get("result") or frame.get("problem") or frame)
                self.pushed.append(frame)


@asynccontextmanager
async def worker_socket(server: InProcessServer, token: str) -> AsyncIterator[WorkerSocket]:
    url = server.url.replace("http", "ws", 1) + "/api/executor/ws"
    headers = {"Authorization": f"Bearer {token}"}
    async with connect(url, subprotocols=[Subprotocol("khala.executor.v1")], additional_headers=headers) as connection:
        socket = WorkerSocket(connection)
        assert (await socket.read(lambda frame: frame["type"] == "hello"))["leaseSeconds"] == float(LEASE_SECONDS)
        yield socket


async def test_a_worker_writes_over_a_socket_and_hears_of_a_cancellation_at_once(
    scene: RemoteScene, server: InProcessServer
) -> None:
    async with worker_socket(server, scene.token["token"]) as socket:
        sent = await scene.send()
        (run,) = (await socket.ask("claim", claimId=str(uuid.uuid4()), waitSeconds=5))["runs"]
        held = {"runId": run["runId"], "epoch": run["epoch"]}
        # Three requests at once are stored in their order.
        asked = [await socket.send("append", **held, seq=seq, parts=text(str(seq))) for seq in range(3)]
        answers = [await socket.read(lambda frame: frame.get("id") in asked) for _ in asked]
        assert max(answer["nextSeq"] for answer in answers) == 3
        assert (await socket.ask("append", **held, seq=9, parts=text("x")))["expectedSeq"] == 3
        assert (await socket.ask("heartbeat", runs=[held]))["runs"][0]["held"]
        (await scene.thread.http.post(f"/api/runs/{run['runId']}/cancel")).raise_for_status()
        changed = await socket.read(lambda frame: frame["type"] == "run")
        assert (changed["state"]["runId"], changed["state"]["cancelled"]) == (run["runId"], True)
        assert await socket.ask("finish", **held, seq=3, status="cancelled") == {"status": "canceled"}
    assert (await scene.thread.ended(sent["runId"]))["status"] == "canceled"
    assert await scene.answer_text() == "012"


async def test_a_socket_refuses_bad_frames_and_ends_with_its_token(scene: RemoteScene, server: InProcessServer) -> None:
    async with worker_socket(server, scene.token["token"]) as socket:
        assert (await socket.ask("append", runId=str(uuid.uuid4()), epoch=1, seq=0, parts=text("x")))["status"] == 404
        assert (await socket.ask("own", everything=True))["code"] == "invalid_input"
        await scene.who.http.delete(f"/api/tokens/{scene.token['id']}")
        assert (await socket.ask("heartbeat", runs=[]))["code"] == "unauthorized"
        await socket.send("heartbeat", runs=[])
        async with asyncio.timeout(10):
            await socket.connection.wait_closed()
    async with account(server) as who:
        url = server.url.replace("http", "ws", 1) + "/api/executor/ws"
        for headers in ({}, {"Authorization": "Bearer khala_wrong"}, dict(who.http.headers)):
            with pytest.raises(InvalidStatus):
                await connect(url, additional_headers=headers)
