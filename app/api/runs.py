"""Runs over REST: read one, its parts and receipts, and call it off."""

from typing import Annotated

import structlog
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, QueryParameter

from app.api.bodies import Cancel, Items, PartPage
from app.api.callers import BY_KEY
from app.api.context import Context
from app.api.document import OptionalBody
from app.api.paths import RunId
from app.api.problems import answer, documented
from app.domain.access import Caller
from app.domain.chat import ACTIVE, Receipt, Run
from app.store import parts, receipts, runs

log = structlog.get_logger()

DENIED = ("invalid_input", "unauthorized", "forbidden", "run_not_found", "rate_limited", "unavailable")


class Runs(Controller):
    """Answers being written, and those that were."""

    path = "/runs/{run_id:uuid}"
    tags = ("Runs",)
    security = BY_KEY

    @get(
        "/",
        operation_id="readRun",
        summary="Read a run",
        response_description="The run.",
        responses=documented(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId) -> Run:
        """The run, once it has ended with its usage, cost and the reason why it stopped."""
        return await runs.get(context.db, run_id, caller)

    @get(
        "/parts",
        operation_id="readParts",
        summary="Read a run's parts",
        response_description="Parts, in order.",
        responses=documented(*DENIED),
    )
    async def parts(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        after: Annotated[int, QueryParameter(ge=-1, le=2**31 - 1, description="The last seq that you have.")] = -1,
        limit: Annotated[int, QueryParameter(ge=1, le=1000, description="How many, at most.")] = 500,
    ) -> PartPage:
        """The run's parts after a seq, in order."""
        async with context.db.snapshot() as driver:
            run = await runs.admit(driver, run_id, caller)
            found = await parts.of_run(driver, run_id, after=after, limit=limit)
        done = run.status not in ACTIVE and len(found) < limit
        return PartPage(items=found, next_after=found[-1].seq if found else after, done=done)

    @get(
        "/receipts",
        operation_id="readReceipts",
        summary="Read a run's receipts",
        response_description="Receipts, in order.",
        responses=documented(*DENIED),
    )
    async def receipts(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId
    ) -> Items[Receipt]:
        """What each model call of the run used, cost and took."""
        async with context.db.snapshot() as driver:
            await runs.admit(driver, run_id, caller)
            return Items(items=await receipts.of_run(driver, run_id))

    @post(
        "/cancel",
        operation_id="cancelRun",
        operation_class=OptionalBody,
        summary="Call a run off",
        status_code=202,
        response_description="It ends at once, or as soon as its executor hears of it.",
        responses=documented(*DENIED, "payload_too_large", "unsupported_media_type")
        | {200: answer(Run, "It had ended already.")},
    )
    async def cancel(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[
            Cancel | None, BodyKwarg(examples=[Example(summary="With a reason", value={"reason": "Off topic"})])
        ] = None,
    ) -> Response[Run]:
        """End the run. What it has said stays; a run that has ended stays as it is, and answers 200."""
        run, changed = await runs.cancel(context.db, run_id, caller)
        log.info("cancel", run_id=str(run_id), changed=changed, reason=data.reason if data else None)
        return Response(run, status_code=202 if changed else 200)
