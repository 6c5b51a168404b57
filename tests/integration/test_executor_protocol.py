"""The executor protocol: workers claim runs of remote agents, write them, and go on where others ended."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets import InvalidStatus, Subprotocol
from websockets.asyncio.client import ClientConnection, connect

from khala.api.executor import blobs as executor_blobs
from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.signals.metrics import REGISTRY
from khala.store.blobs import blobs as stored_blobs
from khala.store.postgres.database import Database
from khala.workers.attached_runs import AttachedRuns
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import account, own_thread, upload
from tests.support.client import text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.remote_workers import (
    RawRun,
    RemoteScene,
    create_agent,
    create_token,
    remote_scene,
    text,
    worker_client,
)
from tests.support.shared_server import shared

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_SECONDS = "1"
CALL = {"kind": "tool-call", "data": {"toolCallId": "call_1", "step": 1, "tool": "deploy", "args": {"to": "prod"}}}
RUNNING = {"kind": "tool-status", "data": {"toolCallId": "call_1", "state": "running"}}
RESULT: dict[str, Any] = {
    "kind": "tool-result",
    "data": {"toolCallId": "call_1", "ok": True, "summary": "done", "durationMs": 3, "output": {"b": 1, "a": [1.5]}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    async with shared(postgres_url, template, KHALA_LEASE_SECONDS=LEASE_SECONDS) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


async def answer_of(scene: RemoteScene) -> dict[str, Any]:
    return dict((await scene.thread.snapshot())["messages"][-1])


async def set_lease_lapsed(server: InProcessServer, run: RawRun) -> None:
    """As if the worker had sent no heartbeat for the time of a lease."""
    db = Database(server.database_url)
    async with db.driver() as driver:
        await driver.execute(
            "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE id = $1", uuid.UUID(run.id)
        )
    await db.close()


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
    assert text_of(await answer_of(scene)) == "I am far away."
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
    assert text_of(await answer_of(scene)) == "abc"


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
    assert text_of(await answer_of(scene)) == "done\n\nThe upstream is gone."


async def test_another_worker_goes_on_after_the_lease_and_the_first_one_is_fenced(
    scene: RemoteScene, server: InProcessServer
) -> None:
    first = await scene.begin()
    await first.append([*text("One, "), CALL, RUNNING, RESULT])
    await set_lease_lapsed(server, first)
    second = await scene.worker.claimed()
    assert (second.id, second.data["takenOver"], second.data["nextSeq"]) == (first.id, True, 5)
    assert second.data["content"][1]["output"] == {"b": 1, "a": [1.5]}
    assert second.epoch > first.epoch
    assert_problem(await first.append(text("stale")), 409, "stale_epoch")
    assert_problem(await first.finish(), 409, "stale_epoch")
    assert not (await first.heartbeat())["held"]
    await second.append(text("two."))
    await second.finish()
    assert text_of(await answer_of(scene)) == "One, two."


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
    assert text_of(await answer_of(scene)) == "One, two, three. Four."


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
    await set_lease_lapsed(server, run)
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
    (card,) = [block for block in (await answer_of(scene))["content"] if block["type"] == "tool"]
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
    env = {"KHALA_WORKER_WAIT_SECONDS": "1", "KHALA_LEASE_SECONDS": LEASE_SECONDS}
    async with shared(postgres_url, template, with_executor=False, **env) as server, remote_scene(server) as scene:
        sent = await scene.send()
        ended = await scene.thread.ended(sent["runId"])
        assert ended["status"] == "error"
        (error,) = [part["data"] for part in await scene.thread.parts(sent["runId"]) if part["kind"] == "error"]
        read = (await scene.thread.http.get(f"/api/runs/{sent['runId']}", headers=scene.thread.headers)).json()
        assert read["error"]["code"] == error["code"] == "no_worker"


FORBIDDEN_PARTS: list[tuple[dict[str, Any], int]] = [
    ({"kind": "finish", "data": {"reason": "stop", "usage": {}}}, 400),
    ({"kind": "error", "data": {"code": "x", "message": "x"}}, 400),
    ({"kind": "memory", "data": {"memories": []}}, 400),
    ({"kind": "route", "data": {"agent": "x", "confidence": 1, "alternatives": [], "why": ""}}, 400),
    ({"kind": "compaction", "data": {"summary": "Forget all."}}, 400),
    ({"kind": "message", "data": {"role": "user", "text": "I never said that."}}, 400),
    ({"kind": "text-delta", "data": {"text": ""}}, 400),
    ({"kind": "text-delta", "data": {"text": 5}}, 400),
    ({"kind": "text-delta", "data": {"text": "a", "seq": 7}}, 400),
    ({"kind": "text-delta", "data": {"text": "a" * 4096}}, 413),
    ({"kind": "reasoning-delta", "data": {"text": "hm"}}, 400),
    ({"kind": "tool-status", "data": {"toolCallId": "call_1", "state": "blocked", "digest": "0"}}, 400),
    ({"kind": "tool-status", "data": {"toolCallId": "call_9", "state": "running"}}, 409),
    ({"kind": "tool-result", "data": RESULT["data"] | {"toolCallId": "call_9"}}, 409),
    ({"kind": "tool-result", "data": RESULT["data"] | {"durationMs": -1}}, 400),
    (
        {
            "kind": "tool-call",
            "data": {
                "toolCallId": "c", "step": 1, "tool": "read",
                "argsBlob": {"blobId": str(uuid.uuid4()), "size": 1, "sha256": "0", "mediaType": "text/plain"},
            },
        },
        400,
    ),
    ({"kind": "tool-call", "data": {"toolCallId": "c", "step": 1, "tool": "../etc"}}, 400),
    ({"kind": "step", "data": {"step": 1, "maxSteps": 1, "toolCount": 0, "costUsd": "-5"}}, 400),
]  # fmt: skip


async def test_a_worker_cannot_write_what_the_server_decides(scene: RemoteScene) -> None:
    run = await scene.begin()
    for part, status in FORBIDDEN_PARTS:
        refused = await run.append([*text("with it"), part])
        assert refused.status_code == status, (part, refused.text)
    for receipt in ({"costUsd": "-1"}, {"costUsd": "1e9"}, {"usage": {"inputTokens": -5, "outputTokens": 0}}):
        refused = await run.append(text("x"), receipts=[{"type": "model"} | receipt])
        assert refused.status_code == 400, refused.text
    assert (await run.append(text("Only this."))).json()["nextSeq"] == 1
    await run.finish()
    assert text_of(await answer_of(scene)) == "Only this."


async def test_a_lying_worker_changes_no_other_run(scene: RemoteScene, server: InProcessServer) -> None:
    run = await scene.begin()
    await run.append(text("mine"))
    async with remote_scene(server) as other:
        theirs = await other.begin()
        for stranger in (RawRun(other.worker, run.data), RawRun(scene.worker, theirs.data)):
            assert_problem(await stranger.append(text("x")), 404, "run_not_found")
            assert_problem(await stranger.finish(), 404, "run_not_found")
            assert_problem(await stranger.post("release"), 404, "run_not_found")
            assert not (await stranger.heartbeat())["held"]
        claim = {"claimId": str(uuid.uuid4()), "agents": [scene.agent]}
        assert_problem(await other.worker.post("claim", claim), 403, "forbidden")
    # Another worker with a token of its own for the same agent.
    token = await create_token(scene.who, scene.agent)
    async with worker_client(server, token["token"]) as second:
        stranger = RawRun(second, run.data)
        assert_problem(await stranger.append(text("x")), 409, "stale_epoch")
        assert not (await stranger.heartbeat())["held"]
    run.epoch += 1
    assert_problem(await run.append(text("x")), 409, "stale_epoch")
    assert not (await run.heartbeat())["held"]
    run.epoch -= 1
    assert (await run.append(text(" alone"))).json()["nextSeq"] == 2
    built_in = await own_thread(scene.who)
    sent = await built_in.send("/words=3")
    stranger = RawRun(scene.worker, {"runId": sent["runId"], "epoch": 1, "nextSeq": 0})
    assert_problem(await stranger.append(text("x")), 404, "run_not_found")


async def store(run: RawRun, content: bytes, name: str | None = None, **params: Any) -> httpx.Response:
    """Store a blob of the run."""
    query = {"epoch": run.epoch} | ({} if name is None else {"name": name}) | params
    headers = {"Content-Type": "application/json"}
    return await run.worker.http.post(
        f"/api/executor/runs/{run.id}/blobs", content=content, params=query, headers=headers
    )


async def test_a_blob_of_a_run_is_stored_once_and_parts_refer_to_it(
    scene: RemoteScene, server: InProcessServer
) -> None:
    run = await scene.begin()
    first, again = [(await store(run, b'{"to": "prod"}', "a.json")).json() for _ in range(2)]
    assert first == again
    assert (first["size"], first["mediaType"], first["name"]) == (14, "application/json", "a.json")
    other = (await store(run, b'{"to": "prod"}')).json()
    assert other["blobId"] != first["blobId"]
    call = {"kind": "tool-call", "data": {"toolCallId": "call_1", "step": 1, "tool": "deploy", "argsBlob": other}}
    result = {"toolCallId": "call_1", "ok": True, "summary": "done", "durationMs": 3, "blob": first}
    for broken in (first | {"size": 15}, first | {"blobId": str(uuid.uuid4())}):
        refused = await run.append([call, {"kind": "tool-result", "data": result | {"blob": broken}}])
        assert_problem(refused, 400, "invalid_input")
    for _ in range(2):
        assert (await run.append([call], seq=0)).json()["nextSeq"] == 1
    assert (await run.post("approvals", seq=1, toolCallId="call_1")).is_success
    asked = await scene.thread.http.get(f"/api/runs/{run.id}/approvals")
    assert [one["args"] for one in asked.json()["items"]] == [{"to": "prod"}]
    await scene.thread.http.post(f"/api/runs/{run.id}/approvals/call_1", json={"approved": True})
    for _ in range(2):
        stored = await run.append([RUNNING, {"kind": "tool-result", "data": result}], seq=2)
        assert stored.json()["nextSeq"] == 4, stored.text
    await run.finish()
    assert_problem(await store(run, b"late"), 409, "run_ended")
    (card,) = [block for block in (await answer_of(scene))["content"] if block["type"] == "tool"]
    assert (card["blob"], card["argsBlob"]) == (first, other)


async def test_arguments_in_a_blob_have_the_rules_of_those_in_a_part(scene: RemoteScene) -> None:
    run = await scene.begin()
    deep = [b'{"a":' * depth + b'"\\u0000"' + b"}" * depth for depth in (31, 32)]
    blobs = [(await store(run, content)).json() for content in deep]
    calls = [
        {"kind": "tool-call", "data": {"toolCallId": f"call_{number}", "step": 1, "tool": "deploy", "argsBlob": blob}}
        for number, blob in enumerate(blobs)
    ]
    assert (await run.append(calls)).is_success
    assert_problem(await run.post("approvals", seq=2, toolCallId="call_1"), 409, "conflict")
    assert (await run.post("approvals", seq=2, toolCallId="call_0")).is_success
    asked = await scene.thread.http.get(f"/api/runs/{run.id}/approvals")
    assert json.dumps(asked.json()["items"][0]["args"], separators=(",", ":")) == deep[0].decode().replace(
        "\\u0000", "\\ufffd"
    )


def never(*_: Any, **__: Any) -> None:
    raise AssertionError("The body was read or stored.")


async def test_blobs_of_runs_are_fenced_and_bounded(
    scene: RemoteScene, server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await scene.begin()
    path = f"/api/executor/runs/{run.id}/blobs"
    waiting = await upload(scene.thread, b"I wait for a message.", "text/plain", "waits.txt")
    mine = (await store(run, b"0123456789")).json()["blobId"]
    async with remote_scene(server) as other:
        theirs = (await store(await other.begin(), b"theirs")).json()["blobId"]
        read = await scene.worker.http.get(f"{path}/{mine}", params={"epoch": 1}, headers={"Range": "bytes=2-4"})
        assert (read.status_code, read.content) == (206, b"234")
        for blob in (waiting, theirs, str(uuid.uuid4())):
            refused = await scene.worker.http.get(f"{path}/{blob}", params={"epoch": 1})
            assert_problem(refused, 404, "blob_not_found")
        stranger = RawRun(other.worker, run.data)
        assert_problem(await store(stranger, b"x"), 404, "run_not_found")
    assert_problem(await store(run, b""), 400, "invalid_input")
    assert_problem(await store(run, b"x", epoch=2), 409, "stale_epoch")
    with monkeypatch.context() as patch:
        patch.setattr(executor_blobs, "MAX_OUTPUT_BYTES", 10)
        assert_problem(await store(run, b"0" * 11), 413, "payload_too_large")
        patch.setattr(stored_blobs, "MAX_RUN_BLOBS", 1)
        patch.setattr(FilesystemBlobStore, "put", never)
        # It may repeat the stored one, so only its bytes tell.
        assert_problem(await store(run, b"9876543210"), 413, "payload_too_large")
        patch.setattr(BlobService, "spool", never)
        assert_problem(await store(run, b"another"), 413, "payload_too_large")
        patch.undo()
        patch.setattr(stored_blobs, "MAX_RUN_BLOBS", 1)
        assert (await store(run, b"0123456789")).json()["blobId"] == mine
    await set_lease_lapsed(server, run)
    again = await scene.worker.claimed()
    assert_problem(await store(run, b"stale"), 409, "stale_epoch")
    read = await scene.worker.http.get(f"{path}/{mine}", params={"epoch": again.epoch})
    assert (read.status_code, read.content) == (200, b"0123456789")


async def test_bodies_and_numbers_are_bounded(scene: RemoteScene) -> None:
    run = await scene.begin()
    bad: tuple[dict[str, Any], ...] = (
        {"seq": -1}, {"seq": 2**40}, {"epoch": 0}, {"parts": []}, {"parts": text("x") * 321}, {"extra": 1},
    )  # fmt: skip
    for body in bad:
        refused = await run.post("parts", **({"seq": 0, "parts": text("x")} | body))
        assert refused.status_code == 400, (list(body), refused.text)

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    try:
        refused = await scene.worker.http.post(
            f"/api/executor/runs/{run.id}/parts", content=endless(), headers={"Content-Type": "application/json"}
        )
        assert refused.status_code == 413
    except httpx.TransportError:
        pass  # The server has closed the connection before the end of the body.
    assert (await run.append(text("still here"))).is_success


async def test_a_workers_token_does_nothing_else(scene: RemoteScene, server: InProcessServer) -> None:
    http = scene.worker.http
    for path in ("/api/threads", "/api/me", "/api/agents", f"/api/threads/{scene.thread.id}", "/v1/models"):
        assert (await http.get(path)).status_code == 403, path
    assert (await http.post("/api/threads", json={})).status_code == 403
    assert (await http.post("/api/tokens", json={"name": "x"})).status_code == 403
    bodies: list[dict[str, list[str]]] = [
        {"scopes": ["execute"]},
        {"scopes": ["read", "execute"], "agents": ["a"]},
        {"scopes": ["read"], "agents": ["a"]},
        {"scopes": ["execute"], "agents": ["a", "a"]},
    ]
    for body in bodies:
        assert (await scene.who.http.post("/api/tokens", json={"name": "x"} | body)).status_code == 400, body
    claim = {"claimId": str(uuid.uuid4())}
    assert_problem(await scene.who.http.post("/api/executor/claim", json=claim), 403, "forbidden")
    ordinary = (await scene.who.http.post("/api/tokens", json={"name": "x"})).json()["token"]
    async with worker_client(server, ordinary) as worker:
        assert_problem(await worker.post("claim", claim), 403, "forbidden")
    await scene.who.http.delete(f"/api/tokens/{scene.token['id']}")
    assert_problem(await scene.worker.post("claim", claim), 401, "unauthorized")


async def test_the_server_goes_on_with_an_agent_that_is_remote_no_longer(scene: RemoteScene) -> None:
    changed = await scene.who.http.patch(f"/api/agents/{scene.agent}", json={"executor": "server"})
    assert changed.json().get("executor") is None
    sent = await scene.send("/words=3")
    assert (await scene.thread.ended(sent["runId"]))["status"] == "final"


async def test_others_use_a_remote_agent_by_its_link(scene: RemoteScene, server: InProcessServer) -> None:
    link = (await scene.who.http.post(f"/api/agents/{scene.agent}/link")).json()["link"]
    async with account(server, "Zeratul") as guest:
        thread = await own_thread(guest)
        sent = await thread.send("Hello", options={"agent": link})
        run = await scene.worker.claimed()
        assert run.id == sent["runId"]
        await run.append(text("Adun toridas."))
        await run.finish()
        assert (await thread.ended(run.id))["status"] == "final"


async def test_an_agent_of_the_same_name_of_another_account_is_another_agent(
    scene: RemoteScene, server: InProcessServer
) -> None:
    async with account(server) as other:
        await create_agent(other, scene.agent)
        token = await create_token(other, scene.agent)
        await scene.send()
        async with worker_client(server, token["token"]) as worker:
            assert await worker.claim(wait=0) == []


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
    assert text_of(await answer_of(scene)) == "012"


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
