"""The ASGI application: all routes, the page, the OpenAPI document, and the headers of every response."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import structlog
from litestar import Litestar, Request, Router
from litestar.config.cors import CORSConfig
from litestar.datastructures import MutableScopeHeaders
from litestar.di import Provide
from litestar.exceptions import HTTPException, SerializationException
from litestar.types import ASGIApp, ControllerRouterHandler, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from khala.api.accounts import session_cookie
from khala.api.accounts.account import AccountController
from khala.api.accounts.api_tokens import ApiTokenController
from khala.api.accounts.authentication import caller
from khala.api.accounts.oidc_login import OidcController
from khala.api.accounts.preferences import PreferencesController
from khala.api.accounts.push import PushController
from khala.api.accounts.sign_in import SignInController
from khala.api.ag_ui.routes import AgUiController
from khala.api.ag_ui.socket import agent_socket
from khala.api.agents.agents import AgentController
from khala.api.agents.routing import route_task
from khala.api.ai_sdk.routes import ChatController
from khala.api.ai_sdk.socket import chat_socket
from khala.api.blobs.blobs import BlobController
from khala.api.blobs.uploads import upload
from khala.api.console.routes import CONTROLLERS as CONSOLE_ROUTES
from khala.api.context import Context, bind_context, context_of
from khala.api.cursors.routes import read_cursor
from khala.api.executor.blobs import ExecutorBlobController
from khala.api.executor.routes import ExecutorController
from khala.api.executor.sockets import execute
from khala.api.http import web_page
from khala.api.http.allow_header import allow_header_hook
from khala.api.http.body_limits import MAX_BODY_BYTES
from khala.api.http.problem_details import EXAMPLES, HANDLERS
from khala.api.http.rate_limits import COST, PAGE_FILE_COST
from khala.api.http.request_origin import SAFE_METHODS, refuse_cross_site
from khala.api.http.request_telemetry import PROBES, count_response, route_of
from khala.api.http.strict_fields import check_body, check_query
from khala.api.imports.imports import import_chats
from khala.api.mcp.routes import McpController
from khala.api.mcp.routes import endpoint as mcp_endpoint
from khala.api.memories.memories import MemoryController
from khala.api.memories.proposals import MemoryProposalController
from khala.api.memories.settings import MemorySettingsController
from khala.api.oauth import router as oauth_router
from khala.api.oauth.grants import GrantController
from khala.api.openai import errors as openai_errors
from khala.api.openai.completion_options import HEADERS as OPENAI_HEADERS
from khala.api.openai.embeddings import embed
from khala.api.openai.routes import complete, list_models, read_model
from khala.api.openapi import document
from khala.api.operations.health import HealthController, health
from khala.api.operations.models import list_models as list_offered_models
from khala.api.plans.commands import PlanCommandController
from khala.api.plans.drafts import PlanDraftController
from khala.api.plans.plans import PlanController, ThreadPlanController
from khala.api.responses.conversations import ConversationController
from khala.api.responses.document import read_document
from khala.api.responses.routes import ResponseController
from khala.api.runs.runs import RunController
from khala.api.runs.tool_call_details import detail
from khala.api.schedules.schedules import ScheduleController
from khala.api.search.search import SearchController
from khala.api.sharing.sharing import SharingController, claim_threads
from khala.api.streams import stream_headers
from khala.api.streams.routes import StreamController
from khala.api.streams.subscriptions import SubscriptionController
from khala.api.streams.thread_streams import ThreadStreamController
from khala.api.threads.appends import append
from khala.api.threads.event_stream import events
from khala.api.threads.export import export_thread
from khala.api.threads.feedback import FeedbackController
from khala.api.threads.folder_files import FolderFileController
from khala.api.threads.folders import FolderController
from khala.api.threads.listings import ListingController
from khala.api.threads.sockets import follow
from khala.api.threads.threads import ThreadController
from khala.api.threads.workspace import WorkspaceController
from khala.api.tools.connections import ConnectionController
from khala.api.tools.repositories import load_repository
from khala.api.tools.tools import ToolController, ToolRuleController
from khala.api.webhooks.webhooks import WebhookController
from khala.domain.errors import InvalidInput
from khala.domain.json_bodies import check_containers

log = structlog.get_logger()

HEADERS = {
    "Content-Security-Policy": web_page.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(self)",
}
"""Headers of every response, including errors."""
UNCACHED_PREFIXES = ("/api/", "/v1/", "/autopilot/", "/mcp", "/oauth/", "/.well-known/", "/groups", "/health")
"""Responses below these paths must not be cached."""
LOGGED_PARAMETERS = ("thread_id", "run_id", "plan_id")
"""Path parameters that each log line of a request contains."""
CORS_HEADERS = (
    "Authorization", "X-Anon-Key", "X-Share-Key", "Content-Type", "Last-Event-ID",
    "Idempotency-Key", "Mcp-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name", *OPENAI_HEADERS,
    *stream_headers.REQUEST_HEADERS,
)  # fmt: skip
"""Headers that pages of allowed other origins may send."""
TLS_HEADERS = HEADERS | {"Strict-Transport-Security": "max-age=31536000"}
"""Headers of every response if the public URL of the server is HTTPS."""


API_ROUTES: Sequence[ControllerRouterHandler] = (
    ThreadController, ListingController, FolderController, FolderFileController, WorkspaceController, export_thread,
    FeedbackController, append,
    SharingController, claim_threads, RunController, list_offered_models, BlobController, upload, events, follow,
    SignInController, OidcController, AccountController, ApiTokenController, GrantController, ToolController,
    ToolRuleController, ConnectionController, AgentController, route_task, load_repository, MemoryController,
    PreferencesController, PushController, MemoryProposalController, MemorySettingsController, SearchController,
    ThreadPlanController, PlanController, PlanDraftController, PlanCommandController, read_cursor, ChatController,
    chat_socket, AgUiController, agent_socket, ScheduleController, WebhookController, import_chats, HealthController,
    ExecutorController, ExecutorBlobController, execute, *CONSOLE_ROUTES,
)  # fmt: skip
OPENAI_ROUTES: Sequence[ControllerRouterHandler] = (
    complete, embed, list_models, read_model, read_document, ResponseController, ConversationController,
)  # fmt: skip


class _OwnRouter(Router):
    """A router that one application owns. Litestar copies others deeply, because several applications may use one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the router itself. It and the copies of its handlers were created for the application."""
        return self


def application(context: Context, *, web: Path, version: str) -> ASGIApp:
    """Create the ASGI application of one server. `web` is the folder of the page's files."""
    routes = create_routes(web=web, version=version, allowed_origins=context.origins.allowed)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        bind_context(scope, context)
        await routes(scope, receive, send)

    return serve


def create_routes(*, web: Path, version: str, allowed_origins: tuple[str, ...] = ()) -> Litestar:
    """Create the routes. They take the context from the scope of each request, so that several servers can share them.

    `allowed_origins`: the origins whose pages may call.
    """
    handlers = openai_errors.wrap_handlers(HANDLERS)
    return Litestar(
        [
            _OwnRouter("/api", route_handlers=API_ROUTES, before_request=_check_request),
            _OwnRouter("/", route_handlers=[McpController, health, detail], before_request=_check_request),
            _OwnRouter(openai_errors.PREFIX, route_handlers=OPENAI_ROUTES, before_request=_check_request),
            _OwnRouter(
                "/v1/stream",
                route_handlers=[SubscriptionController, ThreadStreamController, StreamController],
                before_request=_check_request,
            ),
            mcp_endpoint,
            _OwnRouter("/", route_handlers=oauth_router.HANDLERS, before_request=_check_limit),
            _OwnRouter("/", route_handlers=web_page.routes(web), before_request=_check_file_request),
        ],
        dependencies={"context": Provide(_provide_context, sync_to_thread=False), "caller": Provide(caller)},
        exception_handlers=handlers,
        openapi_config=document.config(version, before_request=_check_limit),
        request_max_body_size=MAX_BODY_BYTES,
        cors_config=_cors(allowed_origins),
        before_send=[_add_headers, allow_header_hook(), _log_response],
        logging_config=None,
    )


def _provide_context(scope: Scope) -> Context:
    return context_of(scope)


async def _check_request(request: Request[Any, Any, Any]) -> None:
    context = context_of(request.scope)
    request.scope["state"].setdefault("began", time.monotonic())
    bind_contextvars(**{name: str(value) for name, value in request.path_params.items() if name in LOGGED_PARAMETERS})
    if not request.scope["path"].startswith(PROBES):
        context.limits.requests.check(request, context.origins, cost=request.route_handler.opt.get(COST, 1.0))
    if request.method not in SAFE_METHODS:
        has_cookie = session_cookie.session_secret(request, context.origins) is not None
        refuse_cross_site(request, context.origins, cookie=has_cookie)
    if not request.scope["path"].startswith(PROBES):
        check_query(request)
    if not request.route_handler.opt.get("raw_body"):
        await _check_json_body(request)


async def _check_file_request(request: Request[Any, Any, Any]) -> None:
    context = context_of(request.scope)
    context.limits.requests.check(request, context.origins, cost=PAGE_FILE_COST)


async def _check_limit(request: Request[Any, Any, Any]) -> None:
    context = context_of(request.scope)
    request.scope["state"].setdefault("began", time.monotonic())
    context.limits.requests.check(request, context.origins)


async def _check_json_body(request: Request[Any, Any, Any]) -> None:
    """Refuse bodies that are not JSON or take long to decode, and unknown fields.

    The required content type also refuses forms of other sites: browsers send it only after a CORS preflight.
    """
    if "transfer-encoding" not in request.headers and request.headers.get("content-length", "0") == "0":
        return
    if request.content_type[0].lower() != "application/json":
        raise HTTPException(status_code=415, detail=EXAMPLES["unsupported_media_type"])
    check_containers(await request.body())
    try:
        body = await request.json()
    except (SerializationException, ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is not valid JSON: {error}.") from error
    check_body(request, body)


async def _add_headers(message: Message, scope: Scope) -> None:
    if message["type"] != "http.response.start":
        return
    headers = MutableScopeHeaders.from_message(message)
    public_url = context_of(scope).origins.public_url or ""
    for name, value in (TLS_HEADERS if public_url.startswith("https:") else HEADERS).items():
        headers.setdefault(name, value)
    if scope["path"].startswith(UNCACHED_PREFIXES):
        headers.setdefault("Cache-Control", "no-store")


async def _log_response(message: Message, scope: Scope) -> None:
    """Log one line per request, with the milliseconds until its response began. Health checks are not logged."""
    if message["type"] != "http.response.start" or scope["path"].startswith(PROBES):
        return
    started_at = scope["state"].get("began")
    milliseconds = None if started_at is None else round((time.monotonic() - started_at) * 1000, 1)
    # The raw, percent-encoded path: a decoded path could forge a log line.
    path = scope["raw_path"].decode("latin-1")
    count_response(scope, message["status"], None if started_at is None else time.monotonic() - started_at)
    log.info(
        "request",
        method=scope.get("method"),
        path=path,
        route=route_of(scope),
        status=message["status"],
        ms=milliseconds,
    )


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    if not origins:
        return None
    return CORSConfig(
        allow_origins=list(origins),
        allow_headers=[*CORS_HEADERS],
        allow_credentials="*" not in origins,
        expose_headers=["Retry-After", "WWW-Authenticate", "x-thread-id", "x-run-id", *stream_headers.RESPONSE_HEADERS],
    )
