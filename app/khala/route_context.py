"""Composes what the routes need: the context of the application, from the settings and the components."""

from contextlib import AsyncExitStack
from datetime import timedelta

from khala.api.context import (
    BlobContext,
    Context,
    LimitContext,
    MemoryContext,
    ModelContext,
    OAuthContext,
    ProcessContext,
    PushContext,
    SignInContext,
    StreamContext,
    ThreadContext,
    ToolContext,
    WebhookContext,
)
from khala.api.http.rate_limits import RateLimiter
from khala.api.http.request_origin import OriginPolicy
from khala.api.oauth.client_documents import ClientDocuments
from khala.components import Components, send_limits
from khala.identity.jwt_issuers import JwtIssuers
from khala.identity.oidc import OidcProvider, OidcSettings
from khala.live.service import LiveService
from khala.push.push_sender import PushSender
from khala.search.search_service import SearchService
from khala.settings import Settings
from khala.store.postgres.database import (
    Database,
)
from khala.store.streams.append_writer import StreamWriter
from khala.store.streams.stream_rows import StreamLimits
from khala.stream_wakes.webhook_sender import WebhookSender
from khala.tools.http_client import GuardedClient
from khala.tools.webhook_client import WebhookClient
from khala.webhooks.event_sender import EventSender
from khala.workers.attached_runs import GatewayOptions
from khala.workers.worker_gateway import WorkerGateway


def open_context(
    stack: AsyncExitStack,
    components: Components,
    live: LiveService,
    *,
    streams: StreamContext,
    webhooks: EventSender,
    push: PushSender,
    workers: WorkerGateway,
    process: ProcessContext,
) -> Context:
    """The context of all routes. The clients of identity providers are closed with `stack`."""
    settings = components.settings
    return Context(
        db=components.db,
        live=live,
        origins=_origins(settings),
        blobs=BlobContext(service=components.blob_service, max_upload_bytes=settings.blobs.max_upload_bytes),
        tools=ToolContext(
            registry=components.tool_registry,
            mcp_connections=components.connections,
            account_servers=components.account_servers,
            groups=settings.mcp.groups,
            commands=settings.commands,
            app=components.app,
        ),
        models=ModelContext(
            listed=settings.listed_models,
            is_allowed=settings.allows_model,
            titles=settings.models.titles,
            descriptions=settings.models.descriptions,
            embedder=components.embedder,
            writes_titles=settings.writes_titles,
        ),
        memories=MemoryContext(service=components.memories, extraction=settings.memory.extraction),
        search=SearchService(
            components.db,
            components.memories,
            components.blob_service,
            enabled=settings.database.search,
            by_meaning=components.passages.enabled,
        ),
        streams=streams,
        webhooks=WebhookContext(sender=webhooks, per_account=settings.limits.webhooks_per_account),
        push=PushContext(sender=push, hosts=settings.push.hosts),
        router=components.router,
        threads=ThreadContext(
            welcome=settings.server.welcome,
            undo=timedelta(seconds=settings.server.undo_seconds),
            allow_public=settings.server.public_threads,
            detail_token_lifetime=timedelta(minutes=settings.runs.detail_minutes),
        ),
        limits=_limits(settings),
        sign_in=_sign_in(stack, settings),
        oauth=_oauth(stack, settings),
        process=process,
        workers=workers,
    )


def _sign_in(stack: AsyncExitStack, settings: Settings) -> SignInContext:
    oidc = settings.accounts.oidc
    provider = OidcProvider(oidc) if oidc else None
    if provider:
        stack.push_async_callback(provider.aclose)
    issuers = JwtIssuers(settings.identity.issuers) if settings.accounts.jwt else None
    if issuers:
        stack.push_async_callback(issuers.aclose)
    return SignInContext(
        provider=provider,
        provider_name=oidc.name if oidc else "",
        allow_registration=settings.accounts.registration == "open",
        issuers=issuers,
        admins=frozenset(name.lower() for name in settings.accounts.admins),
        plans=frozenset(settings.budgets.plans),
    )


def gateway_options(settings: Settings) -> GatewayOptions:
    """The options of the gateway to remote workers."""
    return GatewayOptions(
        lease_seconds=settings.runs.lease_seconds,
        wait_seconds=settings.runs.worker_wait_seconds,
        approval_seconds=settings.runs.approval_hours * 3600,
        reasoning=settings.models.store_reasoning,
    )


def open_streams(settings: Settings, db: Database) -> StreamContext:
    """The context of the routes of durable streams."""
    streams = settings.streams
    limits = StreamLimits(
        per_space=streams.per_account, max_bytes=streams.max_bytes, max_space_bytes=streams.bytes_per_account
    )
    return StreamContext(
        writer=StreamWriter(db, limits),
        access=streams.access,
        limits=limits,
        long_poll_seconds=streams.long_poll_seconds,
        webhooks=WebhookSender(db, WebhookClient(GuardedClient(allow=settings.tools.fetch_allow, needs_tls=True))),
    )


def _oauth(stack: AsyncExitStack, settings: Settings) -> OAuthContext:
    issuer, mode = settings.accounts.mcp_authorization_server, settings.accounts.mcp_oauth
    documents = ClientDocuments(GuardedClient(allow=settings.tools.fetch_allow))
    if issuer is None or mode == "off":
        return OAuthContext(mode=mode, documents=documents)
    # Only its tokens are verified, so that it does not know Khala as a client.
    external = OidcProvider(OidcSettings(issuer=issuer, client_id="", name="The authorization server"))
    stack.push_async_callback(external.aclose)
    return OAuthContext(mode=mode, documents=documents, external=external)


def _limits(settings: Settings) -> LimitContext:
    limits = settings.limits
    return LimitContext(
        sends=send_limits(settings),
        requests=RateLimiter(limits.requests_per_minute, count_loopback=limits.limit_loopback_requests),
    )


def _origins(settings: Settings) -> OriginPolicy:
    return OriginPolicy(
        allowed=settings.server.origins,
        public_url=settings.server.public_url,
        frame_ancestors=settings.server.frame_ancestors,
        proxies=settings.server.trusted_proxies,
        count_loopback=settings.limits.limit_loopback_networks,
    )
