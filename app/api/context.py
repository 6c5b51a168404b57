"""What the routes need of the rest of the program."""

import asyncio
from collections.abc import Callable

import msgspec

from app.live.hub import Hub
from app.live.listener import Listener
from app.store.db import Database
from app.store.sends import Limits


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Made by the composition root, given to every route."""

    db: Database
    hub: Hub
    listener: Listener
    limits: Limits
    welcome: str
    allows_model: Callable[[str], bool]
    origins: tuple[str, ...]
    stopping: asyncio.Event
    """Set when the process begins to stop: it finishes what it has, and wants no more."""
