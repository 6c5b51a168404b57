"""The console's runs: the list with its filters and pages, the timeline, and the commands with their audit entries."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import RunOptions
from khala.store.console import run_list
from khala.store.threads import sends
from khala.store.threads.sends import SendLimits, SendRequest
from tests.support.callers import owned_thread, person
from tests.support.console import MARKER, ConsoleScene, console_scene
from tests.support.store import claim

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDED = "UPDATE runs SET status = $2, finished_at = now(), finish = $3::text::jsonb WHERE id = $1"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(postgres_url: str, template: str) -> AsyncIterator[ConsoleScene]:
    async with console_scene(postgres_url, template) as made:
        yield made


async def ask(scene: ConsoleScene, thread_id: UUID, caller: Caller, **options: Any) -> UUID:
    """Queue a run."""
    request = SendRequest(
        thread_id=thread_id, message_id=ids.new(), text=MARKER, options=RunOptions(if_busy="queue", **options)
    )
    sent, _ = await sends.send(scene.db, request, caller, SendLimits(per_owner=1000, waiting=5000))
    return sent.run_id


async def finish(scene: ConsoleScene, run_id: UUID, status: str, model: str = "gpt-5") -> None:
    """Let the run have ended."""
    reason = {"final": "stop", "error": "error", "canceled": "canceled"}[status]
    usage = '{"inputTokens": 10, "outputTokens": 20}'
    text = f'{{"reason": "{reason}", "usage": {usage}, "costUsd": "0.01", "model": "{model}", "provider": "openai"}}'
    async with scene.db.driver() as driver:
        await driver.execute(ENDED, run_id, status, text)


async def listed(scene: ConsoleScene, **params: Any) -> list[str]:
    return [run["id"] for run in await scene.all_pages("/runs", **params)]


async def test_runs_are_listed_by_each_filter_and_page_by_page(scene: ConsoleScene) -> None:
    owner = await person(scene.db, "Fenix")
    thread_id = await owned_thread(scene.db, owner)
    runs = [await ask(scene, thread_id, owner.caller, agent="reviewer_x" if n % 2 else None) for n in range(6)]
    for run_id, status in zip(runs, ("final", "error", "canceled", "final"), strict=False):
        await finish(scene, run_id, status)
    newest = [str(run_id) for run_id in reversed(runs)]
    for params in ({"account": str(owner.id)}, {"thread": str(thread_id)}, {"q": str(thread_id)}, {"q": str(owner.id)}):
        assert await listed(scene, **params) == newest, params
        assert await listed(scene, **params, limit=1) == newest
        assert await listed(scene, **params, limit=4) == newest
    assert (await listed(scene, limit=2))[:6] == newest
    mine = {"account": str(owner.id)}
    assert await listed(scene, **mine, agent="reviewer_x") == newest[::2]
    assert await listed(scene, agent="reviewer_x") == newest[::2]
    assert await listed(scene, **mine, state="active") == newest[:2]
    for state, places in (("queued", [0, 1]), ("final", [2, 5]), ("canceled", [3]), ("error", [4]), ("running", [])):
        assert await listed(scene, **mine, state=state) == [newest[place] for place in places], state
        assert set(await listed(scene, state=state)) >= {newest[place] for place in places}
    for model in ("gpt-5", "openai:gpt-5"):
        assert await listed(scene, **mine, model=model) == newest[2:]
        assert set(newest[2:]) <= set(await listed(scene, model=model))
    assert await listed(scene, **mine, model="gpt") == []
    assert await listed(scene, q=newest[3]) == [newest[3]]
    assert await listed(scene, **mine, q="VIEWER_") == newest[::2]
    for nothing in ("%", "_x_", "revieweraX", MARKER, "\\"):
        assert await listed(scene, **mine, q=nothing) == [], nothing


async def test_a_page_examines_a_bounded_number_of_runs(scene: ConsoleScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "MAX_EXAMINED", 3)
    owner = await person(scene.db, "Tassadar")
    thread_id = await owned_thread(scene.db, owner)
    runs = [await ask(scene, thread_id, owner.caller, model="rare:one" if n == 0 else "demo") for n in range(7)]
    first = await scene.read("/runs", account=str(owner.id), model="rare:one")
    assert first["items"] == []
    assert first["nextCursor"]
    assert first["examinedUntil"]
    assert await listed(scene, account=str(owner.id), model="rare:one") == [str(runs[0])]


async def test_no_list_of_runs_shows_text(scene: ConsoleScene) -> None:
    run_id = await ask(scene, await owned_thread(scene.db, scene.user), scene.user.caller, instructions=MARKER)
    for path in ("/runs", f"/runs/{run_id}"):
        assert MARKER not in (await scene.get(path)).text


async def test_a_timeline_has_calls_costs_notices_and_the_end(scene: ConsoleScene) -> None:
    run_id = await ask(scene, await owned_thread(scene.db, scene.user), scene.user.caller)
    await finish(scene, run_id, "final")
    async with scene.db.driver() as driver:
        await driver.execute(
            """
            INSERT INTO receipts (run_id, seq, thread_id, type, tool_call_id, data, cost_usd)
            SELECT id, entry.*::int, thread_id, kind, call, data::jsonb, cost FROM runs, (VALUES
                (0, 'model', NULL, $2::text, 0.5), (1, 'tool', 'call_1', $3::text, NULL), (2, 'model', NULL, '[]', 0)
            ) AS entry (seq, kind, call, data, cost) WHERE id = $1
            """.replace("entry.*::int", "entry.seq"),
            run_id,
            '{"provider": "openai", "model": "gpt-5", "attempt": 2, "outcome": "tool_calls", "totalMs": 1500,'
            ' "usage": {"inputTokens": 7, "outputTokens": 9}, "estimated": false, "timeToFirstTokenMs": 80}',
            f'{{"tool": "fetch_url", "source": "builtin", "outcome": "ok", "argsSha256": "{MARKER}", "size": 12,'
            ' "durationMs": 40}',
        )
        parts = [
            ("step", '{"step": 1, "maxSteps": 3, "toolCount": 2}'),
            ("text-delta", f'{{"text": "{MARKER}"}}'),
            ("notice", f'{{"code": "resumed", "message": "{MARKER}"}}'),
            ("error", f'{{"code": "overloaded", "message": "{MARKER}"}}'),
            ("finish", '{"reason": "stop", "usage": {"inputTokens": 7, "outputTokens": 9}, "costUsd": "0.5"}'),
        ]
        for seq, (kind, data) in enumerate(parts):
            await driver.execute(
                "INSERT INTO message_parts (run_id, seq, message_id, thread_id, kind, data, revision)"
                " SELECT id, $2, message_id, thread_id, $3, $4::text::jsonb, 9 FROM runs WHERE id = $1",
                *(run_id, seq, kind, data),
            )
        await driver.execute(
            "INSERT INTO approvals (run_id, tool_call_id, thread_id, tool, args, parameters, digest, expires_at)"
            " SELECT id, 'call_1', thread_id, 'fetch_url', $2::text::jsonb, '{}', 'x', now() FROM runs WHERE id = $1",
            *(run_id, f'{{"url": "{MARKER}"}}'),
        )
    response = await scene.get(f"/runs/{run_id}")
    assert MARKER not in response.text
    shown = response.json()
    events = {(event["kind"], event["seq"]): event for event in shown["timeline"]}
    assert shown["timeline"][0]["kind"] == "queued"
    assert (shown["truncated"], shown["packed"]) == (False, False)
    call = events["model", 0]
    assert (call["provider"], call["attempt"], call["usd"], call["inputTokens"]) == ("openai", 2, "0.5", 7)
    assert (call["durationMs"], call["firstTokenMs"], call["outcome"]) == (1500, 80, "tool_calls")
    assert call["startedAt"] < call["at"]
    assert (events["tool", 1]["tool"], events["tool", 1]["bytes"]) == ("fetch_url", 12)
    assert events["model", 2]["usd"] == "0"
    assert events["notice", 2]["code"] == "resumed"
    assert events["error", 3]["code"] == "overloaded"
    assert events["finished", 4]["outcome"] == "stop"
    assert events["approval", None]["outcome"] == "pending"
    assert (await scene.get(f"/runs/{ids.new()}")).json()["code"] == "run_not_found"


async def test_a_run_is_canceled_once_and_audited_once(scene: ConsoleScene) -> None:
    run_id = await ask(scene, await owned_thread(scene.db, scene.user), scene.user.caller)
    body = {"reason": "Off topic"}
    first, second = [await scene.post(f"/runs/{run_id}/cancel", body) for _ in range(2)]
    assert (first["run"]["state"], first["changed"], second["changed"]) == ("canceled", True, False)
    entries = [entry for entry in await scene.audited("console_run_canceled") if entry["run"] == str(run_id)]
    assert entries == [{"thread": UUID(first["run"]["threadId"]), "run": str(run_id), "state": "queued", **body}]


LEASE = """
    UPDATE runs SET status = 'running', epoch = 1, lease_owner = 'executor-x', lease_expires_at = now() + interval '1 h'
    WHERE id = $1
"""


async def test_a_held_run_is_asked_to_cancel_and_ended_or_queued_at_once(scene: ConsoleScene) -> None:
    thread_id = await owned_thread(scene.db, scene.user)
    asked, ended, queued = [await ask(scene, thread_id, scene.user.caller) for _ in range(3)]
    async with scene.db.driver() as driver:
        for run_id in (asked, ended, queued):
            await driver.execute(LEASE, run_id)
    found = (await scene.post(f"/runs/{asked}/cancel"))["run"]
    assert (found["state"], found["executor"]) == ("running", "executor-x")
    assert found["cancelRequestedAt"]
    found = (await scene.post(f"/runs/{ended}/end"))["run"]
    assert (found["state"], found["executor"], found["attempt"]) == ("canceled", None, 2)
    assert (await scene.post(f"/runs/{ended}/end"))["changed"] is False
    found = (await scene.post(f"/runs/{queued}/requeue", {"reason": "It hangs"}))["run"]
    assert (found["state"], found["executor"]) == ("queued", None)
    assert (await scene.post(f"/runs/{queued}/requeue"))["changed"] is False
    assert (await scene.send("POST", f"/runs/{ended}/requeue")).json()["code"] == "conflict"
    assert [entry["run"] for entry in await scene.audited("console_run_ended")] == [str(ended)]
    assert [entry["reason"] for entry in await scene.audited("console_run_requeued")] == ["It hangs"]


async def test_a_failed_run_is_retried_for_its_requester(scene: ConsoleScene) -> None:
    thread_id = await owned_thread(scene.db, scene.user)
    run_id = await ask(scene, thread_id, scene.user.caller, model="demo", instructions="Be short.")
    assert (await scene.send("POST", f"/runs/{run_id}/retry")).status_code == 409
    await finish(scene, run_id, "error")
    new = (await scene.post(f"/runs/{run_id}/retry"))["run"]
    assert (new["state"], new["account"]["id"], new["model"]) == ("queued", str(scene.user.id), "demo")
    assert new["id"] != str(run_id)
    again = await scene.send("POST", f"/runs/{run_id}/retry")
    assert again.json()["detail"] == "This message is being answered already."
    (entry,) = await scene.audited("console_run_retried")
    assert (entry["run"], entry["newRun"]) == (str(run_id), new["id"])


async def test_a_guests_run_is_retried_by_their_own_key_only(scene: ConsoleScene) -> None:
    thread = await scene.server.thread()
    run_id = (await thread.send("/echo Hello"))["runId"]
    await finish(scene, UUID(run_id), "error")
    new = (await scene.post(f"/runs/{run_id}/retry"))["run"]
    assert new["account"] is None
    async with scene.db.driver() as driver:
        await driver.execute(
            "UPDATE runs SET status = 'error', asker_key_id = gen_random_uuid() WHERE id = $1", UUID(new["id"])
        )
    assert (await scene.send("POST", f"/runs/{new['id']}/retry")).status_code == 409


@pytest.mark.parametrize(
    "params",
    [
        {"cursor": "x"}, {"cursor": "%00"}, {"cursor": "é"}, {"cursor": "A" * 201}, {"limit": "0"}, {"limit": "201"},
        {"limit": "9" * 30}, {"state": "lost"}, {"account": "me"}, {"thread": "%"}, {"q": "a\0b"}, {"q": "a" * 201},
        {"agent": "\0"}, {"model": "\0"}, {"stat": "queued"},
    ],
)  # fmt: skip
async def test_a_bad_parameter_is_refused(scene: ConsoleScene, params: dict[str, str]) -> None:
    response = await scene.get("/runs", **params)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_input")


async def test_concurrent_retries_queue_one_run(scene: ConsoleScene) -> None:
    run_id = await ask(scene, await owned_thread(scene.db, scene.user), scene.user.caller)
    await finish(scene, run_id, "error")
    answers = await asyncio.gather(*(scene.send("POST", f"/runs/{run_id}/retry") for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]


async def test_a_run_has_the_time_of_its_first_claim(scene: ConsoleScene) -> None:
    run_id = await ask(scene, await owned_thread(scene.db, scene.user), scene.user.caller)
    assert (await scene.read(f"/runs/{run_id}"))["run"]["startedAt"] is None
    await claim(scene.db)
    first = (await scene.read(f"/runs/{run_id}"))["run"]
    assert first["createdAt"] < first["startedAt"] < first["leaseExpiresAt"]
    await scene.post(f"/runs/{run_id}/requeue")
    await claim(scene.db)
    again = (await scene.read(f"/runs/{run_id}"))["run"]
    assert (again["attempt"], again["startedAt"]) == (2, first["startedAt"])
    await scene.post(f"/runs/{run_id}/end")
