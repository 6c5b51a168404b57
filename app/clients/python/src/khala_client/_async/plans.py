"""Plans: long work in steps, which the server executes by itself."""

from collections.abc import Sequence
from typing import Literal
from uuid import UUID, uuid4

from msgspec import UNSET, UnsetType

from khala_client._async.core import AsyncCore
from khala_client._async.runs import AsyncRun
from khala_client.bodies import Id, as_id, body, changes, segment
from khala_client.credentials import Keys
from khala_client.feed import FollowOptions
from khala_client.followers import RunTarget
from khala_client.models import RunInfo
from khala_client.options import RunOptions
from khala_client.plan_models import PlanBudget, PlanConfig, PlanEntry, PlanEvent, PlanInfo, PlannedStep, StepInfo
from khala_client.streams import AsyncStream
from khala_client.wire import WireStruct

Mode = Literal["all", "step", "autopilot"]


class _Steps(WireStruct, frozen=True, kw_only=True):
    items: tuple[StepInfo, ...]


class _Draft(WireStruct, frozen=True, kw_only=True):
    plan_id: UUID
    run: RunInfo


class AsyncPlan:
    """A plan. It is made without a request by `client.plan(id)`. Each command returns the plan after it.

    A command that asks for what is already so changes nothing, and is retried. One that does not fit the plan's state
    raises `Conflict`.
    """

    def __init__(self, core: AsyncCore, plan_id: UUID, keys: Keys) -> None:
        self._core = core
        self._keys = keys
        self._path = f"/api/plans/{plan_id}"
        self.id = plan_id

    async def get(self) -> PlanInfo:
        """The plan as it is now."""
        return await self._core.request("GET", self._path, PlanInfo, keys=self._keys)

    async def steps(self) -> list[StepInfo]:
        """All steps, in order."""
        answer = await self._core.request("GET", f"{self._path}/steps", _Steps, keys=self._keys)
        return list(answer.items)

    async def start(self) -> PlanInfo:
        """Execute an idle plan."""
        return await self._command("start")

    async def pause(self, *, force: bool = False) -> PlanInfo:
        """Pause after the steps under way. With `force` these are canceled and opened again."""
        return await self._command("pause", force=force or None)

    async def resume(self) -> PlanInfo:
        """Have a paused plan go on."""
        return await self._command("resume")

    async def stop(self) -> PlanInfo:
        """End the plan for good, and cancel the steps under way."""
        return await self._command("stop")

    async def retry_step(self, step_id: str) -> PlanInfo:
        """Open a step that has ended again."""
        return await self._command(f"steps/{segment(step_id)}/retry")

    async def skip_step(self, step_id: str) -> PlanInfo:
        """Leave a step out. The steps that depend on it may run."""
        return await self._command(f"steps/{segment(step_id)}/skip")

    async def cancel_step(self, step_id: str) -> PlanInfo:
        """End a step without a result. The steps that depend on it do not run."""
        return await self._command(f"steps/{segment(step_id)}/cancel")

    async def update(
        self,
        *,
        title: str | UnsetType = UNSET,
        goal: str | UnsetType = UNSET,
        mode: Mode | UnsetType = UNSET,
        budget: PlanBudget | UnsetType = UNSET,
        agent: str | UnsetType = UNSET,
        config: PlanConfig | UnsetType = UNSET,
    ) -> PlanInfo:
        """Change what is given: all of it or nothing."""
        given = changes(title=title, goal=goal, mode=mode, budget=budget, agent=agent, config=config)
        return await self._core.request("PATCH", self._path, PlanInfo, body=given, keys=self._keys, idempotent=True)

    async def edit(
        self,
        *,
        add: Sequence[PlannedStep] | None = None,
        remove: Sequence[str] | None = None,
        change: Sequence[PlannedStep] | None = None,
        order: Sequence[str] | None = None,
        if_event_seq: int | None = None,
    ) -> PlanInfo:
        """Change the steps. With `if_event_seq`, raises `Conflict` if they were changed after that event."""
        given = body(add=add, remove=remove, change=change, order=order, if_event_seq=if_event_seq)
        return await self._core.request("POST", f"{self._path}/edit", PlanInfo, body=given, keys=self._keys)

    async def delete(self) -> None:
        """Delete a plan that is idle, paused or stopped. Raises `NotFound` if there is none."""
        await self._core.delete(self._path, keys=self._keys)

    def follow(self, *, after: int = 0, options: FollowOptions | None = None) -> AsyncStream[PlanEvent]:
        """The events with `seq` over `after`, once and in order, up to and including `stopped`.

        A plan that pauses has a `paused` event, and the stream waits until somebody resumes it.
        """
        return self._core.follow_plan(self.id, self._keys, after, options or FollowOptions())

    async def _command(self, name: str, **fields: object) -> PlanInfo:
        return await self._core.request(
            "POST", f"{self._path}/{name}", PlanInfo, body=body(**fields), keys=self._keys, idempotent=True
        )


class AsyncThreadPlans:
    """The plans of a thread."""

    def __init__(self, core: AsyncCore, thread_id: UUID, keys: Keys) -> None:
        self._core = core
        self._keys = keys
        self._thread_id = thread_id
        self._path = f"/api/threads/{thread_id}/plans"

    async def create(
        self,
        title: str,
        steps: Sequence[PlannedStep],
        *,
        goal: str | None = None,
        mode: Mode | None = None,
        max_iterations: int | None = None,
        config: PlanConfig | None = None,
        plan_id: Id | None = None,
    ) -> AsyncPlan:
        """Create an idle plan. `plan_id` is the idempotency key, and is made if it is not given."""
        given = body(
            plan_id=uuid4() if plan_id is None else as_id(plan_id),
            title=title,
            steps=steps,
            goal=goal,
            mode=mode,
            max_iterations=max_iterations,
            config=config,
        )
        return await self._created(self._path, given)

    async def import_document(
        self, document: str, *, kind: Literal["markdown", "prd"] = "markdown", plan_id: Id | None = None
    ) -> AsyncPlan:
        """Create an idle plan from a document. Its completed steps are not executed."""
        new_id = uuid4() if plan_id is None else as_id(plan_id)
        return await self._created(f"{self._path}/import", body(plan_id=new_id, format=kind, document=document))

    async def draft(
        self, goal: str, *, plan_id: Id | None = None, options: RunOptions | None = None
    ) -> tuple[AsyncPlan, AsyncRun]:
        """Have a model make a plan of a goal, in a run of the thread. The plan exists when the run has ended.

        If the model makes none, `plan.get()` raises `NotFound`, and the answer of the run says why.
        """
        new_id = uuid4() if plan_id is None else as_id(plan_id)
        given = body(plan_id=new_id, goal=goal, options=options)
        draft = await self._core.request(
            "POST", f"{self._path}/draft", _Draft, body=given, keys=self._keys, idempotent=True
        )
        target = RunTarget(
            run_id=draft.run.id, thread_id=self._thread_id, message_id=draft.run.message_id, keys=self._keys
        )
        return AsyncPlan(self._core, draft.plan_id, self._keys), AsyncRun(self._core, target)

    def list(self, *, page_size: int = 20) -> AsyncStream[PlanEntry]:
        """The plans of the thread, the newest first."""
        return self._core.pages(self._path, PlanEntry, {"limit": page_size}, self._keys)

    async def _created(self, path: str, given: dict[str, object]) -> AsyncPlan:
        created = await self._core.request("POST", path, PlanInfo, body=given, keys=self._keys, idempotent=True)
        return AsyncPlan(self._core, created.id, self._keys)
