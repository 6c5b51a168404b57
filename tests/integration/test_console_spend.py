"""The console's budgets, spend and slow tools: what limits apply, and what the usage rollup has counted."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.store.console import usage_rollup
from khala.store.console.spend import WINDOWS, SpendFilter, read_spend
from tests.support.callers import owned_thread, person
from tests.support.console import ConsoleScene, console_scene

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(postgres_url: str, template: str) -> AsyncIterator[ConsoleScene]:
    async with console_scene(postgres_url, template, with_executor=True, KHALA_USER_USD_PER_DAY="5") as made:
        yield made


async def test_a_budget_of_one_account_is_set_applies_and_is_audited(scene: ConsoleScene) -> None:
    someone = await person(scene.db, "Mengsk")
    path = f"/budgets/{someone.id}"
    before = await scene.read(path)
    assert {limit["measure"]: limit["most"] for limit in before["usage"]}["usd"] == "5"
    assert (before["override"], before["account"]["name"]) == (None, "Mengsk")
    body = {"limits": {"runsPerHour": 1, "usdPerDay": "0", "tokensPerDay": None}, "reason": "Abuse"}
    for _ in range(2):
        after = (await scene.send("PUT", path, body)).raise_for_status().json()
    assert after["override"] == {"runsPerHour": "1", "usdPerDay": "0", "tokensPerDay": None}
    assert {limit["measure"]: limit["most"] for limit in after["usage"]} == {"runs": "1"}
    mine = (await scene.server.http.get("/api/me/usage", headers=someone.headers)).json()["items"]
    assert [(limit["measure"], limit["most"]) for limit in mine] == [("runs", "1")]
    thread_id = await owned_thread(scene.db, someone)
    sends = [
        await scene.server.http.post(
            f"/api/threads/{thread_id}/send",
            json={"text": "/echo a", "options": {"ifBusy": "queue"}},
            headers=someone.headers,
        )
        for _ in range(2)
    ]
    assert [sent.status_code for sent in sends] == [202, 429]
    assert sends[1].json()["limit"] == "runs_per_hour"
    (entry,) = await scene.audited("console_budget_set")
    assert (entry["before"], entry["reason"]) == (None, "Abuse")
    assert entry["after"] == {"runsPerHour": "1", "usdPerDay": "0", "tokensPerDay": None}
    removed = (await scene.send("PUT", path, {"limits": None})).raise_for_status().json()
    assert removed["override"] is None
    amounts = ({"usdPerDay": text} for text in ("-1", "NaN", "1e-400", "x"))
    for bad in (*amounts, {"runsPerHour": 1e10}, {"usd": 1}):
        response = await scene.send("PUT", path, {"limits": bad})
        assert (response.status_code, response.json()["code"]) == (400, "invalid_input"), bad
    assert (await scene.send("PUT", f"/budgets/{ids.new()}", {"limits": None})).status_code == 404


async def test_the_limits_of_the_deployment_have_their_usage(scene: ConsoleScene) -> None:
    shown = await scene.read("/budgets")
    limits = {(limit["scope"], limit["measure"]): limit for limit in shown["limits"]}
    assert limits["user", "usd"]["most"] == "5"
    assert limits["user", "usd"]["used"] is None
    assert limits["accounts", "usd"]["used"] is not None
    assert limits["accounts", "usd"]["endsAt"]
    assert (shown["plans"], shown["defaultPlan"]) == ([], None)


async def test_windows_of_spend_have_the_sums_of_their_days(scene: ConsoleScene) -> None:
    """Also after the steps of an earlier version, which counts no windows, and on the next day."""
    day = """
        INSERT INTO spend_user_days (user_id, day, provider, model, calls, usd, input_tokens, output_tokens)
        SELECT $1, (now() AT TIME ZONE 'UTC')::date - $2::int, 'openai', model, 1, $3::text::numeric, 10, 1
        FROM unnest(ARRAY['a', 'b']) AS models (model)
    """
    receipt = """
        INSERT INTO usage_receipts (id, user_id, purpose, data, cost_usd, created_at)
        VALUES (gen_random_uuid(), $1, 'title', '{"provider": "openai", "model": "a"}', 1.5, $2)
    """
    people = [await person(scene.db, name) for name in ("Abathur", "Zagara")]
    for number, one in enumerate(people):
        for days_ago, usd in ((29, "0.5"), (30, "4"), (89, "7"), (90, "9"), (366, "11")):
            await scene.execute(day, one.id, days_ago, f"{usd}{number}" if "." in usd else usd)

    async def count() -> None:
        time = datetime.now(UTC) - timedelta(minutes=3)
        await scene.execute(receipt, people[0].id, time)
        await scene.execute("UPDATE usage_rollup SET counted_until = $1", time)
        await scene.execute("UPDATE usage_rollup SET windows_until = counted_until WHERE windows_until IS NOT NULL")
        await usage_rollup.count_receipts(scene.db)

    async def check(*, in_windows: bool) -> None:
        today = datetime.now(UTC).date()
        for days in usage_rollup.WINDOW_DAYS:
            wanted = SpendFilter(by="user", first=today - timedelta(days=days - 1), last=today)
            async with scene.db.driver() as driver, driver.transaction():
                assert (await driver.fetchval(WINDOWS) == today) == in_windows
                found = await read_spend(driver, wanted, 400)
                await driver.execute("UPDATE usage_rollup SET windows_day = NULL")
                assert await read_spend(driver, wanted, 400) == found
            spent = {item.account.id: item.usd for item in found.items if item.account}
            assert people[0].id in spent, days
            await scene.execute("UPDATE usage_rollup SET windows_day = $1", today)

    await count()
    await check(in_windows=True)
    await count()
    await check(in_windows=True)
    await scene.execute(day, people[1].id, 1, "3")
    await scene.execute("UPDATE usage_rollup SET counted_until = counted_until + interval '1 second'")
    await check(in_windows=False)
    await usage_rollup.count_receipts(scene.db, settle_seconds=1)
    await check(in_windows=True)
    await scene.execute("DELETE FROM spend_windows")
    await scene.execute("UPDATE usage_rollup SET windows_day = windows_day - 1")
    await usage_rollup.count_receipts(scene.db, settle_seconds=0)
    await check(in_windows=True)


async def test_spend_and_slow_tools_are_counted_once_and_outlive_their_thread(scene: ConsoleScene) -> None:
    someone = await person(scene.db, "Dehaka")
    thread_id = await owned_thread(scene.db, someone)
    sent = await scene.server.http.post(
        f"/api/threads/{thread_id}/send", json={"text": "/echo a"}, headers=someone.headers
    )
    run_id = UUID(sent.json()["runId"])
    model = '{{"provider": "openai", "model": "gpt-x", "usage": {{"inputTokens": {0}, "outputTokens": 1}}}}'
    tool = '{{"tool": "slow_one", "source": "builtin", "outcome": "{0}", "durationMs": {1}}}'
    entries: list[tuple[str, str, Any]] = [("model", model.format(5), "0.25"), ("model", model.format('"x"'), "0.5")]
    entries += [("tool", tool.format("ok", 10), None)] * 18 + [("tool", tool.format("failed", 5000), None)] * 2
    entries += [("tool", '{"tool": "made_up", "source": null, "durationMs": 9}', None), ("tool", "[]", None)]
    query = """
        INSERT INTO receipts (run_id, seq, thread_id, type, data, cost_usd, created_at)
        VALUES ($1, $2, $3, $4, $5::text::jsonb, $6::text::numeric, now() - interval '10 minutes')
    """
    for seq, (kind, data, usd) in enumerate(entries, start=1000):
        await scene.execute(query, run_id, seq, thread_id, kind, data, usd)
    await scene.execute("UPDATE usage_rollup SET counted_until = now() - interval '20 minutes'")
    await asyncio.gather(*(usage_rollup.count_receipts(scene.db) for _ in range(3)))
    await usage_rollup.count_receipts(scene.db)
    await scene.execute("DELETE FROM receipts WHERE run_id = $1", run_id)
    who = {"account": str(someone.id)}
    (by_model,) = (await scene.read("/spend", by="model", **who))["items"]
    assert (by_model["provider"], by_model["model"], by_model["account"]) == ("openai", "gpt-x", None)
    assert (by_model["usd"], by_model["modelCalls"], by_model["inputTokens"]) == ("0.75", 2, 5)
    day = (datetime.now(UTC) - timedelta(minutes=10)).date().isoformat()
    (by_day,) = (await scene.read("/spend", by="day", **who))["items"]
    assert (by_day["day"], by_day["usd"]) == (day, "0.75")
    by_user = await scene.read("/spend", by="user", model="openai:gpt-x")
    assert [item["account"]["name"] for item in by_user["items"]] == ["Dehaka"]
    assert by_user["total"] == {"usd": "0.75", "modelCalls": 2, "inputTokens": 5, "outputTokens": 2}
    assert by_user["countedUntil"]
    tools = {item["tool"]: item for item in (await scene.read("/tools/slow"))["items"]}
    assert "made_up" not in tools
    slow = tools["slow_one"]
    assert (slow["calls"], slow["failures"], slow["maxMs"], slow["slowestRunId"]) == (20, 2, 5000, str(run_id))
    assert 10 <= slow["p50Ms"] <= 13
    assert slow["p95Ms"] == 5000
    for bad in ({"from": "2026-02-30"}, {"from": "2026-01-02", "to": "2026-01-01"}, {"from": "0001-01-01"}):
        for path in ("/spend", "/tools/slow"):
            assert (await scene.get(path, **bad)).status_code == 400, bad
    assert (await scene.get("/spend", to="0001-01-01")).status_code == 400
    assert (await scene.get("/spend", by="thread")).status_code == 400


async def test_the_history_of_a_deployment_is_counted_in_steps(scene: ConsoleScene) -> None:
    await scene.execute("UPDATE usage_rollup SET counted_until = now() - interval '5 hours'")
    assert await usage_rollup.count_receipts(scene.db) == 4
    assert await usage_rollup.count_receipts(scene.db, settle_seconds=600) == 0
