"""The console's other lists: accounts, budgets, spend, tools, executors, blobs, webhooks, schedules and audit."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.access import ACCOUNT_SCOPES, Caller, ServiceScope
from khala.domain.accounts import Identity
from khala.domain.webhooks import DEPLOYMENT
from khala.store.accounts import account_status, accounts, api_tokens, service_tokens
from khala.store.console import thread_list, usage_rollup
from khala.store.console.spend import WINDOWS, SpendFilter, read_spend
from khala.store.webhooks import endpoints
from khala.store.webhooks.endpoints import EndpointConfig
from tests.support.callers import owned_thread, person
from tests.support.console import MARKER, ConsoleScene, console_scene

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOBODY = Caller()
ISSUER = "https://shop.example.org"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(postgres_url: str, template: str) -> AsyncIterator[ConsoleScene]:
    async with console_scene(postgres_url, template, with_executor=True, KHALA_USER_USD_PER_DAY="5") as made:
        yield made


async def execute(scene: ConsoleScene, query: str, *arguments: Any) -> None:
    async with scene.db.driver() as driver:
        await driver.execute(query, *arguments)


async def test_accounts_are_found_by_id_name_and_address(scene: ConsoleScene) -> None:
    names = ("Raynor_1", "RAYNORA", "raynor%")
    people = [await person(scene.db, name) for name in names]
    identity = Identity(issuer="https://id.example.org", subject="kerrigan", email="Kerrigan@Example.org")
    kerrigan = await accounts.of_identity(scene.db, identity, NOBODY)
    found = [each["name"] for each in await scene.all_pages("/accounts", q="Raynor", limit=1)]
    assert found == list(reversed(names))
    assert [each["name"] for each in await scene.all_pages("/accounts", q="raynor%")] == ["raynor%"]
    assert [each["name"] for each in await scene.all_pages("/accounts", q="raynor_")] == ["Raynor_1"]
    for q in ("kerrigan@", str(kerrigan)):
        assert [each["id"] for each in await scene.all_pages("/accounts", q=q)] == [str(kerrigan)]
    assert [each["id"] for each in await scene.all_pages("/accounts", state="admin")] == [str(scene.admin.id)]
    every = [each["id"] for each in await scene.all_pages("/accounts", limit=2)]
    assert {str(each.id) for each in people} < set(every)
    assert every == sorted(every, reverse=True)
    details = await scene.read(f"/accounts/{kerrigan}")
    assert details["identities"] == [{"issuer": identity.issuer, "email": identity.email}]
    assert (details["threads"], details["activeRuns"], details["deleting"]) == (0, 0, False)
    assert (await scene.get(f"/accounts/{ids.new()}")).status_code == 404
    assert (await scene.get("/accounts", q="a\0")).status_code == 400


async def test_an_account_is_blocked_and_unblocked_with_an_entry_for_both(scene: ConsoleScene) -> None:
    someone = await person(scene.db, "Duke")
    path = f"/accounts/{someone.id}"
    for _ in range(2):
        assert (await scene.post(f"{path}/block", {"reason": "Spam"}))["blockedAt"]
    assert (await scene.server.http.get("/api/me", headers=someone.headers)).status_code in (401, 403)
    assert [each["id"] for each in await scene.all_pages("/accounts", state="blocked")] == [str(someone.id)]
    assert (await scene.post(f"{path}/unblock"))["blockedAt"] is None
    assert (await scene.server.http.get("/api/me", headers=someone.headers)).status_code == 200
    assert await scene.audited("console_account_blocked") == [
        {"thread": None, "account": str(someone.id), "reason": "Spam"}
    ]
    assert len(await scene.audited("console_account_unblocked")) == 1
    entries = await scene.all_pages("/audit", account=str(someone.id))
    assert [entry["action"] for entry in entries][:2] == ["unblocked", "blocked"]
    assert (await scene.send("POST", f"/accounts/{scene.admin.id}/block")).status_code == 409
    assert (await scene.send("POST", f"{path}/block", {"reason": "a\0"})).status_code == 400
    assert (await scene.send("POST", f"{path}/block", {"reason": "a" * 501})).status_code == 400


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
            await execute(scene, day, one.id, days_ago, f"{usd}{number}" if "." in usd else usd)

    async def count() -> None:
        time = datetime.now(UTC) - timedelta(minutes=3)
        await execute(scene, receipt, people[0].id, time)
        await execute(scene, "UPDATE usage_rollup SET counted_until = $1", time)
        await execute(scene, "UPDATE usage_rollup SET windows_until = counted_until WHERE windows_until IS NOT NULL")
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
            await execute(scene, "UPDATE usage_rollup SET windows_day = $1", today)

    await count()
    await check(in_windows=True)
    await count()
    await check(in_windows=True)
    await execute(scene, day, people[1].id, 1, "3")
    await execute(scene, "UPDATE usage_rollup SET counted_until = counted_until + interval '1 second'")
    await check(in_windows=False)
    await usage_rollup.count_receipts(scene.db, settle_seconds=1)
    await check(in_windows=True)
    await execute(scene, "DELETE FROM spend_windows")
    await execute(scene, "UPDATE usage_rollup SET windows_day = windows_day - 1")
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
        await execute(scene, query, run_id, seq, thread_id, kind, data, usd)
    await execute(scene, "UPDATE usage_rollup SET counted_until = now() - interval '20 minutes'")
    await asyncio.gather(*(usage_rollup.count_receipts(scene.db) for _ in range(3)))
    await usage_rollup.count_receipts(scene.db)
    await execute(scene, "DELETE FROM receipts WHERE run_id = $1", run_id)
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
    await execute(scene, "UPDATE usage_rollup SET counted_until = now() - interval '5 hours'")
    assert await usage_rollup.count_receipts(scene.db) == 4
    assert await usage_rollup.count_receipts(scene.db, settle_seconds=600) == 0


async def test_executors_report_themselves_and_holders_of_leases_are_shown(scene: ConsoleScene) -> None:
    async with asyncio.timeout(10):
        while not (items := (await scene.read("/executors"))["items"]) or items[0]["running"]:
            await asyncio.sleep(0.05)  # The runs of other tests end.
    (executor,) = items
    assert (executor["kind"], executor["places"]) == ("executor", 200)
    assert executor["host"]
    assert executor["version"]
    thread_id = await owned_thread(scene.db, scene.user)
    sent = await scene.server.http.post(
        f"/api/threads/{thread_id}/send", json={"text": "/words=4000 /pace=20"}, headers=scene.user.headers
    )
    async with asyncio.timeout(10):
        while not (shown := (await scene.read("/executors"))["items"][0])["running"]:
            await asyncio.sleep(0.05)
    assert shown["runs"] == [sent.json()["runId"]]
    overview = await scene.read("/overview")
    assert overview["queue"]["running"] == 1
    assert overview["executors"]["alive"] == 1
    assert {"failuresLastHour", "approvalsWaiting", "webhooks", "spendToday", "countedUntil", "at"} <= set(overview)
    assert (await scene.post(f"/runs/{sent.json()['runId']}/end"))["run"]["state"] == "canceled"


async def test_blobs_are_listed_by_size_and_counted_by_owner(scene: ConsoleScene) -> None:
    thread_id = await owned_thread(scene.db, scene.user)
    for number in range(4):
        await execute(
            scene,
            "WITH object AS (INSERT INTO objects (sha256, size, stored) VALUES ($1, $2, true) RETURNING sha256)"
            " INSERT INTO blobs (id, thread_id, sha256, size, media_type, name, preview)"
            " SELECT $3, $4, sha256, $2, 'text/plain', $5, $5 FROM object",
            *(bytes([number]) * 32, 100 + number // 2, ids.new(), thread_id, MARKER),
        )
    await execute(scene, "INSERT INTO objects (sha256, size, stored) VALUES ($1, 7, true)", bytes([9]) * 32)
    for params in ({}, {"account": str(scene.user.id)}):
        sizes = [blob["size"] for blob in await scene.all_pages("/blobs", limit=1, **params)]
        assert sizes == [101, 101, 100, 100]
    assert await scene.all_pages("/blobs", account=str(scene.admin.id)) == []
    assert await usage_rollup.count_blobs(scene.db, interval=timedelta(0))
    assert not await usage_rollup.count_blobs(scene.db)
    usage = await scene.read("/blobs/usage")
    assert [(item["owner"]["id"], item["blobs"], item["bytes"]) for item in usage["items"]] == [
        (str(scene.user.id), 4, 402)
    ]
    assert (usage["objects"], usage["orphans"], usage["orphanBytes"]) == (5, 1, 7)
    assert MARKER not in (await scene.get("/blobs")).text


async def test_webhooks_are_shown_by_host_and_replayed(scene: ConsoleScene) -> None:
    address = f"https://hooks.example.org/{MARKER}?key={MARKER}"
    config = EndpointConfig(url=address, description=MARKER)
    hook = await endpoints.create(scene.db, scene.user.id, config, caller=scene.user.caller, limit=5)
    own = await endpoints.create(scene.db, DEPLOYMENT, config, caller=NOBODY, limit=5)
    insert = """
        INSERT INTO webhook_deliveries (endpoint_id, seq, id, thread_id, revision, type, data, state, response,
                                        created_at)
        VALUES ($1, $2, $3, $4, 1, 'run.finished', $5::text::jsonb, 'failed', $6, now())
    """
    for seq in (1, 2, 3):
        await execute(scene, insert, hook.id, seq, ids.new(), ids.new(), f'{{"a": "{MARKER}"}}', MARKER)
    items = await scene.all_pages("/webhooks", limit=1)
    assert [item["id"] for item in items] == [str(own.id), str(hook.id)]
    assert [item["deployment"] for item in items] == [True, False]
    assert items[1]["owner"]["id"] == str(scene.user.id)
    assert items[1]["host"] == "hooks.example.org"
    assert [item["id"] for item in await scene.all_pages("/webhooks", account=str(scene.user.id))] == [str(hook.id)]
    assert await scene.all_pages("/webhooks", state="failing") == []
    path = f"/webhooks/{hook.id}"
    assert [each["seq"] for each in await scene.all_pages(f"{path}/deliveries", limit=2)] == ["3", "2", "1"]
    assert await scene.all_pages(f"{path}/deliveries", state="delivered") == []
    (created,) = await scene.all_pages("/audit", action="webhook_created", account=str(scene.user.id))
    assert created["detail"] == {"host": "hooks.example.org"}
    for listing in ("/webhooks", f"{path}/deliveries", "/audit"):
        assert MARKER not in (await scene.get(listing)).text
    replayed = await scene.post(f"{path}/replay", {"since": "2020-01-01T00:00:00Z", "limit": 2, "reason": "Lost"})
    assert replayed == {"replayed": 2, "next": "2"}
    (entry,) = await scene.audited("console_webhook_replayed")
    assert (entry["webhook"], entry["reason"]) == (str(hook.id), "Lost")
    assert (await scene.send("POST", f"{path}/replay", {"since": None})).status_code == 400
    assert (await scene.get(f"/webhooks/{ids.new()}/deliveries")).status_code == 404


async def test_schedules_are_listed_without_their_texts(scene: ConsoleScene) -> None:
    made = []
    for cron in ("0 7 * * *", "0 8 * * *", "0 9 * * *"):
        body = {"name": MARKER, "text": MARKER, "cron": cron}
        response = await scene.server.http.post("/api/schedules", json=body, headers=scene.user.headers)
        made.append(response.raise_for_status().json()["id"])
    items = await scene.all_pages("/schedules", limit=2)
    assert [item["id"] for item in items] == list(reversed(made))
    assert (items[0]["kind"], items[0]["cron"], items[0]["owner"]["id"]) == ("message", "0 9 * * *", str(scene.user.id))
    assert items[0]["nextAt"]
    assert MARKER not in (await scene.get("/schedules")).text
    assert len(await scene.all_pages("/schedules", account=str(scene.user.id), state="active")) == 3
    assert await scene.all_pages("/schedules", state="paused") == []


async def test_the_audit_trail_is_filtered_and_paged(scene: ConsoleScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("khala.store.console.record_lists.MAX_EXAMINED", 4)
    someone = await person(scene.db, "Stukov")
    thread_id = await owned_thread(scene.db, someone)
    for visibility in ("public", "link", "private"):
        await scene.server.http.patch(
            f"/api/threads/{thread_id}", json={"visibility": visibility}, headers=someone.headers
        )
    shown = await scene.all_pages("/audit", thread=str(thread_id), limit=1)
    assert [entry["action"] for entry in shown] == ["visibility_set"] * len(shown)
    assert shown
    for params in ({"action": "visibility_set"}, {"action": "visib*"}, {"account": str(someone.id), "action": "vis*"}):
        assert [entry["id"] for entry in await scene.all_pages("/audit", limit=2, **params)] == [e["id"] for e in shown]
    assert await scene.all_pages("/audit", action="visib") == []
    assert await scene.all_pages("/audit", action="vis_b*") == []
    assert shown[0]["account"]["name"] == "Stukov"


@pytest.mark.parametrize(
    "path", ["/accounts", "/audit", "/blobs", "/webhooks", "/schedules", f"/webhooks/{UUID(int=1)}/deliveries"]
)
@pytest.mark.parametrize("params", [{"cursor": "%"}, {"cursor": "AAAA"}, {"limit": "0"}, {"limit": "201"}, {"x": "y"}])
async def test_bad_parameters_of_lists_are_refused(scene: ConsoleScene, path: str, params: dict[str, str]) -> None:
    response = await scene.get(path, **params)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_input")


async def service_headers(scene: ConsoleScene, *scopes: ServiceScope) -> dict[str, str]:
    """The headers of a new service with these scopes."""
    name = f"shop {ids.new()}"
    account = await accounts.of_identity(scene.db, Identity(issuer="khala:service", subject=name), NOBODY)
    _, token = await service_tokens.create(scene.db, account, name, scopes, user_issuer=ISSUER, expires_at=None)
    return {"Authorization": f"Bearer {token}"}


async def test_only_administrators_see_the_console(scene: ConsoleScene) -> None:
    limited = tuple(scope for scope in ACCOUNT_SCOPES if scope != "account")
    _, reading = await api_tokens.create(scene.db, scene.admin.caller, "reading", limited, None)
    thread = await scene.server.thread()
    callers: list[tuple[dict[str, str], int]] = [
        ({}, 401),
        (thread.headers, 401),
        (scene.user.headers, 403),
        (await service_headers(scene, "threads:write"), 403),
        (await service_headers(scene, "admin", "impersonate") | {"Khala-User": "zealot"}, 403),
        (await service_headers(scene, "admin"), 200),
        ({"Authorization": f"Bearer {reading}"}, 403),
        (scene.admin.headers, 200),
        (scene.admin.headers | thread.headers, 200),
    ]
    for headers, status in callers:
        assert (await scene.server.http.get("/api/console/runs", headers=headers)).status_code == status, headers
    crossing = scene.admin.headers | {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    path = f"/api/console/accounts/{scene.user.id}/block"
    assert (await scene.server.http.post(path, json={}, headers=crossing)).status_code == 403


async def test_a_service_reads_lists_and_neither_acts_nor_opens_threads(scene: ConsoleScene) -> None:
    """Also for an administrator whose grant it knows."""
    admin = await accounts.of_identity(scene.db, Identity(issuer=ISSUER, subject="artanis"), NOBODY)
    await account_status.set_admin(scene.db, str(admin), admin=True)
    own = await service_headers(scene, "admin")
    acting = await service_headers(scene, "admin", "impersonate") | {"Khala-User": "artanis"}
    thread = await owned_thread(scene.db, scene.user)
    granted = await thread_list.open_thread(scene.db, thread, Caller(user_id=admin), None)
    for headers in (own, acting):
        for path in ("/overview", "/spend?by=day", "/audit", f"/threads/{thread}/revisions"):
            assert (await scene.server.http.get(f"/api/console{path}", headers=headers)).status_code == 200, path
        refused = [
            await scene.server.http.get(f"/api/console/threads/{thread}/at?grant={granted.grant}", headers=headers),
            await scene.server.http.post(f"/api/console/threads/{thread}/open", headers=headers),
            await scene.server.http.post(f"/api/console/accounts/{scene.user.id}/block", headers=headers),
            await scene.server.http.put(f"/api/console/budgets/{scene.user.id}", json={}, headers=headers),
        ]
        assert [response.status_code for response in refused] == [403] * 4
        assert {response.json()["detail"] for response in refused} == {
            "A service may only read lists of the console. Use the credential of an administrator."
        }
