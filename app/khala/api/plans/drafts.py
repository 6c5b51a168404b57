"""Drafts of plans over REST: a model makes a plan from a goal, in a run of the thread."""

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import BY_KEY
from khala.api.agents.catalog import choose_agent
from khala.api.context import Context
from khala.api.http.path_parameters import PlanId, ThreadId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import example
from khala.api.plans.plan_agents import check_agents
from khala.api.plans.plans import BODY, DENIED, OF_THREAD, check_texts, with_steps
from khala.api.plans.types import NewPlanDraft, PlanDraftState
from khala.api.threads.run_options import check_options
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.agents import APP_PREFIX, AUTO, COMMAND_PREFIX
from khala.domain.chat import PlanDraft, StoredRunOptions
from khala.domain.errors import Conflict, InvalidInput
from khala.domain.plans.named_agents import agents_of_config
from khala.domain.plans.planner import planner_options
from khala.store.plans import plan_drafts, plans
from khala.store.threads import sends
from khala.store.threads.sends import SendRequest

ID_TAKEN = "This planId is taken by a draft of another goal. Send the same goal, or choose another planId."


class PlanDraftController(Controller):
    """Plans that models make from goals."""

    path = "/threads/{thread_id:uuid}/plans/draft"
    tags = ("Plans",)
    security = BY_KEY

    @post(
        "/",
        operation_id="draftPlan",
        summary="Make a plan from a goal",
        status_code=202,
        response_description="The run that makes the plan is queued.",
        responses=documented_errors(*OF_THREAD, "not_found", "conflict", "run_active", *BODY, "budget_exhausted")
        | {200: documented_success(PlanDraftState, "The draft already existed. Nothing was added.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[NewPlanDraft, BodyKwarg(examples=example("A goal", goal="A trip to Aiur", mode="step"))],
    ) -> Response[PlanDraftState]:
        """Send the goal to a model, which makes a plan. A person reviews the plan and starts it.

        The goal is a message of the thread, and its answer is a run like any other. `GET` of the draft, or the
        thread's feed, has the plan when it is made. A repetition with the same `planId` returns 200.
        """
        plan_id = data.plan_id or ids.new()
        check_texts(goal=data.goal, title=data.title)
        if not data.goal.strip():
            raise InvalidInput("A goal is required.", path="goal")
        await check_agents(context, caller, agents_of_config(data.config.named_agents))
        async with context.db.driver() as driver:
            await plan_drafts.check_room(driver, thread_id, plan_id, caller)
        request = SendRequest(
            thread_id=thread_id,
            message_id=plans.goal_id(plan_id),
            text=data.goal,
            options=await _run_options(context, caller, plan_id, data, caller.user_id or thread_id),
        )
        try:
            sent, is_new = await sends.send(context.db, request, caller, context.limits.sends)
        except Conflict as error:
            raise Conflict(ID_TAKEN) from error  # The error names the goal's message, which the client does not know.
        bind_contextvars(run_id=str(sent.run_id))
        state = await _read(context, caller, thread_id, plan_id)
        return Response(state, status_code=202 if is_new else 200)

    @get(
        "/{plan_id:uuid}",
        operation_id="readPlanDraft",
        summary="Read the draft of a plan",
        response_description="The run, and its plan when it is made.",
        responses=documented_errors(*DENIED, "thread_not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId, plan_id: PlanId
    ) -> PlanDraftState:
        """Read the run that makes a plan, and the plan as it is now. A run that ended without a plan makes none."""
        return await _read(context, caller, thread_id, plan_id)


async def _run_options(
    context: Context, caller: Caller, plan_id: UUID, data: NewPlanDraft, payer_id: UUID
) -> StoredRunOptions:
    options = await check_options(data.options, context, caller)
    if (options.agent or "").startswith((COMMAND_PREFIX, APP_PREFIX)):
        raise InvalidInput("This agent makes no plans. Name one that has instructions.", path="options.agent")
    if options.agent == AUTO:
        options = await choose_agent(context, caller, options, data.goal, payer_id)
    draft = PlanDraft(
        plan_id=plan_id,
        title=data.title,
        mode=data.mode,
        max_iterations=data.max_iterations,
        config=msgspec.to_builtins(data.config),
    )
    return planner_options(options, draft)


async def _read(context: Context, caller: Caller, thread_id: UUID, plan_id: UUID) -> PlanDraftState:
    async with context.db.snapshot() as driver:
        run, row = await plan_drafts.read(driver, thread_id, plan_id, caller)
        plan = None if row is None else await with_steps(driver, row)
        return PlanDraftState(plan_id=plan_id, run=run, plan=plan)
