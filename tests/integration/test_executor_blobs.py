"""Blobs over the executor protocol: workers store results and arguments of their runs, and read the runs' files."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from khala.api.executor import blobs as executor_blobs
from khala.blobs.blob_service import BlobService
from khala.blobs.filesystem import FilesystemBlobStore
from khala.store.blobs import blobs as stored_blobs
from tests.integration.test_api_threads import assert_problem
from tests.support.account_with_data import upload
from tests.support.in_process import InProcessServer
from tests.support.remote_workers import RUNNING, RawRun, RemoteScene, lapse_lease, remote_scene
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture()


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


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
    (card,) = [block for block in (await scene.answer())["content"] if block["type"] == "tool"]
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
    await lapse_lease(server, run.id)
    again = await scene.worker.claimed()
    assert_problem(await store(run, b"stale"), 409, "stale_epoch")
    read = await scene.worker.http.get(f"{path}/{mine}", params={"epoch": again.epoch})
    assert (read.status_code, read.content) == (200, b"0123456789")
