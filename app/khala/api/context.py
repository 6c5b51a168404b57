"""The services and settings that routes use, grouped by subject."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal

import msgspec
from litestar.types import Scope

from khala.api.accounts.exports import ExportLimiter
from khala.api.accounts.service_tokens import ImpersonationAudit
from khala.api.http.rate_limits import RateLimiter
from khala.api.http.request_origin import OriginPolicy
from khala.api.imports.import_limiter import ImportLimiter
from khala.api.oauth.client_documents import ClientDocuments
from khala.api.operations.readiness import ReadinessService
from khala.blobs.blob_service import BlobService
from khala.domain.memories import Extraction
from khala.identity.jwt_issuers import JwtIssuers
from khala.identity.oidc import OidcProvider
from khala.live.service import LiveService
from khala.memory.agent_router import AgentRouter
from khala.memory.memory_service import MemoryService
from khala.models.embeddings.embedder import Embedder
from khala.push.push_sender import PushSender
from khala.sdk.loading import App
from khala.search.search_service import SearchService
from khala.store.postgres.database import Database
from khala.store.streams.append_writer import StreamWriter
from khala.store.streams.stream_rows import StreamLimits
from khala.store.threads.sends import SendLimits
from khala.stream_wakes.webhook_sender import WebhookSender
from khala.tools.commands import Command
from khala.tools.mcp import McpConnections, ToolGroup
from khala.tools.mcp.accounts.account_servers import AccountServers
from khala.tools.tool_registry import ToolRegistry
from khala.webhooks.event_sender import EventSender
from khala.workers.worker_gateway import WorkerGateway

STATE_KEY = "context"
"""The key of the context in the state of a request or socket."""


class BlobContext(msgspec.Struct, frozen=True, kw_only=True):
    """Blobs and uploads."""

    service: BlobService
    max_upload_bytes: int


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of this server, and the MCP servers that it connects to."""

    registry: ToolRegistry
    mcp_connections: McpConnections
    account_servers: AccountServers | None
    """The MCP servers to which accounts connect their own; None if there are none."""
    groups: Mapping[str, ToolGroup]
    """By name."""
    commands: Mapping[str, Command]
    """The programs that may answer as agents, by name."""
    app: App
    """The operator's own agents in Python."""


class ModelContext(msgspec.Struct, frozen=True, kw_only=True):
    """The models that a request may name."""

    listed: tuple[str, ...]
    """The models that lists show, the default first."""
    is_allowed: Callable[[str], bool]
    """Whether a request may name this model. Patterns of the operator can allow more models than are listed."""
    titles: Mapping[str, str]
    """The operator's titles of models, by model."""
    descriptions: Mapping[str, str]
    """What models are good for, in the operator's words, by model."""
    embedder: Embedder | None
    """The embedding model, if there is one."""
    writes_titles: bool
    """Whether a model writes titles of threads that the default model answers in."""


class MemoryContext(msgspec.Struct, frozen=True, kw_only=True):
    """Memories."""

    service: MemoryService
    extraction: Extraction
    """Whether memories are extracted for people who have not decided."""


class ThreadContext(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of threads."""

    welcome: str
    """The first message of a new thread."""
    undo: timedelta
    """The time in which a deletion can be undone."""
    allow_public: bool
    """Whether owners may make a thread readable for everybody."""
    detail_token_lifetime: timedelta


class LimitContext(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of what a caller may do."""

    sends: SendLimits
    requests: RateLimiter
    exports: ExportLimiter = msgspec.field(default_factory=ExportLimiter)
    imports: ImportLimiter = msgspec.field(default_factory=ImportLimiter)


class StreamContext(msgspec.Struct, frozen=True, kw_only=True):
    """Durable streams."""

    writer: StreamWriter
    access: Literal["accounts", "open", "off"]
    """Who may create streams."""
    limits: StreamLimits
    long_poll_seconds: float
    webhooks: WebhookSender


class WebhookContext(msgspec.Struct, frozen=True, kw_only=True):
    """Webhooks, which get events."""

    sender: EventSender
    per_account: int
    """The endpoints that one account may have."""


class PushContext(msgspec.Struct, frozen=True, kw_only=True):
    """Push notifications."""

    sender: PushSender
    hosts: tuple[str, ...]
    """The push services that browsers may use; none if notifications are turned off."""


class SignInContext(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to sign in."""

    provider: OidcProvider | None
    provider_name: str
    allow_registration: bool
    """Whether anybody may create an account with an address and a password."""
    issuers: JwtIssuers | None = None
    """The issuers of the JWTs of the application's own users."""
    admins: frozenset[str] = frozenset()
    """The ids and verified addresses of administrators."""
    plans: frozenset[str] = frozenset()
    """The names of the plans of budgets."""
    impersonations: ImpersonationAudit = msgspec.field(default_factory=ImpersonationAudit)


class OAuthContext(msgspec.Struct, frozen=True, kw_only=True):
    """OAuth of MCP clients."""

    mode: Literal["optional", "required", "off"]
    documents: ClientDocuments
    """The clients whose id is the URL of their metadata."""
    external: OidcProvider | None = None
    """The provider that issues the tokens of MCP clients; None if this server does. Each MCP server is an audience."""


class ProcessContext(msgspec.Struct, frozen=True, kw_only=True):
    """The state of this process."""

    readiness: ReadinessService
    stopping: asyncio.Event
    """Set when the graceful shutdown begins."""


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of all routes. The composition root creates it once."""

    db: Database
    live: LiveService
    origins: OriginPolicy
    blobs: BlobContext
    tools: ToolContext
    models: ModelContext
    memories: MemoryContext
    search: SearchService
    streams: StreamContext
    webhooks: WebhookContext
    push: PushContext
    router: AgentRouter
    threads: ThreadContext
    limits: LimitContext
    sign_in: SignInContext
    oauth: OAuthContext
    process: ProcessContext
    workers: WorkerGateway


def bind_context(scope: Scope, context: Context) -> None:
    """Have the routes use this context for the request or socket."""
    scope.setdefault("state", {})[STATE_KEY] = context


def context_of(scope: Scope) -> Context:
    """The context that is bound to the request or socket."""
    context: Context = scope["state"][STATE_KEY]
    return context
