"""The access matrix: every route and every frame, tried by every kind of caller.

A route or frame without a row fails the test.
"""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import httpx
import msgspec
import pytest
import pytest_asyncio
from litestar.routes import ASGIRoute, BaseRoute, HTTPRoute, WebSocketRoute
from websockets import InvalidStatus, Subprotocol
from websockets.asyncio.client import connect

from khala.api.accounts.push import BROWSER
from khala.api.application import create_routes
from khala.api.http.problem_details import STATUS
from khala.domain import frames
from khala.domain.access import Caller, key_hash
from khala.domain.memories import MemorySpace, NewMemory
from khala.domain.plans.events import Created
from khala.domain.plans.plan import PlanConfig, PlannedStep
from khala.store.memories import memories
from khala.store.plans import plans
from khala.store.postgres.database import Database
from khala.store.runs import detail_tokens
from tests.support.blobs import create_blob
from tests.support.callers import CallerSet, create_callers, secrets_of
from tests.support.client import client
from tests.support.frames import Socket, socket
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared
from tests.support.store import ask

WHO = (
    "no one", "wrong key", "right key", "viewer link", "editor link", "expired link",
    "invited", "viewer", "editor", "owner", "other user", "revoked token", "viewer token", "editor token",
)  # fmt: skip
GOOD = range(200, 400)
NOBODY, STRANGERS = {"revoked token": 401}, ("no one", "wrong key", "expired link", "other user")
LOOKING_ON, WRITING = ("viewer link", "invited", "viewer"), ("editor link", "editor")
"""Who is invited only reads, whatever they are invited to be."""
THREAD_TOKENS = {"viewer token": "viewer link", "editor token": "editor link"}
"""Holders of thread tokens may do in the thread what holders of these links may, and nothing elsewhere."""
USERS = ("invited", "viewer", "editor", "owner", "other user")


def _only(forbidden: tuple[str, ...]) -> dict[str, int]:
    return NOBODY | dict.fromkeys(forbidden, 403)


OPEN: dict[str, int] = {}
"""Anybody, whatever they show."""
ANYBODY = NOBODY
"""Anybody; only a token that is not good is told so."""
READERS = _only(STRANGERS)
WRITERS = _only((*STRANGERS, *LOOKING_ON))
OWNERS = _only((*STRANGERS, *LOOKING_ON, *WRITING))
ACCOUNTS = NOBODY | dict.fromkeys(set(WHO) - set(USERS), 401)
SHOWN = NOBODY | {"no one": 401}
KEYS_AND_USERS = ("wrong key", "right key", *USERS)
KEYED = NOBODY | dict.fromkeys(set(WHO) - set(KEYS_AND_USERS) - {"revoked token"}, 401)
"""Accounts, and whoever sends an anonymous key, whatever it opens."""
NO_SUCH = {"right key": 404}
"""The thread with a key has no members and no links."""
READING_ACCOUNTS = ACCOUNTS | {"other user": 403}

LISTLESS = ("viewer link", "editor link", "invited")
"""Who reads the thread, and has it on no list."""
WORKERS = ACCOUNTS | dict.fromkeys(USERS, 403)
"""Only the token of a worker: `tests/integration/test_executor_rights.py`."""
RUNS_PLANS = dict.fromkeys(("right key", "editor link", "editor", "owner"), 409)
"""Who may give a plan commands. The plan of the scene is idle, so that it can neither pause nor resume."""

WHILE_WRITTEN = {"owner": 409}
"""The answer of the scene is being written."""

CONSOLE = (
    "GET overview",
    "GET executors",
    "GET tools/slow",
    "GET spend",
    "GET runs",
    "GET runs/{shown_run_id}",
    "GET threads",
    "GET threads/{shown_thread_id}",
    "GET threads/{shown_thread_id}/revisions",
    "GET threads/{shown_thread_id}/at",
    "GET accounts",
    "GET accounts/{account_id}",
    "GET budgets",
    "GET budgets/{account_id}",
    "GET blobs",
    "GET blobs/usage",
    "GET webhooks",
    "GET webhooks/{webhook_id}",
    "GET webhooks/{webhook_id}/deliveries",
    "GET schedules",
    "GET audit",
    "POST runs/{shown_run_id}/cancel",
    "POST runs/{shown_run_id}/end",
    "POST runs/{shown_run_id}/requeue",
    "POST runs/{shown_run_id}/retry",
    "POST threads/{shown_thread_id}/open",
    "POST threads/{shown_thread_id}/fork",
    "POST accounts/{account_id}/block",
    "POST accounts/{account_id}/unblock",
    "PUT budgets/{account_id}",
    "POST webhooks/{webhook_id}/replay",
)
"""The routes of the console, which only administrators see: `tests/integration/test_console_lists.py`."""

MATRIX: dict[str, dict[str, int]] = {
    **{f"{route.split(' ')[0]} /api/console/{route.split(' ')[1]}": WORKERS for route in CONSOLE},
    "POST /api/threads": ANYBODY,
    "GET /api/threads": SHOWN,
    "GET /api/threads/{thread_id}": READERS,
    "GET /api/threads/{thread_id}/messages": READERS,
    "GET /api/threads/{thread_id}/events": READERS,
    "PATCH /api/threads/{thread_id}": WRITERS,
    "PATCH /api/threads/{thread_id} visibility": OWNERS,
    "PATCH /api/threads/{thread_id}/listing": READERS | dict.fromkeys(LISTLESS, 403),
    "POST /api/threads/{thread_id}/restore": OWNERS,
    "GET /api/threads/{thread_id}/export": READERS,
    "GET /api/threads/{thread_id}/workspace": WRITERS,
    "GET /api/threads/{thread_id}/workspace/file": WRITERS
    | dict.fromkeys(("right key", "owner", *WRITING, "editor token"), 404),
    "PUT /api/threads/{thread_id}/workspace/file": WRITERS
    | dict.fromkeys(("right key", "owner", *WRITING, "editor token"), 404),
    "GET /api/threads/{thread_id}/feedback": READERS,
    "PUT /api/messages/{message_id}/feedback": READERS,
    "DELETE /api/messages/{message_id}/feedback": READERS,
    "DELETE /api/threads/{thread_id}": OWNERS,
    "POST /api/threads/{thread_id}/reset": OWNERS,
    "POST /api/threads/{thread_id}/send": WRITERS,
    "POST /api/threads/{thread_id}/regenerate": WRITERS,
    "POST /api/threads/{thread_id}/messages": WRITERS,
    "POST /api/threads/{thread_id}/messages instructions": OWNERS,
    "POST /api/threads/{thread_id}/claim": ACCOUNTS | dict.fromkeys(("invited", "viewer", "editor", "other user"), 403),
    "PUT /api/threads/{thread_id}/read": READING_ACCOUNTS,
    "POST /api/threads/{thread_id}/join": READING_ACCOUNTS,
    "GET /api/threads/{thread_id}/access": READERS,
    "GET /api/threads/{thread_id}/members": READERS,
    "PUT /api/threads/{thread_id}/members/{user_id}": OWNERS,
    "DELETE /api/threads/{thread_id}/members/{user_id}": OWNERS | NO_SUCH,
    "POST /api/threads/{thread_id}/invitations": OWNERS | dict.fromkeys(("right key", "owner"), 404),
    "POST /api/threads/{thread_id}/links": OWNERS,
    "GET /api/threads/{thread_id}/links": OWNERS,
    "DELETE /api/threads/{thread_id}/links/{link_id}": OWNERS | NO_SUCH,
    "POST /api/threads/{thread_id}/tokens": OWNERS,
    "GET /api/threads/{thread_id}/tokens": OWNERS,
    "DELETE /api/threads/{thread_id}/tokens/{token_id}": OWNERS | dict.fromkeys(("right key", "owner"), 404),
    "GET /api/runs/{run_id}": READERS,
    "GET /api/runs/{run_id}/cursor": READERS,
    "GET /api/runs/{run_id}/parts": READERS,
    "GET /api/runs/{run_id}/receipts": READERS,
    "GET /api/runs/{run_id}/context": READERS,
    "GET /api/runs/{run_id}/memories": READERS,
    "GET /api/runs/{run_id}/approvals": READERS,
    "POST /api/runs/{run_id}/approvals/{call_id}": WRITERS | dict.fromkeys(("right key", *WRITING, "owner"), 404),
    "POST /api/runs/{run_id}/cancel": WRITERS,
    "POST /api/threads/{thread_id}/blobs": WRITERS,
    "GET /api/blobs/{blob_id}": READERS,
    "HEAD /api/blobs/{blob_id}": READERS,
    "GET /api/blobs/{blob_id}/lines": READERS,
    "POST /api/claims": ACCOUNTS,
    "GET /api/auth": OPEN,
    "POST /api/auth/register": ANYBODY,
    "POST /api/auth/login": dict.fromkeys(WHO, 401),
    "POST /api/auth/logout": ANYBODY,
    "POST /api/auth/password": ACCOUNTS,
    "GET /api/auth/oidc/login": ANYBODY | dict.fromkeys(set(WHO) - {"revoked token"}, 404),
    "GET /api/auth/oidc/callback": ANYBODY,
    "GET /api/me": ACCOUNTS,
    "PATCH /api/me": ACCOUNTS,
    "DELETE /api/me": ACCOUNTS,
    "GET /api/me/export": ACCOUNTS,
    "GET /api/me/invitations": ACCOUNTS,
    "GET /api/me/usage": SHOWN,
    "GET /api/me/usage/receipts": ACCOUNTS,
    "GET /api/me/audit": ACCOUNTS,
    "GET /api/me/sessions": ACCOUNTS,
    "DELETE /api/me/sessions/{session_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/tokens": ACCOUNTS,
    "GET /api/tokens": ACCOUNTS,
    "DELETE /api/tokens/{token_id}": ACCOUNTS,
    "GET /api/grants": ACCOUNTS,
    "DELETE /api/grants/{grant_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /api/connections": ACCOUNTS,
    "POST /api/connections/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/connections/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /api/connections/{name}/start": ANYBODY,
    "GET /api/connections/{name}/callback": ANYBODY,
    "GET /api/connections/client-metadata": dict.fromkeys(WHO, 404),
    "POST /api/schedules": ACCOUNTS,
    "POST /api/schedules of a thread": ACCOUNTS | dict.fromkeys(("invited", "viewer", "other user"), 403),
    "GET /api/schedules": ACCOUNTS,
    "GET /api/schedules/preview": ACCOUNTS,
    "GET /api/schedules/{schedule_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "PATCH /api/schedules/{schedule_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/schedules/{schedule_id}/run": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/schedules/{schedule_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/webhooks": ACCOUNTS,
    "GET /api/webhooks": ACCOUNTS,
    "GET /api/webhooks/{webhook_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "PATCH /api/webhooks/{webhook_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/webhooks/{webhook_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/webhooks/{webhook_id}/secret": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/webhooks/{webhook_id}/test": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /api/webhooks/{webhook_id}/deliveries": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/webhooks/{webhook_id}/replay": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/imports": ACCOUNTS,
    "GET /api/agents": ANYBODY,
    "POST /api/agents": ACCOUNTS,
    "GET /api/agents/{name}": dict.fromkeys(WHO, 404) | NOBODY,
    "PATCH /api/agents/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/agents/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/agents/{name}/link": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/agents/{name}/link": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/route": ACCOUNTS,
    "POST /api/route of a thread": WRITERS,
    "POST /api/memories": ACCOUNTS,
    "POST /api/memories of a thread": WRITERS,
    "GET /api/memories": ACCOUNTS,
    "GET /api/memories of a thread": READERS,
    "DELETE /api/memories": ACCOUNTS,
    "DELETE /api/memories of a thread": WRITERS,
    "PATCH /api/memories/{memory_id}": NOBODY | dict.fromkeys((*STRANGERS, *LOOKING_ON), 404),
    "DELETE /api/memories/{memory_id}": NOBODY | dict.fromkeys((*STRANGERS, *LOOKING_ON), 404),
    "GET /api/memories/proposals": KEYED,
    "POST /api/memories/proposals/{proposal_id}/accept": KEYED | dict.fromkeys(KEYS_AND_USERS, 404),
    "DELETE /api/memories/proposals/{proposal_id}": KEYED | dict.fromkeys(KEYS_AND_USERS, 404),
    "GET /api/me/folders": KEYED,
    "GET /api/me/folder": KEYED | dict.fromkeys(KEYS_AND_USERS, 404),
    "PATCH /api/me/folder": KEYED | {"wrong key": 404},  # It opens no thread.
    "DELETE /api/me/folder": KEYED,
    "GET /api/me/folder/files": ACCOUNTS,
    "POST /api/me/folder/files": ACCOUNTS,
    "GET /api/me/folder/files/{file_id}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/me/folder/files/{file_id}": ACCOUNTS,
    "GET /api/me/preferences": KEYED,
    "PATCH /api/me/preferences": KEYED,
    "GET /api/me/push": KEYED,
    "PUT /api/me/push/subscriptions": KEYED | {"wrong key": 404},
    "DELETE /api/me/push/subscriptions/{subscription_id}": KEYED | dict.fromkeys(KEYS_AND_USERS, 404),
    "GET /api/me/memory": KEYED,
    "PATCH /api/me/memory": KEYED,
    "GET /api/threads/{thread_id}/memory": READERS,
    "PATCH /api/threads/{thread_id}/memory": dict.fromkeys(set(WHO) - {"owner"}, 403) | NOBODY,
    "GET /api/search": SHOWN,
    "GET /api/search of a thread": READERS,
    "POST /api/threads/{thread_id}/plans": WRITERS,
    "POST /api/threads/{thread_id}/plans/import": WRITERS,
    "POST /api/threads/{thread_id}/plans/draft": WRITERS,
    "GET /api/threads/{thread_id}/plans/draft/{plan_id}": READERS | dict.fromkeys(set(WHO) - set(READERS), 404),
    "GET /api/threads/{thread_id}/plans": READERS,
    "GET /api/plans/{plan_id}": READERS,
    "GET /api/plans/{plan_id}/steps": READERS,
    "GET /api/plans/{plan_id}/events": READERS,
    "GET /api/plans/{plan_id}/export": READERS,
    "DELETE /api/plans/{plan_id}": WRITERS,
    "PATCH /api/plans/{plan_id}": WRITERS,
    "POST /api/plans/{plan_id}/start": WRITERS,
    "POST /api/plans/{plan_id}/pause": WRITERS | RUNS_PLANS,
    "POST /api/plans/{plan_id}/resume": WRITERS | RUNS_PLANS,
    "POST /api/plans/{plan_id}/stop": WRITERS,
    "POST /api/plans/{plan_id}/iterations": WRITERS,
    "POST /api/plans/{plan_id}/edit": WRITERS,
    "POST /api/plans/{plan_id}/steps/{step_id}/retry": WRITERS,
    "POST /api/plans/{plan_id}/steps/{step_id}/skip": WRITERS,
    "POST /api/plans/{plan_id}/steps/{step_id}/cancel": WRITERS,
    "POST /api/chat": WRITERS,
    "GET /api/chat/{chat_id}": READERS,
    "GET /api/chat/{chat_id}/stream": READERS,
    "POST /api/chat/{chat_id}/stop": WRITERS,
    "POST /api/ag-ui": WRITERS,
    "POST /api/ag-ui/ndjson": WRITERS,
    "GET /api/ag-ui of a thread": READERS,
    "GET /api/ag-ui/ndjson of a thread": READERS,
    "POST /api/ag-ui/{thread_name}/stop": WRITERS,
    "GET /api/models": OPEN,
    "GET /api/tools": ANYBODY,
    "POST /api/tools": ACCOUNTS,
    "GET /api/tools/mine": ACCOUNTS,
    "POST /api/tools/{name}/decision": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /api/tools/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /api/workspace/repositories": ACCOUNTS,
    "GET /api/me/tool-rules": ACCOUNTS,
    "PUT /api/me/tool-rules": ACCOUNTS,
    "GET /api/threads/{thread_id}/tool-rules": READERS,
    "PUT /api/threads/{thread_id}/tool-rules": OWNERS,
    "GET /api/health/live": OPEN,
    "GET /api/health/ready": OPEN,
    "POST /v1/chat/completions": ACCOUNTS,
    "POST /v1/responses": ACCOUNTS,
    "GET /v1/responses/{response_id}": READING_ACCOUNTS,
    "GET /v1/responses/{response_id}/input_items": READING_ACCOUNTS,
    "POST /v1/responses/{response_id}/cancel": READING_ACCOUNTS | dict.fromkeys(("invited", "viewer"), 403),
    "DELETE /v1/responses/{response_id}": READING_ACCOUNTS | dict.fromkeys(("invited", "viewer", "editor"), 403),
    "POST /v1/conversations": ACCOUNTS,
    "GET /v1/conversations/{conversation_id}": READING_ACCOUNTS,
    "POST /v1/conversations/{conversation_id}": READING_ACCOUNTS | dict.fromkeys(("invited", "viewer"), 403),
    "DELETE /v1/conversations/{conversation_id}": READING_ACCOUNTS
    | dict.fromkeys(("invited", "viewer", "editor"), 403),
    "GET /v1/conversations/{conversation_id}/items": READING_ACCOUNTS,
    "POST /v1/conversations/{conversation_id}/items": READING_ACCOUNTS
    | dict.fromkeys(("invited", "viewer", "editor"), 403)
    | WHILE_WRITTEN,
    "GET /v1/conversations/{conversation_id}/items/{item_id}": READING_ACCOUNTS,
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": READING_ACCOUNTS
    | dict.fromkeys(("invited", "viewer"), 403)
    | {"editor": 409}
    | WHILE_WRITTEN,
    "POST /v1/embeddings": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /v1/models": ACCOUNTS,
    "GET /v1/openapi.json": OPEN,
    "GET /v1/models/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "PUT /v1/stream/{name}": ACCOUNTS,
    "POST /v1/stream/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /v1/stream/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "HEAD /v1/stream/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /v1/stream/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "GET /v1/stream/__ds/jwks.json": OPEN,
    "PUT /v1/stream/__ds/subscriptions/{name}": ACCOUNTS,
    "GET /v1/stream/__ds/subscriptions/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /v1/stream/__ds/subscriptions/{name}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /v1/stream/__ds/subscriptions/{name}/streams": ACCOUNTS | dict.fromkeys(USERS, 404),
    "DELETE /v1/stream/__ds/subscriptions/{name}/streams/{stream}": ACCOUNTS | dict.fromkeys(USERS, 404),
    "POST /v1/stream/__ds/subscriptions/{name}/claim": ACCOUNTS | dict.fromkeys(USERS, 404),
    # Only the token of a wake counts.
    "POST /v1/stream/__ds/subscriptions/{name}/callback": dict.fromkeys(WHO, 401),
    "POST /v1/stream/__ds/subscriptions/{name}/ack": dict.fromkeys(WHO, 401),
    "POST /v1/stream/__ds/subscriptions/{name}/release": dict.fromkeys(WHO, 401),
    "GET /v1/stream/threads/{thread_id}": READERS,
    "HEAD /v1/stream/threads/{thread_id}": READERS,
    # The call does not exist: only a caller who may read the thread gets a 404, all others a refusal.
    "GET /autopilot/detail/{token}": READERS | dict.fromkeys(("right key", *LOOKING_ON, *WRITING, "owner"), 404),
    "ASGI /mcp tools/list": ANYBODY,
    "ASGI /mcp tools/call": ACCOUNTS,
    "ASGI /mcp resources/list": ANYBODY,
    "ASGI /mcp resources/templates/list": ANYBODY,
    "ASGI /mcp resources/read": READERS,
    "ASGI /mcp prompts/list": ANYBODY,
    "ASGI /mcp prompts/get": ANYBODY,
    **{
        f"GET /.well-known/{name}": OPEN
        for name in (
            "oauth-protected-resource",
            "oauth-protected-resource/mcp",
            "oauth-protected-resource/mcp/{group}",
            "oauth-authorization-server",
            "openid-configuration",
        )
    },
    "POST /oauth/register": OPEN,
    # Without a client, nobody is asked for consent. The rest: `test_oauth_attacks.py`.
    "GET /oauth/authorize": dict.fromkeys(WHO, 400),
    "POST /oauth/authorize": dict.fromkeys(WHO, 403),
    "POST /oauth/token": dict.fromkeys(WHO, 400),
    "POST /oauth/revoke": dict.fromkeys(WHO, 400),
    "WEBSOCKET /api/ws": NOBODY | {"revoked token": 403},
    "WEBSOCKET /api/chat-socket": NOBODY | {"revoked token": 403},
    "WEBSOCKET /api/ag-ui/socket": NOBODY | {"revoked token": 403},
    "POST /api/executor/claim": WORKERS,
    "POST /api/executor/heartbeat": WORKERS,
    "POST /api/executor/runs/{run_id}/parts": WORKERS,
    "POST /api/executor/runs/{run_id}/approvals": WORKERS,
    "POST /api/executor/runs/{run_id}/blobs": WORKERS,
    "GET /api/executor/runs/{run_id}/blobs/{blob_id}": WORKERS,
    "POST /api/executor/runs/{run_id}/finish": WORKERS,
    "POST /api/executor/runs/{run_id}/release": WORKERS,
    "WEBSOCKET /api/executor/ws": dict.fromkeys(WHO, 403),
    "GET /groups": ANYBODY,
    "GET /mcp-servers": ACCOUNTS,
    "GET /health": OPEN,
    "GET /api/openapi.json": OPEN,
    "GET /api/openapi.json/{path}": OPEN | dict.fromkeys(WHO, 404),
    "GET /api/openapi.json/openapi.json": OPEN,
    "GET /": OPEN,
    "GET /t/{thread_id}": OPEN,
    "GET /console": OPEN,
    "GET /console/{view}": OPEN,
    "GET /preview": OPEN,
    "GET /sw.js": OPEN,
    "GET /web/{file_path}": OPEN,
    "HEAD /web/{file_path}": OPEN,
}
"""By route, who gets another answer than a good one. A word behind the path tells two uses of a route apart.

A route that is no HTTP route has its kind instead of a method. What is below the path of a mounted one is part of it.
"""

OF_ONE_THREAD = (
    "{thread_id}", "{message_id}", "{run_id}", "{blob_id}", "{plan_id}", "{chat_id}", "{thread_name}", "/api/chat",
    "/api/ag-ui", "/autopilot/detail/",
)  # fmt: skip
"""Routes that concern one thread have one of these in their path, and are open to thread tokens."""


READS = ("GET ", "HEAD ", "WEBSOCKET ", "ASGI /mcp resources/", "ASGI /mcp prompts/", "ASGI /mcp tools/list")
"""How routes begin that change nothing. The frames of an open socket have a matrix of their own."""


def expected_status(route: str, who: str) -> int | None:
    """The status that the matrix says; None for a good one."""
    refused = MATRIX[route]
    if who not in THREAD_TOKENS:
        return refused.get(who)
    of_thread = any(word in route.split(" ")[1] for word in OF_ONE_THREAD)
    # The reports of a wake have a token of their own.
    reports = "/__ds/" in route and route.endswith(REPORTS)
    authenticates = refused.get("revoked token") == 401 and not reports
    if route.startswith("WEBSOCKET") or of_thread or not authenticates:
        return refused.get(THREAD_TOKENS[who])
    return 403


TOOL = {
    "name": "shout", "description": "Say it in capitals.", "parameters": {"type": "object"}, "language": "python",
    "code": "print(1)",
}  # fmt: skip
REPOSITORIES = "http://127.0.0.1:9"
"""An allowed host, at an address that the SSRF guard refuses: the answer begins, and nothing is requested."""
REPORTS = ("callback", "ack", "release")
REPORT = {"wake_id": "w_1", "generation": 1}
"""A worker's report about a wake."""
QUEUED = {"ifBusy": "queue"}
QUESTION = {"role": "user", "content": "Hello?"}
SHOWN_QUESTION = {"id": "question", "role": "user", "parts": [{"type": "text", "text": "Hello?"}]}
SUBSCRIBED = dict.fromkeys(STRANGERS, "forbidden")
SIGNED_IN = dict.fromkeys(set(WHO) - set(USERS), "unauthorized")
FRAMES: dict[str, dict[str, str]] = {
    "subscribe": SUBSCRIBED,
    "unsubscribe": {},
    "presence": dict.fromkeys(STRANGERS, "invalid_input"),
    "watch": SIGNED_IN,
    "unwatch": {},
    "authenticate": {who: code for who, code in SIGNED_IN.items() if who not in THREAD_TOKENS},
    "ping": {},
}
"""By frame, who gets an error, and which. A presence can be told only of a thread that is followed."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(postgres_url: str, template: str) -> AsyncIterator[InProcessServer]:
    settings = {"KHALA_PUBLIC_THREADS": "1", "KHALA_REPOSITORY_HOSTS": f"gitea={REPOSITORIES}"}
    async with shared(postgres_url, template, with_executor=False, **settings) as inside:
        yield inside


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def documented(server: InProcessServer) -> Mapping[str, set[int]]:
    """The statuses that the OpenAPI documents have for each route."""
    documents = [
        (await server.http.get(path)).raise_for_status().json()["paths"]
        for path in ("/api/openapi.json", "/v1/openapi.json")
    ]
    return {
        f"{method.upper()} {path}": {int(status) for status in operation["responses"]}
        for document in documents
        for path, operations in document.items()
        for method, operation in operations.items()
        if method in ("get", "post", "put", "patch", "delete")
    }


pytestmark = pytest.mark.asyncio(loop_scope="module")


def known_routes() -> set[str]:
    app = create_routes(web=Path(), version="")
    return {f"{kind} {_plain(route.path_format)}" for route in app.routes for kind in _kinds(route)}


def _kinds(route: BaseRoute) -> set[str]:
    """The methods of an HTTP route, or the kind of any other route."""
    match route:
        case HTTPRoute():
            return {str(method) for method in route.methods} - {"OPTIONS"}
        case WebSocketRoute():
            return {"WEBSOCKET"}
        case ASGIRoute():
            return {"ASGI"}
        case _:
            raise AssertionError(f"The matrix knows no {type(route).__name__}.")


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"


async def test_every_route_is_in_the_matrix() -> None:
    assert known_routes() == {" ".join(name.split(" ")[:2]) for name in MATRIX}


async def test_the_statuses_of_most_routes_are_documented(documented: Mapping[str, set[int]]) -> None:
    assert len(documented.keys() & {" ".join(name.split(" ")[:2]) for name in MATRIX}) > 100


async def test_every_frame_is_in_the_matrix() -> None:
    assert {kind.__struct_config__.tag for kind in get_args(frames.ClientFrame)} == set(FRAMES)


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt: all callers, and the resources that the route names."""

    callers: CallerSet
    who: str
    run_id: uuid.UUID
    message_id: uuid.UUID
    answer_id: uuid.UUID
    blob_id: uuid.UUID
    memory_id: uuid.UUID
    plan_id: uuid.UUID
    detail_token: str

    @property
    def _thread_id(self) -> str:
        return str(self.callers.thread_of(self.who))

    @staticmethod
    def other_member(who: str) -> str:
        """The member whom this caller tries to change."""
        return "viewer" if who != "viewer" else "editor"

    def path(self, template: str) -> str:
        person = self.callers.people.get(self.who)
        return template.format(
            thread_id=self.callers.thread_of(self.who),
            chat_id=self.callers.thread_of(self.who),
            thread_name=self.callers.thread_of(self.who),
            message_id=self.answer_id,
            run_id=self.run_id,
            shown_run_id=self.run_id,
            shown_thread_id=self.callers.thread_of(self.who),
            account_id=self.callers.people["viewer"].id,
            response_id=f"resp_{self.run_id.hex}",
            conversation_id=f"conv_{self.callers.thread_of(self.who).hex}",
            item_id=f"msg_{self.message_id.hex}_1",
            user_id=self.callers.people[self.other_member(self.who)].id,
            link_id=self.callers.link_id,
            session_id=uuid.uuid4(),
            grant_id=uuid.uuid4(),
            group="files",
            webhook_id=uuid.uuid4(),
            token_id=person.token_id if person else uuid.uuid4(),
            blob_id=self.blob_id,
            memory_id=self.memory_id,
            plan_id=self.plan_id,
            step_id="a",
            proposal_id=uuid.uuid4(),
            subscription_id=uuid.uuid4(),
            schedule_id=uuid.uuid4(),
            token=self.detail_token,
            call_id="call",
            file_path="index.html",
            file_id=uuid.uuid4(),
            view="runs",
            name=uuid.uuid4().hex if template.startswith("/v1/stream/") else "shout",
            path="nothing",
            stream="events/a",
        )

    def body(self, route: str) -> Any:
        claim = {"threadId": str(self.callers.keyed_id), "anonKey": self.callers.key}
        sign_in = {"email": f"{uuid.uuid4().hex}@example.com", "password": "en taro adun"}
        bodies: dict[str, Any] = {
            "POST /api/threads": {},
            "PATCH /api/threads/{thread_id}": {"title": "Aiur"},
            "PATCH /api/threads/{thread_id} visibility": {"visibility": "public"},
            "POST /api/threads/{thread_id}/send": {"text": "Hello?", "options": QUEUED},
            "POST /api/threads/{thread_id}/messages": {"messages": [appended("assistant")]},
            "POST /api/threads/{thread_id}/messages instructions": {"messages": [appended("system")]},
            "POST /api/threads/{thread_id}/regenerate": {"messageId": str(self.message_id), "options": QUEUED},
            "POST /api/threads/{thread_id}/claim": {"anonKey": self.callers.key},
            "PUT /api/threads/{thread_id}/read": {"revision": 1},
            "PUT /api/threads/{thread_id}/members/{user_id}": {"role": "viewer"},
            "POST /api/threads/{thread_id}/links": {"role": "viewer"},
            "POST /api/threads/{thread_id}/tokens": {"role": "viewer"},
            "POST /api/chat": {"id": self._thread_id, "messages": [SHOWN_QUESTION], "options": QUEUED},
            "POST /api/ag-ui": agent_request(self._thread_id),
            "POST /api/ag-ui/ndjson": agent_request(self._thread_id),
            "POST /api/console/threads/{shown_thread_id}/fork": {"revision": 1, "grant": str(self.run_id)},
            "PUT /api/console/budgets/{account_id}": {"limits": None},
            "POST /api/console/webhooks/{webhook_id}/replay": {"since": "2026-01-31T00:00:00Z"},
            "POST /api/schedules": {"text": "Hello?", "cron": "0 7 * * *"},
            "POST /api/schedules of a thread": {"text": "Hello?", "cron": "0 7 * * *", "threadId": self._thread_id},
            "PATCH /api/schedules/{schedule_id}": {"paused": True},
            "POST /api/executor/claim": {"claimId": str(self.message_id)},
            "POST /api/executor/heartbeat": {"runs": []},
            "POST /api/executor/runs/{run_id}/parts": {
                "epoch": 1,
                "seq": 0,
                "parts": [{"kind": "text-delta", "data": {"text": "I was never asked."}}],
            },
            "POST /api/executor/runs/{run_id}/approvals": {"epoch": 1, "seq": 0, "toolCallId": "call_1"},
            "POST /api/executor/runs/{run_id}/finish": {"epoch": 1, "seq": 0, "status": "completed"},
            "POST /api/executor/runs/{run_id}/release": {"epoch": 1},
            "POST /api/connections/{name}": {"returnTo": "/"},
            "POST /api/agents": {"name": "poet", "title": "Poet"},
            "PATCH /api/agents/{name}": {"title": "Poet"},
            "POST /api/route": {"text": "Review the khala."},
            "POST /api/route of a thread": {"text": "Review the khala.", "threadId": self._thread_id},
            "POST /api/memories": {"text": "The khala binds us."},
            "POST /api/memories of a thread": {"text": "The khala binds us.", "threadId": self._thread_id},
            "PATCH /api/memories/{memory_id}": {"text": "The khala bound us."},
            "PATCH /api/me/memory": {"recall": True},
            "PATCH /api/me/preferences": {"titles": False},
            "PATCH /api/me/folder": {"instructions": "Rhyme."},
            "PUT /api/me/push/subscriptions": BROWSER,
            "POST /api/threads/{thread_id}/invitations": {"email": "nobody@example.org", "role": "viewer"},
            "PATCH /api/threads/{thread_id}/listing": {"pinned": True},
            "PUT /api/messages/{message_id}/feedback": {"rating": "up"},
            "PATCH /api/threads/{thread_id}/memory": {"personal": False},
            "POST /api/threads/{thread_id}/plans": {"title": "Trip", "steps": [{"id": "a", "title": "Pack"}]},
            "POST /api/threads/{thread_id}/plans/import": {"format": "markdown", "document": "- [ ] Pack"},
            "POST /api/threads/{thread_id}/plans/draft": {"goal": "Aiur", "options": QUEUED},
            "PATCH /api/plans/{plan_id}": {"mode": "all"},
            "POST /api/plans/{plan_id}/iterations": {"by": 1},
            "POST /api/plans/{plan_id}/edit": {"remove": ["a"]},
            "POST /api/claims": {"items": [claim]},
            "POST /api/auth/register": sign_in,
            "POST /api/auth/login": sign_in,
            "POST /api/auth/password": {"new": "en taro tassadar", "email": sign_in["email"]},
            "PATCH /api/me": {"name": "Zeratul"},
            "POST /api/tokens": {"name": "another"},
            "POST /oauth/register": {"redirect_uris": ["http://127.0.0.1/callback"]},
            "POST /api/webhooks": {"url": "https://8.8.8.8/hooks", "events": ["plan.stopped"]},
            "PATCH /api/webhooks/{webhook_id}": {"enabled": True},
            "POST /api/webhooks/{webhook_id}/replay": {"since": "2026-01-31T00:00:00Z"},
            "POST /api/tools": TOOL,
            "POST /api/runs/{run_id}/approvals/{call_id}": {"approved": True},
            "POST /v1/chat/completions": {"model": "khala", "stream": True, "messages": [QUESTION]},
            "POST /v1/responses": {"model": "khala", "background": True, "input": "A question"},
            "POST /v1/conversations": {"metadata": {"topic": "khala"}},
            "POST /v1/conversations/{conversation_id}": {"metadata": {"topic": "khala"}},
            "POST /v1/conversations/{conversation_id}/items": {"items": [QUESTION]},
            "POST /v1/embeddings": {"model": "khala", "input": "A question"},
            "PUT /v1/stream/{name}": [],
            "POST /v1/stream/{name}": [{"event": "begun"}],
            "PUT /v1/stream/__ds/subscriptions/{name}": {
                "type": "pull-wake",
                "pattern": "events/*",
                "wake_stream": "wakes",
            },
            "POST /v1/stream/__ds/subscriptions/{name}/streams": {"streams": ["events/a"]},
            "POST /v1/stream/__ds/subscriptions/{name}/claim": {"worker": "probe"},
            **{f"POST /v1/stream/__ds/subscriptions/{{name}}/{report}": REPORT for report in REPORTS},
            "POST /api/tools/{name}/decision": {"approved": True},
            "POST /api/workspace/repositories": {"url": f"{REPOSITORIES}/owner/repo"},
            "PUT /api/threads/{thread_id}/workspace/file": {"content": "New", "before": "Old"},
            "PUT /api/me/tool-rules": {"items": []},
            "PUT /api/threads/{thread_id}/tool-rules": {"items": []},
        }
        return bodies.get(route)

    async def ask(self, http: httpx.AsyncClient, route: str) -> int:
        """The status of the response."""
        if route.startswith("ASGI /mcp "):
            return await self._ask_by_mcp(http, route.split(" ")[2])
        method, template = route.split(" ")[:2]
        if method == "WEBSOCKET":
            return await self._shake_hands(http, template)
        params = {"before": str(self.message_id)} if route.endswith("/messages") and method == "GET" else None
        if route.endswith(" of a thread") and method != "POST":
            params = {"threadId": self._thread_id}
        if template == "/api/schedules/preview":
            params = {"cron": "0 7 * * *"}
        if template.endswith("/at"):
            params = {"grant": str(self.run_id)}
        if template == "/api/me/folder":
            params = {"name": "Read" if method == "GET" else "Changed"}
        if template == "/api/me/folder/files":
            params = {"name": "Changed"} | ({"file": "notes.txt"} if method == "POST" else {})
        if template == "/api/search":
            params = (params or {}) | {"q": "khala"}
        elif route.endswith("/workspace/file"):
            params = {"path": "khala.md"}
        elif "/api/executor/" in template and "/blobs" in template:
            params = {"epoch": "1"}
        body = self.body(route)
        sending: dict[str, Any] = {} if body is None else {"json": body}
        if route.startswith("POST") and route.endswith(("/blobs", "/folder/files")):
            sending = {"content": b"a file"}
        if route == "POST /api/imports":
            sending = {"content": b"[]"}
        request = http.build_request(
            method, self.path(template), headers=self.callers.headers[self.who], params=params, **sending
        )
        response = await http.send(request, stream=True)
        await response.aclose()
        return response.status_code

    async def _ask_by_mcp(self, http: httpx.AsyncClient, method: str) -> int:
        """The status of the response, or the one of the code that the JSON-RPC error has."""
        params: dict[str, dict[str, Any]] = {
            "tools/call": {"name": "todo_list", "arguments": {}},
            "resources/read": {"uri": f"khala://blobs/{self.blob_id}"},
            "prompts/get": {"name": "summariser"},
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params.get(method, {})}
        headers = {"Accept": "application/json, text/event-stream"} | self.callers.headers[self.who]
        answer = await http.post("/mcp", json=body, headers=headers)
        code = re.search(r'"error":.*"data":\{"code":"(\w+)"', answer.text)
        return STATUS[code[1]] if code else answer.status_code

    async def _shake_hands(self, http: httpx.AsyncClient, path: str) -> int:
        """The status of the handshake; 200 if it succeeds."""
        url = str(http.base_url).replace("http", "ws", 1).rstrip("/") + path
        protocols = [Subprotocol("khala.v1")] if path == "/api/ws" else None
        try:
            async with connect(url, subprotocols=protocols, additional_headers=self.callers.headers[self.who]):
                return 200
        except InvalidStatus as error:
            return error.response.status_code


def appended(role: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "text": "En taro Adun"}]}


def agent_request(thread_id: str) -> dict[str, Any]:
    question = {"id": "question", "role": "user", "content": "Hello?"}
    forwarded = {"options": QUEUED}
    return {"threadId": thread_id, "runId": uuid.uuid4().hex, "messages": [question], "forwardedProps": forwarded}


async def scene(store: Database, who: str, everybody: CallerSet) -> Scene:
    thread_id = everybody.thread_of(who)
    requester = everybody.people["owner"].caller if thread_id == everybody.thread_id else None
    sent = await ask(store, thread_id, caller=requester, key=everybody.key)
    blob = await create_blob(store, thread_id)
    space = MemorySpace(scope="thread", owner_id=thread_id)
    memory, _ = await memories.add(store, space, NewMemory(text="We serve.", thread_id=thread_id))
    async with store.driver() as driver:
        facts: dict[str, Any] = {"thread_id": thread_id, "run_id": sent.run_id, "calls": ["call"]}
        tokens = await detail_tokens.create(driver, **facts, lifetime=timedelta(hours=1))
    return Scene(
        callers=everybody,
        who=who,
        run_id=sent.run_id,
        message_id=sent.user_message_id,
        answer_id=sent.assistant_message_id,
        blob_id=blob.blob_id,
        memory_id=memory.id,
        plan_id=await create_plan(store, thread_id, requester or Caller(anon_key_hash=key_hash(everybody.key))),
        detail_token=tokens["call"],
    )


async def create_plan(store: Database, thread_id: uuid.UUID, caller: Caller) -> uuid.UUID:
    """An idle plan with one step."""
    config = PlanConfig(agents=("default",))
    created = Created(
        at=datetime.now(UTC),
        title="Trip",
        config=config,
        mode="autopilot",
        max_iterations=10,
        steps=(PlannedStep(id="a", title="Pack"),),
    )
    plan, _ = await plans.create(store, uuid.uuid4(), thread_id, caller, created)
    return plan.id


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def common(store: Database) -> Mapping[str, Scene]:
    """A scene for each caller in `WHO`, for attempts that change nothing. All have one set of callers."""
    everybody = await create_callers(store)
    of_thread = {everybody.thread_of(who): await scene(store, who, everybody) for who in ("right key", "owner")}
    return {who: msgspec.structs.replace(of_thread[everybody.thread_of(who)], who=who) for who in WHO}


@pytest.mark.parametrize("route", MATRIX)
async def test_each_route_answers_each_caller_as_the_matrix_says(
    server: InProcessServer,
    store: Database,
    documented: Mapping[str, set[int]],
    common: Mapping[str, Scene],
    route: str,
) -> None:
    expected = {who: expected_status(route, who) for who in WHO}
    # Reads and refused requests change nothing for others.
    tries = [
        common[who]
        if route.startswith(READS) or status is not None
        else await scene(store, who, await create_callers(store, {who, "viewer", Scene.other_member(who)}))
        for who, status in expected.items()
    ]
    answers = dict(zip(WHO, await asyncio.gather(*(_tried(server, tried, route) for tried in tries)), strict=True))
    assert {who: None if status in GOOD else status for who, status in answers.items()} == expected
    name = " ".join(route.split(" ")[:2])
    assert set(answers.values()) <= documented.get(name, set(answers.values())), "statuses of the OpenAPI document"


async def _tried(server: InProcessServer, tried: Scene, route: str) -> int:
    async with client(server.url) as http:
        return await tried.ask(http, route)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("frame", FRAMES)
async def test_each_frame_is_answered_as_the_matrix_says(
    server: InProcessServer, common: Mapping[str, Scene], frame: str, who: str
) -> None:
    everybody = common[who].callers
    headers = everybody.headers[who]
    authorization = {name: value for name, value in headers.items() if name == "Authorization"}
    if who == "revoked token":
        await _refused(server, authorization)
        authorization = {}
    async with socket(server, additional_headers=authorization) as feed:
        code = await _answer(feed, frame, everybody, who)
    if who == "revoked token" and frame in ("subscribe", "presence"):
        assert code == {"subscribe": "forbidden", "presence": "invalid_input"}[frame]
    else:
        assert code == FRAMES[frame].get(who)


async def _refused(server: InProcessServer, headers: dict[str, str]) -> None:
    with pytest.raises(Exception, match="HTTP 403"):
        async with socket(server, additional_headers=headers):
            pass


async def _answer(feed: Socket, frame: str, everybody: CallerSet, who: str) -> str | None:
    thread_id, secrets = str(everybody.thread_of(who)), secrets_of(everybody.headers[who])
    subscribe = {"type": "subscribe", "threadId": thread_id, **secrets}
    if frame == "presence":
        await feed.send(subscribe)
        await feed.next()
    token = everybody.headers[who].get("Authorization", "Bearer none").removeprefix("Bearer ")
    frames: dict[str, dict[str, Any]] = {
        "subscribe": subscribe,
        "unsubscribe": {"threadId": thread_id},
        "presence": {"threadId": thread_id, "state": {"typing": True}},
        "authenticate": {"token": token},
    }
    await feed.send({"type": frame} | frames.get(frame, {}))
    await feed.send({"type": "ping"})
    while True:
        answer = await feed.next()
        if answer["type"] == "error":
            return str(answer["code"])
        if answer["type"] == "pong":
            return None
