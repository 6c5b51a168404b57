"""What the routes need of the rest of the program."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

import msgspec

from khala.api.accounts.exports import ExportLimiter
from khala.api.http.rate_limits import Limiter
from khala.api.http.request_origin import Origins
from khala.api.operations.readiness import Readiness
from khala.blobs.blob_service import BlobService
from khala.identity.oidc import OidcProvider
from khala.live.service import LiveService
from khala.store.postgres.database import Database
from khala.store.threads.sends import SendLimits
from khala.tools.mcp import McpConnections, ToolGroup
from khala.tools.tool_registry import ToolRegistry


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Made by the composition root, given to every route."""

    db: Database
    blob_service: BlobService
    most_upload: int
    """Bytes of a file that somebody uploads."""
    tool_registry: ToolRegistry
    connections: McpConnections
    groups: Mapping[str, ToolGroup]
    """Groups of tools, by name."""
    live: LiveService
    readiness: Readiness
    limits: SendLimits
    welcome: str
    allows_model: Callable[[str], bool]
    models: tuple[str, ...]
    """The models that callers may ask for by name, the default first; there may be others that `allows_model` takes."""
    detail_lasts: timedelta
    """How long a detail token is good."""
    origins: Origins
    limiter: Limiter
    provider: OidcProvider | None
    provider_name: str
    registration: bool
    """Whether anybody may make an account by address and password."""
    public_threads: bool
    """Whether owners may let anybody read a thread."""
    exports: ExportLimiter = msgspec.field(default_factory=ExportLimiter)
    stopping: asyncio.Event
    """Set when the process begins to stop: it finishes what it has, and wants no more."""
