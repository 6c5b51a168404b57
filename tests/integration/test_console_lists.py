"""The console's other lists: accounts, executors, blobs, webhooks, schedules and audit; and those who see them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
import pytest_asyncio

from khala.domain import ids
from khala.domain.access import ACCOUNT_SCOPES, Caller, ServiceScope
from khala.domain.accounts import Identity
from khala.domain.webhooks import DEPLOYMENT
from khala.store.accounts import account_status, accounts, api_tokens, service_tokens
from khala.store.console import thread_list, usage_rollup
from khala.store.webhooks import endpoints
from khala.store.webhooks.endpoints import EndpointConfig
from tests.support.callers import owned_thread, person
from tests.support.console import MARKER, ConsoleScene, console_scene

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOBODY = Caller()
ISSUER = "https://shop.example.org"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(postgres_url: str, template: str) -> AsyncIterator[ConsoleScene]:
    async with console_scene(postgres_url, template, with_executor=True) as made:
        yield made


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
        await scene.execute(
            "WITH object AS (INSERT INTO objects (sha256, size, stored) VALUES ($1, $2, true) RETURNING sha256)"
            " INSERT INTO blobs (id, thread_id, sha256, size, media_type, name, preview)"
            " SELECT $3, $4, sha256, $2, 'text/plain', $5, $5 FROM object",
            *(bytes([number]) * 32, 100 + number // 2, ids.new(), thread_id, MARKER),
        )
    await scene.execute("INSERT INTO objects (sha256, size, stored) VALUES ($1, 7, true)", bytes([9]) * 32)
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
        await scene.execute(insert, hook.id, seq, ids.new(), ids.new(), f'{{"a": "{MARKER}"}}', MARKER)
    items = await scene.all_pages("/webhooks", limit=1)
    assert [item["id"] for item in items] == [str(own.id), str(hook.id)]
    assert [item["deployment"] for item in items] == [True, False]
    assert items[1]["owner"]["id"] == str(scene.user.id)
    assert items[1]["host"] == "hooks.example.org"
    assert [item["id"] for item in await scene.all_pages("/webhooks", account=str(scene.user.id))] == [str(hook.id)]
    assert await scene.all_pages("/webhooks", state="failing") == []
    path = f"/webhooks/{hook.id}"
    assert await scene.read(path) == items[1]
    assert [each["seq"] for each in await scene.all_pages(f"{path}/deliveries", limit=2)] == ["3", "2", "1"]
    assert await scene.all_pages(f"{path}/deliveries", state="delivered") == []
    (created,) = await scene.all_pages("/audit", action="webhook_created", account=str(scene.user.id))
    assert created["detail"] == {"host": "hooks.example.org"}
    for listing in ("/webhooks", path, f"{path}/deliveries", "/audit"):
        assert MARKER not in (await scene.get(listing)).text
    replayed = await scene.post(f"{path}/replay", {"since": "2020-01-01T00:00:00Z", "limit": 2, "reason": "Lost"})
    assert replayed == {"replayed": 2, "next": "2"}
    (entry,) = await scene.audited("console_webhook_replayed")
    assert (entry["webhook"], entry["reason"]) == (str(hook.id), "Lost")
    assert (await scene.send("POST", f"{path}/replay", {"since": None})).status_code == 400
    for missing in (f"/webhooks/{ids.new()}", f"/webhooks/{ids.new()}/deliveries"):
        assert (await scene.get(missing)).status_code == 404


async def test_the_overview_counts_the_webhooks_that_fail_and_those_that_were_disabled(scene: ConsoleScene) -> None:
    config = EndpointConfig(url="https://hooks.example.org/", description="")
    await scene.execute("UPDATE webhook_endpoints SET deleted_at = now()")
    hooks = [await endpoints.create(scene.db, scene.user.id, config, caller=scene.user.caller, limit=5) for _ in "abc"]
    await scene.execute("UPDATE webhook_endpoints SET failures = 2 WHERE id = $1", hooks[0].id)
    disabled = (
        "UPDATE webhook_endpoints SET failures = 9, is_enabled = false, disabled_reason = 'failing' WHERE id = $1"
    )
    await scene.execute(disabled, hooks[1].id)
    shown = (await scene.read("/overview"))["webhooks"]
    assert (shown["failing"], shown["disabled"]) == (1, 1)


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
