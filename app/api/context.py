"""What the routes need of the rest of the program."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from app.api.limits import Limiter
from app.api.origins import Origins
from app.blobs.vault import Vault
from app.identity.oidc import Provider
from app.live.listener import Listener
from app.live.live import Live
from app.store.db import Database
from app.store.sends import Limits
from app.tools.mcp import Connections, Group
from app.tools.toolbox import Toolbox


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Made by the composition root, given to every route."""

    db: Database
    vault: Vault
    most_upload: int
    """Bytes of a file that somebody uploads."""
    toolbox: Toolbox
    connections: Connections
    groups: Mapping[str, Group]
    """Groups of tools, by name."""
    live: Live
    listener: Listener
    limits: Limits
    welcome: str
    allows_model: Callable[[str], bool]
    origins: Origins
    limiter: Limiter
    provider: Provider | None
    provider_name: str
    registration: bool
    """Whether anybody may make an account by address and password."""
    public_threads: bool
    """Whether owners may let anybody read a thread."""
    stopping: asyncio.Event
    """Set when the process begins to stop: it finishes what it has, and wants no more."""
