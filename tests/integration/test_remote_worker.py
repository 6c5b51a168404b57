"""The Python worker: it executes functions, and goes on after kills, approvals and cancellations."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from khala_client.worker import AgentError, ApprovalDenied, RunContext, Worker
from tests.support.account_with_data import upload
from tests.support.agents import Agent
from tests.support.in_process import InProcessServer
from tests.support.ports import free_port
from tests.support.remote_workers import RawRun, RemoteScene, lapse_lease, remote_scene, working
from tests.support.server import ROOT
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLES = ROOT / "app" / "clients" / "python" / "examples"

server = server_fixture(KHALA_LEASE_SECONDS="3")


@pytest_asyncio.fixture(loop_scope="module")
async def scene(server: InProcessServer) -> AsyncIterator[RemoteScene]:
    async with remote_scene(server) as made:
        yield made


async def test_text_steps_and_usage_reach_the_thread(scene: RemoteScene, server: InProcessServer) -> None:
    async def answer(context: RunContext) -> None:
        await context.text(f"You said {context.prompt}. ")
        found = await context.step("look_up", lambda: {"answer": 42})
        context.usage(input_tokens=3, output_tokens=4, cost_usd="0.002")
        await context.text(f"It is {found['answer']}.")

    async with working(scene, server, answer):
        sent = await scene.send("hello")
        ended = await scene.thread.ended(sent["runId"])
    assert await scene.answer_text() == "You said hello. It is 42."
    assert ended["finish"]["usage"] == {"inputTokens": 3, "outputTokens": 4}


async def test_a_step_runs_once_although_its_worker_is_lost(scene: RemoteScene, server: InProcessServer) -> None:
    calls: list[str] = []
    reached = asyncio.Event()

    def slow() -> str:
        calls.append("slow")
        return "two, "

    async def answer(context: RunContext) -> None:
        await context.text("One, ")
        value = await context.step("slow", slow)
        await context.text(value)
        if not context.taken_over:
            await context.flush()
            reached.set()
            context.lost = True  # As if the worker were killed here: it sends nothing any more.
            await asyncio.Event().wait()
        await context.text("three.")

    async with working(scene, server, answer):
        sent = await scene.send()
        async with asyncio.timeout(10):
            await reached.wait()
        await lapse_lease(server, sent["runId"])
        assert (await scene.thread.ended(sent["runId"]))["status"] == "final"
    assert (calls, await scene.answer_text()) == (["slow"], "One, two, three.")


async def test_usage_is_reported_once_within_steps_and_outside_of_them(
    scene: RemoteScene, server: InProcessServer
) -> None:
    def ask(context: RunContext) -> str:
        context.usage(input_tokens=1)
        return "asked"

    async def answer(context: RunContext) -> None:
        await context.step("ask", ask, context)
        context.usage(input_tokens=10)
        await context.approve("go_on", {})
        context.usage(input_tokens=100)
        await context.step("ask", ask, context)

    async with working(scene, server, answer, hold_seconds=0.1):
        sent = await scene.send()
        run = Agent(scene.thread, sent)
        await run.status("blocked")
        await run.decide("go_on-1", approved=True)
        assert (await run.ended())["status"] == "final"
    assert (await run.message())["finish"]["usage"] == {"inputTokens": 112, "outputTokens": 0}
    by_call = [receipt.get("toolCallId") for receipt in await run.receipts("model")]
    assert by_call == ["ask-1", None, None, "ask-2"]


async def test_a_function_that_writes_another_text_again_ends_its_run(
    scene: RemoteScene, server: InProcessServer
) -> None:
    run = await scene.begin()
    await run.append([{"kind": "text-delta", "data": {"text": "Heads"}}])
    await run.post("release")

    async def answer(context: RunContext) -> None:
        await context.text("Tails")

    async with working(scene, server, answer):
        assert (await scene.thread.ended(run.id))["status"] == "error"


async def test_a_run_whose_parts_are_refused_ends(scene: RemoteScene, server: InProcessServer) -> None:
    async def answer(context: RunContext) -> None:
        await context.text("Fine. ")
        await context.notice("Not a code", "refused")
        await context.flush()

    async with working(scene, server, answer):
        sent = await scene.send()
        assert (await scene.thread.ended(sent["runId"]))["status"] == "error"
    assert (await scene.answer_text()).endswith("The agent failed. Please try again.")


async def test_a_call_runs_after_its_approval_with_the_changed_arguments(
    scene: RemoteScene, server: InProcessServer
) -> None:
    done: list[dict[str, Any]] = []

    async def answer(context: RunContext) -> None:
        args = await context.approve("deploy", {"to": "prod"})
        done.append(args)
        try:
            await context.approve("erase", {})
        except ApprovalDenied as denied:
            raise AgentError(f"Not erased: {denied}") from denied

    async def decide(call: str, **decision: Any) -> None:
        async with asyncio.timeout(10):
            while True:
                path = f"/api/runs/{sent['runId']}/approvals/{call}"
                if (await scene.thread.http.post(path, json=decision)).is_success:
                    return
                await asyncio.sleep(0.05)

    async with working(scene, server, answer, hold_seconds=0.2):
        sent = await scene.send()
        await decide("deploy-1", approved=True, editedArgs={"to": "test"})
        await decide("erase-1", approved=False, reason="never")
        ended = await scene.thread.ended(sent["runId"])
    assert (ended["status"], done[-1]) == ("error", {"to": "test"})
    assert await scene.answer_text() == "Not erased: Denied: never"


async def test_a_run_is_given_back_once_nothing_runs_and_goes_on_after_any_decision(
    scene: RemoteScene, server: InProcessServer
) -> None:
    calls: list[str] = []

    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(0.3)
        return "slow"

    async def answer(context: RunContext) -> None:
        asked = [context.tool_call(key, key, {}, lambda args: args, approve=True) for key in ("left", "right")]
        step = asyncio.create_task(context.step("slow", slow))
        left, right = await asyncio.gather(*asked)
        found: str = await step
        await context.text(f"{left.denied} {right.denied} {found}")

    async with working(scene, server, answer, hold_seconds=0.05):
        run = Agent(scene.thread, await scene.send())
        await run.status("blocked")
        cards = {card["tool"]: card for card in await run.cards()}
        assert [cards[name]["state"] for name in ("slow", "left", "right")] == ["completed", "blocked", "blocked"]
        await run.decide(cards["right"]["toolCallId"], approved=True)
        async with asyncio.timeout(20):
            while {card["tool"]: card["state"] for card in await run.cards()}["right"] != "completed":
                await asyncio.sleep(0.02)
        await run.status("blocked")
        await run.decide(cards["left"]["toolCallId"], approved=False)
        assert (await run.ended())["status"] == "final"
    assert (await run.text(), calls) == ("True False slow", ["slow"])


async def test_a_cancelled_run_ends_and_its_worker_goes_on(scene: RemoteScene, server: InProcessServer) -> None:
    async def answer(context: RunContext) -> None:
        await context.text("So far")
        if context.prompt == "wait":
            await asyncio.Event().wait()

    async with working(scene, server, answer):
        sent = await scene.send("wait")
        async with asyncio.timeout(10):
            while await scene.answer_text() != "So far":
                await asyncio.sleep(0.05)
        await scene.thread.http.post(f"/api/runs/{sent['runId']}/cancel")
        assert (await scene.thread.ended(sent["runId"]))["status"] == "canceled"
        sent = await scene.send("again")
        assert (await scene.thread.ended(sent["runId"]))["status"] == "final"


async def test_a_stopped_worker_gives_its_runs_back(scene: RemoteScene, server: InProcessServer) -> None:
    async def answer(context: RunContext) -> None:
        await context.text("Begun, ")
        await asyncio.Event().wait()

    async with working(scene, server, answer):
        sent = await scene.send()
        async with asyncio.timeout(10):
            while await scene.answer_text() != "Begun, ":
                await asyncio.sleep(0.05)
    run = RawRun(scene.worker, (await scene.worker.claim())[0])
    assert (run.id, run.data["takenOver"]) == (sent["runId"], False)


async def test_a_killed_worker_is_replaced_and_no_text_is_lost_or_doubled(
    scene: RemoteScene, server: InProcessServer
) -> None:
    environment = {
        "KHALA_SERVER": server.url, "KHALA_TOKEN": scene.token["token"], "KHALA_AGENT": scene.agent,
        "PYTHONPATH": str(EXAMPLES.parent / "src"),
    }  # fmt: skip
    command = [sys.executable, str(EXAMPLES / "conformance_worker.py")]
    workers = [subprocess.Popen(command, env=environment)]
    try:
        sent = await scene.send("count 200")
        for kills in (1, 2):
            async with asyncio.timeout(20):
                while len(await scene.answer_text()) < 100 * kills:
                    await asyncio.sleep(0.02)
            workers[-1].send_signal(signal.SIGKILL)
            workers.append(subprocess.Popen(command, env=environment))
        ended = await scene.thread.ended(sent["runId"])
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert ended["status"] == "final"
    assert await scene.answer_text() == "".join(f"{number} " for number in range(1, 201))
    assert [part["seq"] for part in await scene.thread.parts(sent["runId"])] == list(
        range(len(await scene.thread.parts(sent["runId"])))
    )


async def test_large_results_and_files_are_stored_once_and_read_again(
    scene: RemoteScene, server: InProcessServer, tmp_path: Path
) -> None:
    made: list[str] = []
    report = tmp_path / "report.csv"
    report.write_text("name,score\n" * 30_000)

    async def make(context: RunContext, name: str) -> Any:
        made.append(name)
        results = {"json": {"rows": ["a" * 100] * 100}, "text": "b" * 5_000, "bytes": b"\x00\x01"}
        return results.get(name) or await context.store_blob("report.csv", report, media_type="text/csv")

    async def answer(context: RunContext) -> None:
        (file,) = context.files
        question = b"".join([piece async for piece in context.read_blob(file)])
        names = ("json", "text", "bytes", "file")
        results: list[Any] = [await context.step(name, make, context, name) for name in names]
        rows, text, data, blob = results
        args = await context.approve("send", {"rows": rows["rows"]})
        size = len(b"".join([piece async for piece in context.read_blob(blob)]))
        await context.text(f"{question.decode()} {len(args['rows'])} {len(text)} {data!r} {blob.name} {size}")

    async with working(scene, server, answer, hold_seconds=0.05):
        file = await upload(scene.thread, b"How large?", "text/plain", "question.txt")
        run = Agent(scene.thread, await scene.thread.send("See", attachments=[file], options={"agent": scene.agent}))
        await run.status("blocked")
        await run.decide("send-1", approved=True)
        assert (await run.ended())["status"] == "final"
    assert await run.text() == f"How large? 100 5000 {bytes([0, 1])!r} report.csv 330000"
    assert made == ["json", "text", "bytes", "file"]
    cards = await run.cards()
    types = ["application/json", "text/plain; charset=utf-8", "application/octet-stream", "text/csv"]
    assert [card["blob"]["mediaType"] for card in cards[:4]] == types
    assert cards[4]["argsBlob"]["size"] > 10_000


async def test_a_worker_logs_its_connection_and_why_it_has_none(
    scene: RemoteScene, server: InProcessServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="khala_client.worker")

    async def answer(context: RunContext) -> None:
        await context.text("Here.")

    async with working(scene, server, answer):
        sent = await scene.send()
        await scene.thread.ended(sent["runId"])
    assert caplog.messages == [f"connected to {server.url}, for the agents: {scene.agent}"]
    caplog.clear()
    nowhere = f"http://127.0.0.1:{free_port()}"
    worker = Worker(nowhere, "khala_token")
    worker.agent("poet")(answer)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        while not caplog.messages:
            await asyncio.sleep(0.02)
        worker.stop()
        await running
    (message,) = caplog.messages
    assert message.startswith(f"no connection to {nowhere}: ")
    assert message.endswith("Next try in 1 s.")


async def test_a_program_whose_token_is_wrong_ends_with_one_line(server: InProcessServer) -> None:
    example = [sys.executable, str(EXAMPLES / "conformance_worker.py")]
    settings = {"KHALA_SERVER": server.url, "KHALA_TOKEN": "khala_wrong", "KHALA_AGENT": "poet"}

    def run(env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            example, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
        )

    refused = await asyncio.to_thread(run, settings)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"The worker stops: {server.url} refuses it. ")
    assert refused.stderr.count("\n") == 1
    unset = await asyncio.to_thread(run, {})
    assert (unset.returncode, unset.stderr.split(";")[0]) == (1, "Set KHALA_AGENT, KHALA_SERVER, KHALA_TOKEN")
