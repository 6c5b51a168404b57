"""Commands for plans over REST.

Each returns the plan as it is after the command. A repetition after a lost response changes nothing, see
`khala.domain.plans.repeats`.
"""

from typing import Annotated

from litestar import Controller, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg
from msgspec import UnsetType

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import PlanId, StepId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.plans.plan_agents import check_agents
from khala.api.plans.plans import BODY, DENIED, MAX_PLAN_BODY_BYTES, check_texts
from khala.api.plans.types import IterationsChange, PauseRequest, PlanDetailChanges, PlanEdit
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.plans.commands import (
    CancelStep,
    ChangeBudget,
    ChangeConfig,
    ChangeIterations,
    ChangeMode,
    Edit,
    Pause,
    PlanCommand,
    Resume,
    RetryStep,
    SkipStep,
    Start,
    Stop,
    SwitchAgent,
)
from khala.domain.plans.named_agents import agents_of_config, agents_of_steps
from khala.domain.plans.views import PlanDetail
from khala.store.plans import plans

COMMANDED = "The plan after the command."
ERRORS = documented_errors(*DENIED, "thread_not_found", "conflict")
ERRORS_WITH_BODY = documented_errors(*DENIED, "thread_not_found", "conflict", *BODY)


class PlanCommandController(Controller):
    """Commands for plans and their steps."""

    path = "/plans/{plan_id:uuid}"
    tags = ("Plans",)
    security = BY_KEY

    @post(
        "/start",
        operation_id="startPlan",
        summary="Start a plan",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def start(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId
    ) -> PlanDetail:
        """Start an idle plan. Its steps act for the caller, and use the caller's budgets."""
        return await plans.command(context.db, plan_id, caller, Start())

    @post(
        "/pause",
        operation_id="pausePlan",
        operation_class=OptionalBody,
        summary="Pause a plan",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS_WITH_BODY,
    )
    async def pause(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        data: Annotated[PauseRequest | None, BodyKwarg(examples=example("At once", force=True))] = None,
    ) -> PlanDetail:
        """Pause a plan after the steps under way, or at once with `force`."""
        return await plans.command(context.db, plan_id, caller, Pause(force=data is not None and data.force))

    @post(
        "/resume",
        operation_id="resumePlan",
        summary="Resume a plan",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def resume(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId
    ) -> PlanDetail:
        """Let a paused plan go on, or take back a pause that has not happened yet. The steps then act for the caller.

        In the mode `step`, this approves the result of the last step.
        """
        return await plans.command(context.db, plan_id, caller, Resume())

    @post(
        "/stop",
        operation_id="stopPlan",
        summary="Stop a plan",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def stop(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId
    ) -> PlanDetail:
        """Stop a plan for good. The steps under way are canceled."""
        return await plans.command(context.db, plan_id, caller, Stop())

    @patch(
        "/",
        operation_id="changePlan",
        summary="Change a plan",
        response_description=COMMANDED,
        responses=ERRORS_WITH_BODY,
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        data: Annotated[PlanDetailChanges, BodyKwarg(examples=example("Another mode", mode="step"))],
    ) -> PlanDetail:
        """Change the title, the goal, the mode, the budget, the agent or the rules, also while the plan runs.

        All changes are made, or none. Runs of steps that are under way go on as they began.
        """
        commands = _commands(data)
        if not commands:
            raise InvalidInput("Nothing to change: send at least one field.", path="title")
        if not isinstance(data.config, UnsetType):
            await check_agents(context, caller, agents_of_config(data.config.named_agents))
        return await plans.command_all(context.db, plan_id, caller, commands)

    @post(
        "/iterations",
        operation_id="changePlanIterations",
        summary="Add or remove iterations",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS_WITH_BODY,
    )
    async def change_iterations(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        data: Annotated[IterationsChange, BodyKwarg(examples=example("Ten more", by=10))],
    ) -> PlanDetail:
        """Let the plan make more attempts, or fewer. Send `ifMaxIterations` to be able to repeat the request."""
        command = ChangeIterations(by=data.by, base=data.if_max_iterations)
        return await plans.command(context.db, plan_id, caller, command)

    @post(
        "/edit",
        operation_id="editPlan",
        summary="Edit a plan's steps",
        request_max_body_size=MAX_PLAN_BODY_BYTES,
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS_WITH_BODY,
    )
    async def edit(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        plan_id: PlanId,
        data: Annotated[PlanEdit, BodyKwarg(examples=example("One more", add=[{"id": "check", "title": "Check"}]))],
    ) -> PlanDetail:
        """Add, remove, replace and order steps, also while the plan runs. Running and completed steps stay as they are.

        With `ifEventSeq`, the answer is 409 if somebody has edited the plan after the event that you have seen.
        """
        await check_agents(context, caller, agents_of_steps(data.add, "add") | agents_of_steps(data.change, "change"))
        edit = Edit(add=tuple(data.add), remove=tuple(data.remove), change=tuple(data.change), order=tuple(data.order))
        return await plans.command_all(context.db, plan_id, caller, [edit], edited_after=data.if_event_seq)

    @post(
        "/steps/{step_id:str}/retry",
        operation_id="retryPlanStep",
        summary="Retry a step",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def retry(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId, step_id: StepId
    ) -> PlanDetail:
        """Open a step again that has ended."""
        return await plans.command(context.db, plan_id, caller, RetryStep(step_id=step_id))

    @post(
        "/steps/{step_id:str}/skip",
        operation_id="skipPlanStep",
        summary="Skip a step",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def skip(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId, step_id: StepId
    ) -> PlanDetail:
        """Leave a step out. The steps that depend on it may run. A run that is under way is canceled."""
        return await plans.command(context.db, plan_id, caller, SkipStep(step_id=step_id))

    @post(
        "/steps/{step_id:str}/cancel",
        operation_id="cancelPlanStep",
        summary="Cancel a step",
        status_code=200,
        response_description=COMMANDED,
        responses=ERRORS,
    )
    async def cancel(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], plan_id: PlanId, step_id: StepId
    ) -> PlanDetail:
        """End a step without a result. The steps that depend on it do not run."""
        return await plans.command(context.db, plan_id, caller, CancelStep(step_id=step_id))


def _commands(data: PlanDetailChanges) -> list[PlanCommand]:
    """The commands for these changes. The rules come first, because they may have the agent."""
    title = None if isinstance(data.title, UnsetType) else data.title
    goal = None if isinstance(data.goal, UnsetType) else data.goal
    check_texts(title=title, goal=goal)
    commands: list[PlanCommand] = []
    if not isinstance(data.config, UnsetType):
        commands.append(ChangeConfig(changes=data.config))
    if not isinstance(data.agent, UnsetType):
        commands.append(SwitchAgent(agent=data.agent))
    if not isinstance(data.mode, UnsetType):
        commands.append(ChangeMode(mode=data.mode))
    if not isinstance(data.budget, UnsetType):
        commands.append(ChangeBudget(budget=data.budget))
    if title is not None or goal is not None:
        commands.append(Edit(title=title, goal=goal))
    return commands
