"""Refusals of the executor protocol: parts that the server decides, runs of other workers, and all other routes."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import account, own_thread
from tests.support.in_process import InProcessServer
from tests.support.remote_workers import (
    RESULT,
    RawRun,
    RemoteScene,
    create_agent,
    create_token,
    remote_scene,
    text,
    worker_client,
)
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


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
    assert await scene.answer_text() == "Only this."


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
