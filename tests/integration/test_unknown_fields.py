"""Unknown fields and parameters of requests are refused with their path, over REST and over the WebSocket."""

import json
import uuid
from typing import Any

import httpx
import pytest
import websockets

from khala.store.postgres.database import Database
from tests.support.callers import person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import server_fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

server = server_fixture(with_executor=False)


def refused(answer: httpx.Response) -> dict[str, str]:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "invalid_input"), problem
    return {error["path"]: error["message"] for error in problem["errors"]}


async def test_a_send_with_a_misspelt_budget_starts_no_run(server: InProcessServer) -> None:
    thread = await server.thread()
    options = {"autoPilot": True, "budget": {"usdd": "0.01"}, "functions": [{"name": "f", "paramters": {}}]}
    answer = await server.http.post(
        f"/api/threads/{thread.id}/send", json={"text": "Go", "options": options}, headers=thread.headers
    )
    assert refused(answer) == {
        "options.autoPilot": "There is no field autoPilot here. Did you mean autopilot?",
        "options.budget.usdd": "There is no field usdd here. Did you mean usd?",
        "options.functions[0].paramters": "There is no field paramters here. Did you mean parameters?",
    }
    found = (await server.http.get(f"/api/threads/{thread.id}", headers=thread.headers)).json()
    assert [message["role"] for message in found["messages"]] == ["assistant"], "nothing but the welcome"


ID = str(uuid.uuid4())
BODIES: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("POST", "/api/threads"): ({"titel": "x"}, "titel"),
    ("PATCH", "/api/threads/{id}"): ({"title": "x", "activeleaf": ID}, "activeleaf"),
    ("POST", "/api/threads/{id}/messages"): (
        {"messages": [{"role": "user", "parts": [{"type": "text", "text": "x", "texts": 1}]}]},
        "messages[0].parts[0].texts",
    ),
    **{
        ("POST", f"/api/console/{path}"): ({"reasons": "x"}, "reasons")
        for path in (
            *(f"runs/{{id}}/{command}" for command in ("cancel", "end", "requeue", "retry")),
            *(f"accounts/{{id}}/{command}" for command in ("block", "unblock")),
            "threads/{id}/open",
        )
    },
    ("POST", "/api/console/webhooks/{id}/replay"): ({"since": "2026-01-31T00:00:00Z", "until": "x"}, "until"),
    ("POST", "/api/console/threads/{id}/fork"): ({"revision": 1, "grant": ID, "title": "x"}, "title"),
    ("PUT", "/api/console/budgets/{id}"): ({"limits": {"usdPerHour": 1}}, "limits.usdPerHour"),
    ("POST", "/api/schedules"): ({"text": "x", "cron": "* * * * *", "timezone": "UTC"}, "timezone"),
    ("PATCH", "/api/schedules/{id}"): ({"pause": True}, "pause"),
    ("POST", "/api/schedules/{id}/run"): ({"id": ID}, "id"),
    ("POST", "/api/threads/{id}/tokens"): ({"role": "viewer", "expires": 60}, "expires"),
    ("POST", "/api/webhooks"): ({"url": "https://example.org", "event": []}, "event"),
    ("PATCH", "/api/webhooks/{id}"): ({"enabled": True, "enable": True}, "enable"),
    ("POST", "/api/webhooks/{id}/secret"): ({"overlap": 1}, "overlap"),
    ("POST", "/api/webhooks/{id}/replay"): ({"since": "2026-01-31T00:00:00Z", "until": "x"}, "until"),
    ("POST", "/api/threads/{id}/regenerate"): ({"messageId": ID, "options": {"mode": "x"}}, "options.mode"),
    ("POST", "/api/threads/{id}/claim"): ({"anonKey": "x", "key": 1}, "key"),
    ("PUT", "/api/threads/{id}/read"): ({"revision": 1, "rev": 1}, "rev"),
    ("PUT", "/api/threads/{id}/members/{id}"): ({"role": "viewer", "rôle": 1}, "rôle"),
    ("POST", "/api/threads/{id}/links"): ({"role": "viewer", "expires": "never"}, "expires"),
    ("PUT", "/api/threads/{id}/tool-rules"): ({"items": [{"pattern": "*", "acton": "deny"}]}, "items[0].acton"),
    ("PUT", "/api/threads/{id}/workspace/file"): ({"content": "x", "before": "y", "after": "z"}, "after"),
    ("PUT", "/api/me/tool-rules"): ({"items": [], "item": []}, "item"),
    ("POST", "/api/agents"): ({"name": "poet", "title": "Poet", "tool": []}, "tool"),
    ("PATCH", "/api/agents/x"): ({"title": "Poet", "version": 2}, "version"),
    ("POST", "/api/route"): ({"text": "x", "thread": ID}, "thread"),
    ("POST", "/api/memories"): ({"text": "x", "expires": None}, "expires"),
    ("PATCH", "/api/memories/{id}"): ({"text": "x", "kinds": "fact"}, "kinds"),
    ("PATCH", "/api/threads/{id}/listing"): ({"pinned": True, "pin": True}, "pin"),
    ("POST", "/api/threads/{id}/invitations"): ({"email": "a@b.c", "role": "viewer", "name": "x"}, "name"),
    ("PUT", "/api/messages/{id}/feedback"): ({"rating": "up", "text": "x"}, "text"),
    ("PATCH", "/api/me/preferences"): ({"titles": True, "title": True}, "title"),
    ("PATCH", "/api/me/folder"): ({"agent": None, "agents": []}, "agents"),
    ("PUT", "/api/me/push/subscriptions"): (
        {"endpoint": "https://fcm.googleapis.com/x", "keys": {"p256dh": "x", "auth": "x", "key": "x"}},
        "keys.key",
    ),
    ("POST", "/api/connections/x"): ({"returnTo": "/", "return": "/"}, "return"),
    ("PATCH", "/api/me/memory"): ({"recall": True, "extract": "on"}, "extract"),
    ("PATCH", "/api/threads/{id}/memory"): ({"personal": True, "private": True}, "private"),
    ("POST", "/api/claims"): ({"items": [{"threadId": ID, "anonkey": ""}]}, "items[0].anonkey"),
    ("POST", "/api/runs/{id}/cancel"): ({"why": "x"}, "why"),
    ("POST", "/api/runs/{id}/approvals/call"): ({"approved": True, "editedargs": {}}, "editedargs"),
    ("POST", "/api/auth/register"): ({"email": "a@b.c", "password": "x", "claims": []}, "claims"),
    ("POST", "/api/auth/login"): ({"email": "a@b.c", "password": "x", "claim": [{"thread": 1}]}, "claim[0].thread"),
    ("POST", "/api/auth/password"): ({"new": "x", "old": "y"}, "old"),
    ("PATCH", "/api/me"): ({"name": "x", "mail": "y"}, "mail"),
    ("DELETE", "/api/me"): ({"pasword": "x"}, "pasword"),
    ("POST", "/api/tokens"): ({"name": "x", "scope": ["read"]}, "scope"),
    ("POST", "/api/tools"): ({"name": "x", "permission": ["code"]}, "permission"),
    ("POST", "/api/workspace/repositories"): ({"url": "https://git.example.org/o/r", "branch": "main"}, "branch"),
    ("POST", "/api/threads/{id}/plans"): ({"title": "x", "steps": [{"id": "a", "titel": "x"}]}, "steps[0].titel"),
    ("POST", "/api/threads/{id}/plans/import"): ({"format": "prd", "document": "{}", "goal": "x"}, "goal"),
    ("POST", "/api/threads/{id}/plans/draft"): ({"goal": "x", "options": {"modell": "x"}}, "options.modell"),
    ("POST", "/api/plans/{id}/pause"): ({"forced": True}, "forced"),
    ("PATCH", "/api/plans/{id}"): ({"config": {"budget": {"euro": 1}}}, "config.budget.euro"),
    ("POST", "/api/plans/{id}/iterations"): ({"by": 1, "from": 1}, "from"),
    ("POST", "/api/plans/{id}/edit"): ({"add": [], "added": []}, "added"),
    ("POST", "/api/tools/x/decision"): ({"approved": True, "approve": False}, "approve"),
}  # fmt: skip


@pytest.mark.parametrize("verb_and_path", BODIES, ids=" ".join)
async def test_every_body_with_an_unknown_field_is_refused(
    server: InProcessServer, store: Database, verb_and_path: tuple[str, str]
) -> None:
    verb, path = verb_and_path
    body, place = BODIES[verb_and_path]
    who = await person(store)
    needed = {"/api/me/folder": {"name": "x"}, "/api/threads/{id}/workspace/file": {"path": "x"}}
    answer = await server.http.request(
        verb, path.replace("{id}", ID), params=needed.get(path), json=body, headers=who.headers
    )
    assert place in refused(answer)


async def test_every_route_with_a_json_body_has_a_case(server: InProcessServer) -> None:
    document = (await server.http.get("/api/openapi.json")).json()
    routes = {
        (verb.upper(), path)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    names = {
        "thread_id": "{id}",
        "message_id": "{id}",
        "run_id": "{id}",
        "user_id": "{id}",
        "memory_id": "{id}",
        "plan_id": "{id}",
        "schedule_id": "{id}",
        "webhook_id": "{id}",
        "shown_run_id": "{id}",
        "shown_thread_id": "{id}",
        "account_id": "{id}",
        "call_id": "call",
        "name": "x",
    }
    for name, stands_for in names.items():
        routes = {(verb, path.replace(f"{{{name}}}", stands_for)) for verb, path in routes}
    routes -= {route for route in routes if route[1].startswith("/api/executor/")}  # They need a worker's token.
    assert routes - {("POST", "/api/threads/{id}/send")} == set(BODIES)


async def test_unknown_fields_are_listed_up_to_a_maximum(server: InProcessServer) -> None:
    answer = await server.http.post("/api/threads", json={f"field{number}": 1 for number in range(1000)})
    assert list(refused(answer)) == [f"field{number}" for number in range(20)]


async def test_a_misspelt_query_parameter_is_refused_except_by_probes(server: InProcessServer) -> None:
    thread = await server.thread()
    answer = await server.http.get(f"/api/threads/{thread.id}?limt=1", headers=thread.headers)
    assert refused(answer) == {"limt": "There is no query parameter limt here. Did you mean limit?"}
    assert (await server.http.get(f"/api/threads/{thread.id}?limit=1", headers=thread.headers)).status_code == 200
    assert "Limit" in refused(await server.http.get("/api/threads?Limit=1", headers=thread.headers))
    assert (await server.http.get("/api/health/live?from=balancer")).status_code == 200
    assert (await server.http.options("/api/threads?limt=1")).status_code == 204


async def test_a_frame_with_an_unknown_field_gets_an_error_with_its_path_and_has_no_effect(
    server: InProcessServer,
) -> None:
    thread = await server.thread()
    async with websockets.connect(f"{server.url.replace('http', 'ws')}/api/ws") as socket:
        assert json.loads(await socket.recv())["type"] == "hello"
        follow = {"type": "subscribe", "threadId": thread.id, "anonKey": thread.key}
        await socket.send(json.dumps(follow | {"aftr": 0}))
        assert json.loads(await socket.recv()) == {
            "type": "error",
            "threadId": thread.id,
            "code": "invalid_input",
            "message": "There is no field aftr here. Did you mean after?",
            "path": "aftr",
        }
        await socket.send(json.dumps({"type": "ping", "threadId": thread.id}))
        assert json.loads(await socket.recv())["path"] == "threadId"
        await socket.send(json.dumps(follow))
        assert json.loads(await socket.recv())["type"] == "snapshot"
