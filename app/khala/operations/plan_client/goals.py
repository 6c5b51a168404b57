"""Has a model of the server make a plan from a goal."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from khala.console import KnownFailure
from khala.domain.plans.views import PlanEntry
from khala.operations.plan_client.api import DraftState, PlanApiClient, ServerConnection, open_client

FIRST_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 2.0
PLANNING_TIMEOUT_SECONDS = 3_600.0
CANCEL_TIMEOUT_SECONDS = 5.0


async def plan_goal(connection: ServerConnection, thread_id: UUID, goal: str, options: Mapping[str, Any]) -> PlanEntry:
    """Have a model make a plan, which is idle. `options` replace what the model chooses.

    The model's run is canceled if this is cancelled. Raises `KnownFailure` if the model made no plan.
    """
    async with open_client(connection) as client:
        draft = await _finish(client, thread_id, await client.draft_plan(thread_id, {"goal": goal, **options}))
        if draft.plan is not None:
            return draft.plan
        place = f"Its answer says why: {connection.server}/t/{thread_id}"
        raise KnownFailure(f"The model made no plan: its run ended as {draft.run.status!r}. {place}")


async def _finish(client: PlanApiClient, thread_id: UUID, draft: DraftState) -> DraftState:
    """Wait for the end of the run. Raises `KnownFailure` if it takes more than an hour."""
    seconds = FIRST_POLL_SECONDS
    try:
        async with asyncio.timeout(PLANNING_TIMEOUT_SECONDS):
            while not draft.has_ended:
                await asyncio.sleep(seconds)
                draft = await client.draft(thread_id, draft.plan_id)
                seconds = min(MAX_POLL_SECONDS, 1.5 * seconds)
            return draft
    except TimeoutError as error:
        raise KnownFailure("The model took more than an hour to make a plan.") from error
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, KnownFailure):
            async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                await client.cancel_run(draft.run.id)
        raise
