"""Health: whether the process is up, and whether it can do its work."""

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from app.api.bodies import Body
from app.api.context import Context
from app.api.problems import answer
from app.blobs.vault import Vault
from app.domain.errors import Unavailable
from app.live.listener import Listener
from app.store.db import Database


class Health(Body, frozen=True, kw_only=True, omit_defaults=False):
    """What works; `ok` says whether conversations do: without `blobs` large results and files are out of reach."""

    ok: bool
    database: bool
    feed: bool
    blobs: bool
    stopping: bool


async def examined(db: Database, listener: Listener, vault: Vault, *, stopping: bool) -> Health:
    """What works now, of a process that serves or one that only works on runs."""
    try:
        async with db.driver() as driver:
            await driver.execute("SELECT 1", timeout=3)
        database = True
    except Unavailable:
        database = False
    feed, blobs = listener.connected, await vault.well()
    return Health(ok=database and feed and not stopping, database=database, feed=feed, blobs=blobs, stopping=stopping)


class HealthRoutes(Controller):
    """For load balancers and people."""

    path = "/health"
    tags = ("Health",)

    @get("/live", operation_id="live", summary="Is the process up?", response_description="It is.")
    async def live(self) -> dict[str, bool]:
        """Answers as long as the process does."""
        return {"ok": True}

    @get(
        "/ready",
        operation_id="ready",
        summary="Can it do its work?",
        response_description="It can.",
        responses={503: answer(Health, "Something is out of reach.")},
    )
    async def ready(self, context: NamedDependency[Context]) -> Response[Health]:
        """Whether the database answers, notifications arrive, blobs are in reach, and the process is to go on."""
        health = await examined(context.db, context.listener, context.vault, stopping=context.stopping.is_set())
        return Response(health, status_code=200 if health.ok else 503)
