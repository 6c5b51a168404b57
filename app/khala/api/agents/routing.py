"""Previews of runs over REST: the agent that a task would be routed to, and what its run is likely to take."""

from typing import Annotated
from uuid import UUID

from litestar import post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.accounts.authentication import BY_KEY, require_user
from khala.api.agents import catalog
from khala.api.agents.types import RoutePreview, RouteRequest
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import example
from khala.api.validation import check_message_text
from khala.domain import run_estimates
from khala.domain.access import Action, Caller
from khala.domain.run_estimates import RunEstimate
from khala.store.runs import similar_runs
from khala.store.sharing import access

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")


@post(
    "/route",
    tags=["Agents"],
    operation_id="routeTask",
    summary="Preview a run",
    security=BY_KEY,
    status_code=200,
    response_description="The agent, and an estimate.",
    responses=documented_errors(*DENIED, *BODY),
)
async def route_task(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    data: Annotated[RouteRequest, BodyKwarg(examples=example("A task", text="Review everything under src/"))],
) -> RoutePreview:
    """Choose the agent for a task as a send with the agent `auto` does, and estimate its run.

    The estimate is made of the caller's own runs. A caller without an account names a thread in which they may send.
    """
    text = check_message_text(data.text)
    if data.thread_id is None:
        payer_id = require_user(caller)
    else:
        async with context.db.driver() as driver:
            await access.authorize(driver, data.thread_id, caller, Action.SEND_MESSAGE)
        payer_id = caller.user_id or data.thread_id
    decision = await context.router.route(payer_id, text, await catalog.list_routable(context, caller, model=None))
    return RoutePreview(
        agent=decision.agent,
        confidence=decision.confidence,
        abstained=decision.abstained,
        why=decision.why,
        by=decision.by,
        alternatives=decision.alternatives,
        estimate=await _estimate(context, caller, data.thread_id, decision.agent, text),
    )


async def _estimate(context: Context, caller: Caller, thread_id: UUID | None, agent: str, text: str) -> RunEstimate:
    async with context.db.driver() as driver:
        if caller.user_id is not None:
            runs = await similar_runs.of_user(driver, caller.user_id, agent)
        elif thread_id is not None and caller.author_id is not None:
            runs = await similar_runs.of_guest(driver, caller.author_id, thread_id, agent)
        else:
            runs = []
    return run_estimates.estimate(text, runs)
