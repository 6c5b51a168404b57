"""Administrators and others who call the console, and a deployment that it shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from khala.store.accounts import account_status
from khala.store.postgres.database import Database
from tests.support.callers import Person, person
from tests.support.in_process import InProcessServer
from tests.support.shared_server import shared

MARKER = "ZEALOTMARKER"
"""A text that is in messages, titles and secrets, and that no list may show."""


class ConsoleScene(msgspec.Struct, frozen=True):
    """A server with an administrator and a user."""

    server: InProcessServer
    db: Database
    admin: Person
    user: Person

    async def get(self, path: str, **params: Any) -> httpx.Response:
        """GET a route of the console as the administrator."""
        return await self.server.http.get(f"/api/console{path}", params=params, headers=self.admin.headers)

    async def read(self, path: str, **params: Any) -> Any:
        """The body of a successful GET."""
        return (await self.get(path, **params)).raise_for_status().json()

    async def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a body as the administrator."""
        url = f"/api/console{path}"
        return await self.server.http.request(method, url, json=body or {}, headers=self.admin.headers)

    async def post(self, path: str, body: Any = None) -> Any:
        """The body of the response to a successful POST."""
        return (await self.send("POST", path, body)).raise_for_status().json()

    async def execute(self, query: str, *arguments: Any) -> None:
        """Execute a statement on the database."""
        async with self.db.driver() as driver:
            await driver.execute(query, *arguments)

    async def audited(self, action: str) -> list[dict[str, Any]]:
        """The entries of this action by the administrator, the newest first."""
        query = "SELECT thread_id, detail FROM audit WHERE action = $1 AND user_id = $2 ORDER BY id DESC"
        async with self.db.driver() as driver:
            found = await driver.fetch(query, action, self.admin.id)
        return [{"thread": row["thread_id"], **msgspec.json.decode(row["detail"])} for row in found]

    async def all_pages(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """All items of a list, page by page."""
        items: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.read(path, **params, **cursor)
            items += page["items"]
            if page["nextCursor"] is None:
                return items
            cursor = {"cursor": page["nextCursor"]}


@asynccontextmanager
async def console_scene(
    postgres_url: str, template: str, *, with_executor: bool = False, **env: str
) -> AsyncIterator[ConsoleScene]:
    """A server without an executor, an administrator and a user."""
    async with shared(postgres_url, template, with_executor=with_executor, **env) as server:
        db = Database(server.database_url, pool_size=4)
        try:
            admin, user = await person(db, "Artanis"), await person(db, "Zeratul")
            await account_status.set_admin(db, str(admin.id), admin=True)
            yield ConsoleScene(server, db, admin, user)
        finally:
            await db.close()
