"""Runs over REST: read a run, its parts, receipts and approvals, decide approvals, and cancel it."""

from typing import Annotated

import structlog
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, QueryParameter
from msgspec.structs import replace

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import CallId, RunId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import OptionalBody, example
from khala.api.runs import used_memories
from khala.api.runs.edited_arguments import check_edited_args, check_reach
from khala.api.runs.types import CancelRequest, DecisionRequest, PartPage, RunContext, UsedMemory
from khala.api.types import Items
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.chat import ACTIVE, Receipt, Run
from khala.store.runs import parts, receipts, runs
from khala.store.tools import approvals
from khala.store.tools.approvals import Approval, ApprovalDecision

log = structlog.get_logger()


DENIED = ("invalid_input", "unauthorized", "forbidden", "run_not_found", "rate_limited", "unavailable")


class RunController(Controller):
    """Runs, which write answers."""

    path = "/runs/{run_id:uuid}"
    tags = ("Runs",)
    security = BY_KEY

    @get(
        "/",
        operation_id="readRun",
        summary="Read a run",
        response_description="The run.",
        responses=documented_errors(*DENIED),
    )
    async def read(self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId) -> Run:
        """Read the run. A run that has ended includes its usage, cost and finish reason."""
        return await runs.get(context.db, run_id, caller)

    @get(
        "/parts",
        operation_id="readParts",
        summary="Read a run's parts",
        response_description="Parts, in order.",
        responses=documented_errors(*DENIED),
    )
    async def parts(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        after: Annotated[
            int, QueryParameter(ge=-1, le=2**31 - 1, description="The seq of the last part that you have.")
        ] = -1,
        limit: Annotated[int, QueryParameter(ge=1, le=1000, description="The maximum number of parts.")] = 500,
    ) -> PartPage:
        """Read the run's parts after a seq, in order."""
        async with context.db.snapshot() as driver:
            run = await runs.read_authorized(driver, run_id, caller)
            page = await parts.of_run(driver, run.thread_id, run_id, after=after, limit=limit)
        done = run.status not in ACTIVE and len(page) < limit
        return PartPage(items=page, next_after=page[-1].seq if page else after, done=done)

    @get(
        "/receipts",
        operation_id="readReceipts",
        summary="Read a run's receipts",
        response_description="Receipts, in order.",
        responses=documented_errors(*DENIED),
    )
    async def receipts(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId
    ) -> Items[Receipt]:
        """Read the usage, cost and duration of each model call, and the outcome of each tool call."""
        async with context.db.snapshot() as driver:
            run = await runs.read_authorized(driver, run_id, caller)
            return Items(items=await receipts.of_run(driver, run.thread_id, run_id))

    @get(
        "/context",
        operation_id="readContext",
        summary="Read what the model was told",
        response_description="The calls of the model, in order.",
        responses=documented_errors(*DENIED),
    )
    async def context(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId
    ) -> RunContext:
        """Read, for each call of the model, what its prompt had and what was left out: tokens and references, no text.

        A call appears when it has ended. Calls that an earlier version of Khala made have no record.
        """
        async with context.db.snapshot() as driver:
            run = await runs.read_authorized(driver, run_id, caller)
            return RunContext(calls=await receipts.contexts_of_run(driver, run.thread_id, run_id))

    @get(
        "/memories",
        operation_id="readMemoriesOfRun",
        summary="Read the memories that the model was told",
        response_description="The memories, the best match first.",
        responses=documented_errors(*DENIED),
    )
    async def memories(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId
    ) -> Items[UsedMemory]:
        """Read what the model was told of memories, and those memories as they are now, if they are the caller's."""
        async with context.db.snapshot() as driver:
            run = await runs.read_authorized(driver, run_id, caller)
            first = await parts.of_run(driver, run.thread_id, run_id, limit=1)
            return Items(items=await used_memories.read(driver, caller, run.thread_id, first))

    @get(
        "/approvals",
        operation_id="readApprovals",
        summary="Read a run's approvals",
        response_description="Approvals, in the order in which they were requested.",
        responses=documented_errors(*DENIED),
    )
    async def approvals(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], run_id: RunId
    ) -> Items[Approval]:
        """Read the tool calls of the run that require an approval, and the decisions."""
        async with context.db.snapshot() as driver:
            run = await runs.read_authorized(driver, run_id, caller)
            by_call = await approvals.of_run(driver, run.thread_id, run_id)
            may_edit = await approvals.may_edit(driver, run_id, caller)
        ordered = sorted(by_call.values(), key=lambda approval: (approval.created_at, approval.tool_call_id))
        return Items(
            items=[replace(approval, may_edit=may_edit and approval.state == "pending") for approval in ordered]
        )

    @post(
        "/approvals/{call_id:str}",
        operation_id="decideApproval",
        summary="Approve or deny a tool call",
        status_code=200,
        response_description="The decision. The run continues.",
        responses=documented_errors(
            *DENIED, "not_found", "conflict", "already_decided", "payload_too_large", "unsupported_media_type"
        ),
    )
    async def decide(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        call_id: CallId,
        data: Annotated[DecisionRequest, BodyKwarg(examples=example("Yes", approved=True))],
    ) -> Approval:
        """Decide a pending call. The first decision is final: repeating it changes nothing, another one fails (409).

        Only the user on whose behalf the call acts may send `editedArgs`, or `allow: run`. An owner of the thread may
        send `allow: thread`, which adds a rule to those of the thread.
        """
        question = await approvals.get_question(context.db, run_id, check_text(call_id, "call_id"), caller)
        if data.edited_args is not None:
            await check_edited_args(question, data.edited_args)
        decision = ApprovalDecision(
            approved=data.approved,
            reason=None if data.reason is None else check_text(data.reason, "reason"),
            edited_args=data.edited_args if data.approved else None,
            digest=data.digest,
            allow=data.allow,
        )
        check_reach(decision, caller)
        decided = await approvals.decide(context.db, run_id, call_id, caller, decision)
        log.info("approval_decided", run_id=str(run_id), tool=decided.tool, state=decided.state)
        return decided

    @post(
        "/cancel",
        operation_id="cancelRun",
        operation_class=OptionalBody,
        summary="Cancel a run",
        status_code=202,
        response_description="The run ends at once, or as soon as its executor is notified.",
        responses=documented_errors(*DENIED, "payload_too_large", "unsupported_media_type")
        | {200: documented_success(Run, "The run had already ended.")},
    )
    async def cancel(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[
            CancelRequest | None, BodyKwarg(examples=[Example(summary="With a reason", value={"reason": "Off topic"})])
        ] = None,
    ) -> Response[Run]:
        """Cancel the run. Its text so far is kept. A run that has already ended does not change, and returns 200."""
        run, changed = await runs.cancel(context.db, run_id, caller)
        log.info("run_cancel_requested", run_id=str(run_id), changed=changed, reason=data.reason if data else None)
        return Response(run, status_code=202 if changed else 200)
