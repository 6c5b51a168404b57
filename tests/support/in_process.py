"""Runs Khala in the event loop of the test, on a real socket and a real database."""

import contextlib
import os
from collections.abc import AsyncIterator
from typing import ClassVar
from unittest import mock

import httpx

from khala import components, main, settings
from khala.tools.sandbox import Sandbox
from tests.support import shared_routes
from tests.support.client import Observer, Thread, client
from tests.support.homes import home

shared_routes.install()


class InProcessServer:
    """A running server and an HTTP client for it."""

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
async def khala(database_url: str, *, with_executor: bool = True, **env: str) -> AsyncIterator[InProcessServer]:
    """Serve for as long as this is open, configured by these environment variables."""
    defaults = {"DATABASE_URL": database_url, "PORT": "0", "KHALA_MODEL": "demo", "KHALA_GRACE_SECONDS": "0"}
    # A test that counts the calls of a model is not to see those for titles, and what is deleted is purged at once.
    defaults |= {"KHALA_TITLES": "0", "KHALA_UNDO_SECONDS": "0"}
    defaults["KHALA_HOME"] = str(home())
    chosen = settings.from_environment(defaults | env)
    with mock.patch.object(components, "Sandbox", _CachedSandbox):
        async with (
            main.running(chosen, with_executor=with_executor, environment={**os.environ, **defaults, **env}) as running,
            client(running.address) as http,
        ):
            yield InProcessServer(running.address, http, database_url)


class _CachedSandbox:
    """Replaces `Sandbox`, and checks the interpreters of this machine only once for all servers."""

    found: ClassVar[list[Sandbox | None]] = []

    @classmethod
    async def find(cls) -> Sandbox | None:
        """A new sandbox with the results of the first check."""
        if not cls.found:
            cls.found.append(await Sandbox.find())
        found = cls.found[0]
        return found and Sandbox(found.tool, found.runtimes, found.options, groups=found.groups)
