"""Accounts: registration, sign-in and sign-out, changes, export, deletion, and API tokens."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from khala.api.accounts import sign_in_throttle
from khala.domain.access import key_hash
from khala.store.postgres.database import Database
from tests.support.callers import owned_thread, person
from tests.support.client import Thread, client, text_of
from tests.support.in_process import InProcessServer, khala
from tests.support.people import make_member
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

PASSWORD, ANOTHER, WRONG = "en taro adun", "en taro tassadar", "my life for aiur"

server = server_fixture(KHALA_TRUSTED_PROXIES="127.0.0.1")


@contextlib.asynccontextmanager
async def browser(server: InProcessServer, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser with cookies of its own."""
    async with client(server.url, headers=headers) as http:
        yield http


def address() -> str:
    return f"{uuid4().hex}@example.com"


async def register(http: httpx.AsyncClient, email: str | None = None, **more: Any) -> dict[str, Any]:
    body = {"email": email or address(), "password": PASSWORD} | more
    return dict((await http.post("/api/auth/register", json=body)).raise_for_status().json())


async def login(http: httpx.AsyncClient, email: str, password: str = PASSWORD, **more: Any) -> httpx.Response:
    return await http.post("/api/auth/login", json={"email": email, "password": password} | more)


async def token(http: httpx.AsyncClient, *scopes: str, **more: Any) -> dict[str, Any]:
    answer = await http.post("/api/tokens", json={"name": "CI", "scopes": list(scopes)} | more)
    return dict(answer.raise_for_status().json())


def bearer_headers(made: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['token']}"}


async def fresh_window() -> None:
    """Wait for the next window if the current one is about to end: failures are counted in windows of the clock."""
    left = sign_in_throttle.WINDOW_SECONDS - time.time() % sign_in_throttle.WINDOW_SECONDS
    if left < 15:
        await asyncio.sleep(left)


async def new_thread(http: httpx.AsyncClient) -> Thread:
    """A new thread of the account that is signed in."""
    thread = Thread(http, (await http.post("/api/threads", json={})).raise_for_status().json()["thread"]["id"], "")
    thread.headers = {}
    return thread


def session_cookie(answer: httpx.Response) -> tuple[str, set[str]]:
    """The session cookie's name and attributes."""
    first, *attributes = answer.headers["set-cookie"].split("; ")
    return first.partition("=")[0], {attribute.lower() for attribute in attributes}


async def test_registration_signs_in_by_a_cookie_hidden_from_scripts_and_other_sites(server: InProcessServer) -> None:
    async with browser(server) as http:
        email = address()
        body = {"email": f" {email.upper()} ", "password": PASSWORD, "name": "Tassadar"}
        answer = await http.post("/api/auth/register", json=body)
        assert answer.status_code == 201
        name, attributes = session_cookie(answer)
        assert name == "khala_session"
        assert {"httponly", "samesite=lax", "path=/"} <= attributes
        assert "secure" not in attributes
        assert not any(attribute.startswith("domain") for attribute in attributes)
        user = answer.json()
        assert (user["email"], user["name"], user["password"]) == (email, "Tassadar", True)
        assert (await http.get("/api/me")).json() == {key: user[key] for key in user if key != "claimed"}
        assert PASSWORD not in answer.text


async def test_a_sign_in_returns_the_outcomes_of_its_claims_also_without_claims(server: InProcessServer) -> None:
    async with browser(server) as http:
        email = address()
        assert (await register(http, email)).get("claimed") == []
        assert (await login(http, email)).json().get("claimed") == []


async def test_behind_a_trusted_proxy_with_tls_the_cookie_is_secure_and_of_this_host_only(
    server: InProcessServer,
) -> None:
    async with browser(server, **{"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}) as http:
        answer = await http.post("/api/auth/register", json={"email": address(), "password": PASSWORD})
        name, attributes = session_cookie(answer)
        assert name == "__Host-khala_session"
        assert {"httponly", "samesite=lax", "path=/", "secure"} <= attributes
        secret = answer.headers["set-cookie"].split("; ")[0].partition("=")[2]
        signed = {"Cookie": f"__Host-khala_session={secret}"}
        assert (await http.get("/api/me", headers=signed)).status_code == 200
        assert (await http.get("/api/me", headers={"Cookie": f"khala_session={secret}"})).status_code == 401
        (session,) = (await http.get("/api/me/sessions", headers=signed)).json()["items"]
        assert session["network"] == "203.0.113.0/24"


async def test_an_address_has_one_account_in_whatever_case(server: InProcessServer) -> None:
    async with browser(server) as http:
        email = address()
        await register(http, email)
        again = await http.post("/api/auth/register", json={"email": email.upper(), "password": ANOTHER})
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert (await login(http, email)).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        {"email": "nobody"}, {"email": "a@b@c"}, {"email": "a b@example.com"}, {"email": "a\0@example.com"},
        {"email": f"{'a' * 250}@example.com"}, {"email": None}, {"password": "short"}, {"password": "password123"},
        {"password": "a" * 20}, {"password": "a1" * 600}, {"password": 12345678901}, {"name": ""}, {"name": "x" * 101},
        {"name": "nul\0"}, {"claim": "all"}, {"claim": [{"threadId": "none"}]},
    ],
)  # fmt: skip
async def test_an_invalid_registration_is_refused(server: InProcessServer, changed: dict[str, Any]) -> None:
    answer = await server.http.post("/api/auth/register", json={"email": address(), "password": PASSWORD} | changed)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
    assert "set-cookie" not in answer.headers


async def test_closed_registration_refuses_new_accounts_and_lets_existing_ones_sign_in(
    server: InProcessServer,
) -> None:
    email = address()
    async with browser(server) as http:
        await register(http, email)
    async with khala(server.database_url, with_executor=False, KHALA_REGISTRATION="closed") as closed:
        assert (await closed.http.get("/api/auth")).json() == {
            "registration": False,
            "oidc": None,
            "publicThreads": False,
            "undoSeconds": 0,
        }
        body = {"email": address(), "password": PASSWORD}
        answer = await closed.http.post("/api/auth/register", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert (await login(closed.http, email)).status_code == 200


async def test_a_wrong_password_and_an_unknown_address_get_the_same_answer(server: InProcessServer) -> None:
    email = address()
    async with browser(server) as http:
        await register(http, email)
    answers = [
        await login(server.http, who, WRONG) for who in (email, address(), "no address at all", "nul\0@example.com")
    ]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert not any("set-cookie" in answer.headers for answer in answers)


async def test_registration_and_sign_in_claim_each_thread_independently(server: InProcessServer) -> None:
    async with browser(server) as http, browser(server) as again:
        email, threads = address(), [await server.thread() for _ in range(5)]
        keyed = [{"threadId": thread.id, "anonKey": thread.key} for thread in threads]
        user = await register(http, email, claim=keyed[:2])
        assert user["claimed"] == [{"threadId": thread.id} for thread in threads[:2]]
        response = (await login(again, email, claim=[keyed[2], keyed[3] | {"anonKey": "x" * 40}, keyed[4]])).json()
        assert response["claimed"] == [
            {"threadId": threads[2].id},
            {"threadId": threads[3].id, "code": "forbidden"},
            {"threadId": threads[4].id},
        ]
        listed = {item["id"] for item in (await http.get("/api/threads")).json()["items"]}
        assert listed == {thread.id for thread in threads} - {threads[3].id}


async def test_signing_in_again_ends_the_browsers_previous_session(server: InProcessServer) -> None:
    async with browser(server) as http:
        email = address()
        await register(http, email)
        before = http.cookies["khala_session"]
        await login(http, email)
        assert http.cookies["khala_session"] != before
        old = {"Cookie": f"khala_session={before}"}
        assert (await client(server.url).get("/api/me", headers=old)).status_code == 401
        assert len((await http.get("/api/me/sessions")).json()["items"]) == 1


async def test_sessions_are_listed_and_an_ended_one_grants_no_access(server: InProcessServer) -> None:
    async with browser(server, **{"User-Agent": "Nexus"}) as here, browser(server) as there, browser(server) as other:
        email = address()
        await register(here, email)
        await login(there, email)
        await register(other)
        sessions = (await here.get("/api/me/sessions")).json()["items"]
        assert [session["current"] for session in sessions] == [False, True]
        assert sessions[1]["userAgent"] == "Nexus"
        path = f"/api/me/sessions/{sessions[0]['id']}"
        assert (await other.delete(path)).status_code == 404
        assert (await there.get("/api/me")).status_code == 200
        assert (await here.delete(path)).status_code == 204
        assert (await there.get("/api/me")).status_code == 401
        assert (await here.delete(path)).status_code == 404
        assert len((await here.get("/api/me/sessions")).json()["items"]) == 1


async def test_signing_out_ends_the_session_and_deletes_the_cookie(server: InProcessServer) -> None:
    async with browser(server) as http:
        await register(http)
        secret = http.cookies["khala_session"]
        answer = await http.post("/api/auth/logout")
        assert (answer.status_code, answer.json()) == (200, {})
        assert "khala_session" not in http.cookies
        old = {"Cookie": f"khala_session={secret}"}
        assert (await http.get("/api/me", headers=old)).status_code == 401
        assert (await http.post("/api/auth/logout")).status_code == 200


async def test_a_new_password_replaces_the_old_one_and_ends_the_other_sessions(server: InProcessServer) -> None:
    async with browser(server) as here, browser(server) as there:
        email = address()
        await register(here, email)
        await login(there, email)
        for body in ({"new": ANOTHER}, {"new": ANOTHER, "current": WRONG}):
            refused = await here.post("/api/auth/password", json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        weak = await here.post("/api/auth/password", json={"new": "short", "current": PASSWORD})
        assert weak.status_code == 400
        assert (await there.get("/api/me")).status_code == 200
        changed = await here.post("/api/auth/password", json={"new": ANOTHER, "current": PASSWORD})
        assert changed.status_code == 204
        assert (await here.get("/api/me")).status_code == 200
        assert (await there.get("/api/me")).status_code == 401
        assert (await login(there, email)).status_code == 401
        assert (await login(there, email, ANOTHER)).status_code == 200


async def test_the_eleventh_wrong_password_for_an_account_is_throttled_and_right_ones_dont_count(
    server: InProcessServer,
) -> None:
    await fresh_window()
    async with browser(server) as http:
        email = address()
        await register(http, email)
        for _ in range(9):
            assert (await login(http, email, WRONG)).status_code == 401
        for _ in range(3):
            assert (await login(http, email)).status_code == 200
        assert (await login(http, email, WRONG)).status_code == 401
        for password in (WRONG, PASSWORD):
            answer = await login(http, email, password)
            assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
            assert 0 < int(answer.headers["retry-after"]) <= 15 * 60


async def test_a_throttled_network_does_not_lock_out_the_owner_on_another_one(server: InProcessServer) -> None:
    await fresh_window()
    here, there = {"X-Forwarded-For": "198.51.100.7"}, {"X-Forwarded-For": "203.0.113.9"}
    async with browser(server, **here) as attacker, browser(server, **there) as http:
        email = address()
        await register(http, email)
        answers = [await login(attacker, email, WRONG) for _ in range(120)]
        assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 110
        assert (await login(http, email)).status_code == 200


async def test_a_deleted_account_loses_its_threads_and_tokens_and_its_messages_elsewhere_lose_the_name(
    server: InProcessServer, store: Database
) -> None:
    host = await person(store, "Host")
    shared_id = str(await owned_thread(store, host))
    members = f"/api/threads/{shared_id}/members"
    async with browser(server) as http, browser(server) as other:
        email = address()
        user = await register(http, email, name="Zeratul")
        await login(other, email)
        made, thread, anonymous = await token(http, "read"), await new_thread(http), await server.thread()
        await make_member(store, UUID(shared_id), UUID(user["id"]), "editor", host.caller)
        guest_thread = Thread(http, shared_id, "")
        guest_thread.headers = {}
        await guest_thread.ended((await guest_thread.send("/words=1"))["runId"])
        for body in (None, {}, {"password": WRONG}):
            refused = await http.request("DELETE", "/api/me", json=body)
            assert refused.status_code == 403
        gone = await http.request("DELETE", "/api/me", json={"password": PASSWORD})
        assert gone.status_code == 204
        assert "khala_session" not in http.cookies
        assert [(await signed_in.get("/api/me")).status_code for signed_in in (http, other)] == [401, 401]
        assert (await server.http.get("/api/threads", headers=bearer_headers(made))).status_code == 401
        assert (await login(http, email)).status_code == 401
        assert (await server.http.get(f"/api/threads/{thread.id}", headers=host.headers)).status_code == 404
    left = (await server.http.get(f"/api/threads/{shared_id}", headers=host.headers)).json()["messages"]
    assert (text_of(left[-2]), left[-2]["authorId"], left[-2].get("authorName")) == ("/words=1", user["id"], None)
    assert [item["userId"] for item in (await server.http.get(members, headers=host.headers)).json()["items"]] == [
        str(host.id)
    ]
    assert (await anonymous.snapshot())["thread"]["id"] == anonymous.id


@pytest.mark.parametrize("how", ["by a link without joining", "as a member who was removed since"])
async def test_a_deleted_accounts_name_is_removed_everywhere_however_it_was_stored(
    server: InProcessServer, store: Database, how: str
) -> None:
    host = await person(store, "Host")
    thread_id = await owned_thread(store, host)
    path = f"/api/threads/{thread_id}"
    async with browser(server) as http:
        user, keys = await register(http, name="Zeratul"), {}
        if how.startswith("by a link"):
            link = (await server.http.post(f"{path}/links", json={"role": "editor"}, headers=host.headers)).json()
            keys = {"X-Share-Key": link["shareKey"]}
        else:
            await make_member(store, thread_id, UUID(user["id"]), "editor", host.caller)
        sent = await http.post(f"{path}/send", json={"text": "/words=1"}, headers=keys)
        assert sent.status_code == 202
        if not keys:
            await server.http.delete(f"{path}/members/{user['id']}", headers=host.headers)
        assert (await http.request("DELETE", "/api/me", json={"password": PASSWORD})).status_code == 204
    response = await server.http.get(path, headers=host.headers)
    assert "/words=1" in response.text
    assert "Zeratul" not in response.text


async def test_an_export_has_everything_of_the_account_and_nothing_of_others(server: InProcessServer) -> None:
    async with browser(server) as http, browser(server) as other:
        user, runs = await register(http, name="Tassadar"), []
        await register(other)
        for thread in (await new_thread(http), await new_thread(http)):
            runs.append((await thread.send("/words=3"))["runId"])
            await thread.ended(runs[-1])
        strange = await new_thread(other)
        answer = await http.get("/api/me/export", headers={"Accept": "application/jsonl"})
        assert answer.headers["content-type"].startswith("application/jsonl")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        kinds = [line["type"] for line in lines]
        assert kinds[0] == "user"
        assert lines[0]["data"]["id"] == user["id"]
        counted = {kind: kinds.count(kind) for kind in kinds if kind != "part"}
        assert counted == {"user": 1, "thread": 2, "message": 6, "run": 2, "receipt": 2}
        for run_id in runs:
            parts = [line["data"] for line in lines if line["type"] == "part" and line["data"]["runId"] == run_id]
            assert [part["seq"] for part in parts] == list(range(len(parts)))
            assert "".join(part["data"].get("text", "") for part in parts) == "word1 word2 word3"
            assert parts[-1]["kind"] == "finish"
        assert strange.id not in answer.text
        assert "argon2" not in answer.text


async def test_the_audit_trail_names_each_action_and_no_secret(server: InProcessServer) -> None:
    async with browser(server, **{"X-Forwarded-For": "203.0.113.9"}) as http:
        email, thread = address(), await server.thread()
        await register(http, email, claim=[{"threadId": thread.id, "anonKey": thread.key}])
        made = await token(http, "read")
        path = f"/api/threads/{thread.id}"
        link = (await http.post(f"{path}/links", json={"role": "viewer"})).json()
        await http.delete(f"{path}/links/{link['id']}")
        await http.patch(path, json={"visibility": "private"})
        await http.delete(f"/api/tokens/{made['id']}")
        await http.post("/api/auth/password", json={"new": ANOTHER, "current": PASSWORD})
        await login(http, email, WRONG)
        await login(http, email, ANOTHER)
        planned = {"title": "Plan", "steps": [{"id": "a", "title": "A"}]}
        plans = [(await http.post(f"{path}/plans", json=planned)).json()["id"] for _ in range(2)]
        await http.post(f"/api/plans/{plans[0]}/start")
        await http.delete(f"/api/plans/{plans[1]}")
        await http.delete(path)
        answer = await http.get("/api/me/audit")
        items = answer.json()["items"]
        assert [item["action"] for item in reversed(items)] == [
            "registered", "signed_in", "claimed", "token_made", "link_made", "link_revoked", "visibility_set",
            "token_revoked", "password_changed", "sign_in_failed", "signed_in", "plan_started",
            "plan_deleted", "thread_deleted",
        ]  # fmt: skip
        assert {item["network"] for item in items} == {"203.0.113.0/24"}
        secrets = (PASSWORD, ANOTHER, WRONG, thread.key, made["token"], link["shareKey"], http.cookies["khala_session"])
        assert not any(secret in answer.text for secret in secrets)
        page = (await http.get("/api/me/audit", params={"limit": 5})).json()["items"]
        rest = (await http.get("/api/me/audit", params={"before": page[-1]["id"]})).json()["items"]
        assert page + rest == items


async def test_a_name_is_changed_and_removed(server: InProcessServer) -> None:
    async with browser(server) as http:
        await register(http, name="Zeratul")
        assert (await http.patch("/api/me", json={"name": "Tassadar"})).json()["name"] == "Tassadar"
        assert "name" not in (await http.patch("/api/me", json={"name": None})).json()
        assert (await http.patch("/api/me", json={"name": ""})).status_code == 400


async def test_a_token_is_shown_once_and_stored_as_a_hash(server: InProcessServer, store: Database) -> None:
    async with browser(server) as http:
        await register(http)
        made = await token(http, "write", "read")
        assert made["token"].startswith("khala_")
        assert made["scopes"] == ["read", "write"]
        listed = await http.get("/api/tokens")
        assert made["token"] not in listed.text
        assert listed.json()["items"] == [{key: made[key] for key in made if key != "token"}]
        async with store.driver() as driver:
            row = await driver.fetchrow("SELECT api_tokens::text AS whole, * FROM api_tokens WHERE id = $1", made["id"])
            kept = await driver.fetchrow("SELECT count(*) FROM sessions WHERE secret_hash = $1",
                                         key_hash(http.cookies["khala_session"]))  # fmt: skip
        assert row["secret_hash"] == key_hash(made["token"])
        assert made["token"].removeprefix("khala_") not in row["whole"]
        assert kept[0] == 1


async def test_a_scope_that_is_named_twice_is_refused(server: InProcessServer) -> None:
    async with client(server.url) as http:
        body = {"email": f"{uuid4().hex}@example.com", "password": "en taro adun"}
        (await http.post("/api/auth/register", json=body)).raise_for_status()
        answer = await http.post("/api/tokens", json={"name": "CI", "scopes": ["read", "write", "read"]})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_input")
        assert [error["path"] for error in answer.json()["errors"]] == ["scopes"]
        assert (await http.get("/api/tokens")).json()["items"] == []


async def test_a_token_grants_its_scopes_only(server: InProcessServer) -> None:
    async with browser(server) as http:
        await register(http)
        thread = await new_thread(http)
        requests: dict[str, tuple[str, str, Any]] = {
            "read": ("GET", f"/api/threads/{thread.id}", None),
            "write": ("PATCH", f"/api/threads/{thread.id}", {"title": "Aiur"}),
            "account": ("GET", "/api/me/export", None),
        }
        for scope in requests:
            headers = bearer_headers(await token(http, scope))
            for needed, (method, path, body) in requests.items():
                answer = await server.http.request(method, path, json=body, headers=headers)
                assert (needed, answer.status_code) == (needed, 200 if needed == scope else 403)
        reading = bearer_headers(await token(http, "read", "write"))
        for method, path in (
            ("GET", "/api/tokens"), ("GET", "/api/me/sessions"), ("GET", "/api/me/audit"), ("DELETE", "/api/me"),
        ):  # fmt: skip
            assert (await server.http.request(method, path, headers=reading)).status_code == 403
        body = {"new": ANOTHER, "current": PASSWORD}
        assert (await server.http.post("/api/auth/password", json=body, headers=reading)).status_code == 403


async def test_a_token_cannot_create_one_with_more_scopes(server: InProcessServer) -> None:
    async with browser(server) as http:
        await register(http)
        narrow, wide = await token(http, "account"), await token(http, "read", "account")
        for by, scopes, status in (
            (narrow, ["account"], 201), (narrow, ["read"], 403), (narrow, ["read", "write", "account"], 403),
            (narrow, None, 403), (wide, ["read"], 201), (wide, ["write"], 403), (wide, None, 403),
        ):  # fmt: skip
            body = {"name": "more"} | ({} if scopes is None else {"scopes": scopes})
            assert (await server.http.post("/api/tokens", json=body, headers=bearer_headers(by))).status_code == status
        for bad in ([], ["admin"], ["read", 1]):
            assert (await http.post("/api/tokens", json={"name": "bad", "scopes": bad})).status_code == 400


async def test_an_expired_or_revoked_token_is_refused(server: InProcessServer, store: Database) -> None:
    async with browser(server) as http, browser(server) as other:
        await register(http)
        await register(other)
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        expiring, revoked = await token(http, "read", expiresAt=soon), await token(http, "read")
        for made in (expiring, revoked):
            assert (await server.http.get("/api/me", headers=bearer_headers(made))).status_code == 200
        assert (await other.delete(f"/api/tokens/{revoked['id']}")).status_code == 404
        assert (await server.http.get("/api/me", headers=bearer_headers(revoked))).status_code == 200
        assert (await http.delete(f"/api/tokens/{revoked['id']}")).status_code == 204
        async with store.driver() as driver:
            await driver.execute("UPDATE api_tokens SET expires_at = now() WHERE id = $1", expiring["id"])
        for made in (expiring, revoked):
            answer = await server.http.get("/api/me", headers=bearer_headers(made))
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        assert (await http.post("/api/tokens", json={"name": "late", "expiresAt": past})).status_code == 400


async def test_a_token_grants_no_access_to_another_account(server: InProcessServer) -> None:
    async with browser(server) as http, browser(server) as other:
        await register(http)
        theirs = await register(other)
        thread, headers = await new_thread(other), bearer_headers(await token(http, "read", "write", "account"))
        assert (await server.http.get("/api/me", headers=headers)).json()["id"] != theirs["id"]
        for method, path in (
            ("GET", f"/api/threads/{thread.id}"), ("DELETE", f"/api/threads/{thread.id}"),
            ("POST", f"/api/threads/{thread.id}/links"),
        ):  # fmt: skip
            body = {"role": "viewer"} if method == "POST" else None
            assert (await server.http.request(method, path, json=body, headers=headers)).status_code == 403
        (session,) = (await other.get("/api/me/sessions")).json()["items"]
        assert (await server.http.delete(f"/api/me/sessions/{session['id']}", headers=headers)).status_code == 404
        assert (await server.http.get("/api/threads", headers=headers)).json()["items"] == []


@pytest.mark.parametrize("bad", ["Bearer", "Basic YTpi", "Bearer khala_none", "Bearer a.b.c", "khala_x"])
async def test_an_invalid_bearer_token_is_unauthorized_whatever_other_credentials_there_are(
    server: InProcessServer, bad: str
) -> None:
    async with browser(server) as http:
        await register(http)
        answer = await http.get("/api/me", headers={"Authorization": bad})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
