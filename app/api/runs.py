"""Runs over REST: read one, its parts and receipts, and call it off."""

from typing import Annotated
from uuid import UUID

import structlog
from litestar import Controller, Response, get, post
from litestar.params import Parameter

from app.api.bodies import Cancel, Items, PartPage
from app.api.context import Context
from app.api.problems import answer, documented
from app.domain.access import Caller
from app.domain.chat import ACTIVE, Receipt, Run
from app.store import parts, receipts, runs

log = structlog.get_logger()

DENIED = ("invalid_input", "forbidden", "run_not_found", "unavailable")


class Runs(Controller):
    """Answers being written, and those that were."""

    path = "/runs/{run_id:uuid}"
    tags = ["Runs"]

    @get("/", summary="Read a run", responses=documented(*DENIED))
    async def read(self, context: Context, caller: Caller, run_id: UUID) -> Run:
        """The run, once it has ended with its usage, cost and the reason why it stopped."""
        return await runs.get(context.db, run_id, caller)

    @get("/parts", summary="Read a run's parts", responses=documented(*DENIED))
    async def parts(
        self,
        context: Context,
        caller: Caller,
        run_id: UUID,
        after: Annotated[int, Parameter(ge=-1, le=2**31 - 1, description="The last seq that you have.")] = -1,
        limit: Annotated[int, Parameter(ge=1, le=1000, description="How many, at most.")] = 500,
    ) -> PartPage:
        """The run's parts after a seq, in order."""
        async with context.db.snapshot() as driver:
            run = await runs.authorize(driver, run_id, caller)
            found = await parts.of_run(driver, run_id, after=after, limit=limit)
        done = run.status not in ACTIVE and len(found) < limit
        return PartPage(items=found, next_after=found[-1].seq if found else after, done=done)

    @get("/receipts", summary="Read a run's receipts", responses=documented(*DENIED))
    async def receipts(self, context: Context, caller: Caller, run_id: UUID) -> Items[Receipt]:
        """What each model call of the run used, cost and took."""
        async with context.db.snapshot() as driver:
            await runs.authorize(driver, run_id, caller)
            return Items(items=await receipts.of_run(driver, run_id))

    @post(
        "/cancel",
        summary="Call a run off",
        status_code=202,
        responses=documented(*DENIED, "payload_too_large") | {200: answer(Run, "It had ended already.")},
    )
    async def cancel(
        self, context: Context, caller: Caller, run_id: UUID, data: Cancel | None = None
    ) -> Response[Run]:
        """End the run. What it has said stays; a run that has ended stays as it is, and answers 200."""
        run, changed = await runs.cancel(context.db, run_id, caller)
        log.info("cancel", run_id=str(run_id), changed=changed, reason=data.reason if data else None)
        return Response(run, status_code=202 if changed else 200)
