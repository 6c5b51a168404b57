"""Khala inside the test's own event loop, on a real socket and a real database."""

import contextlib
from collections.abc import AsyncIterator

import httpx

from app import main, settings
from tests.support.client import Observer, Thread
from tests.support.homes import home


class Inside:
    """A server at work and an HTTP client for it."""

    def __init__(self, url: str, http: httpx.AsyncClient, database_url: str) -> None:
        self.url = url
        self.database_url = database_url
        self.socket_url = url.replace("http", "ws", 1) + "/api/ws"
        self.http = http

    async def thread(self) -> Thread:
        """A new anonymous thread."""
        return await Thread.create(self.http)

    def observer(self, thread: Thread) -> Observer:
        """An observer of a thread, not yet following."""
        return Observer(self.socket_url, thread)


@contextlib.asynccontextmanager
async def khala(database_url: str, *, with_executor: bool = True, **env: str) -> AsyncIterator[Inside]:
    """Serve for as long as this is open, configured by these environment variables."""
    defaults = {"DATABASE_URL": database_url, "PORT": "0", "KHALA_MODEL": "demo", "KHALA_GRACE_SECONDS": "0"}
    defaults["KHALA_HOME"] = str(home())
    chosen = settings.from_environment(defaults | env)
    async with (
        main.running(chosen, with_executor=with_executor) as running,
        httpx.AsyncClient(base_url=running.address, timeout=30) as http,
    ):
        yield Inside(running.address, http, database_url)
