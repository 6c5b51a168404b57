"""The executor protocol over HTTP: remote workers claim runs of their agents, and write them."""

import asyncio
from typing import Annotated, Any

from litestar import Controller, Request, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg

from khala.api.context import Context
from khala.api.http.path_parameters import RunId
from khala.api.http.problem_details import documented_errors
from khala.api.http.rate_limits import COST
from khala.api.openapi.document import example
from khala.domain.access import Caller
from khala.domain.executor_protocol import (
    AppendAnswer,
    AppendPartsRequest,
    AskApproval,
    ClaimAnswer,
    FinishRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    ReleaseRequest,
    RunClaimRequest,
    RunEnd,
)
from khala.workers.attached_runs import worker_of

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")
OF_RUN = (*DENIED, *BODY, "run_not_found", "stale_epoch", "run_ended", "wrong_seq", "conflict", "budget_exhausted")
BY_WORKER: list[dict[str, list[str]]] = [{"bearer": []}]
RUN_ID = "0197a1b2-0000-7000-8000-000000000001"
REQUEST_COST = 0.05
"""The cost of a request of a worker: it sends three a second for each of its runs."""


class ExecutorController(Controller):
    """Remote workers."""

    path = "/executor"
    tags = ("Executor",)
    security = BY_WORKER
    opt: dict[str, Any] = {"scope": "execute", COST: REQUEST_COST}  # noqa: RUF012  # Litestar's declaration

    @post(
        "/claim",
        operation_id="claimRuns",
        summary="Claim runs",
        status_code=200,
        response_description="The claimed runs; none if there were none in time.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def claim(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            RunClaimRequest,
            BodyKwarg(examples=example("One run", claimId=RUN_ID, agents=["poet"], maxRuns=1, waitSeconds=20)),
        ],
    ) -> ClaimAnswer:
        """Claim runs of the token's agents under a lease. Without any, the request waits for up to `waitSeconds`.

        Repeating a request with its `claimId` returns the runs that it has claimed.
        """
        # After its body, a request receives nothing but the disconnect of its client.
        left: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
        try:
            return await context.workers.claim(worker_of(caller), data, left)
        finally:
            left.cancel()

    @post(
        "/heartbeat",
        operation_id="renewLeases",
        summary="Renew leases",
        status_code=200,
        response_description="The state of each run.",
        responses=documented_errors(*DENIED, *BODY, "conflict"),
    )
    async def heartbeat(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[HeartbeatRequest, BodyKwarg(examples=example("One run", runs=[{"runId": RUN_ID, "epoch": 1}]))],
    ) -> HeartbeatAnswer:
        """Renew the leases of runs. Returns which are still held, which are being cancelled, and decisions."""
        return await context.workers.heartbeat(worker_of(caller), data)

    @post(
        "/runs/{run_id:uuid}/parts",
        operation_id="appendParts",
        summary="Append parts",
        status_code=200,
        response_description="The next seqs. Everything before them is stored.",
        responses=documented_errors(*OF_RUN),
    )
    async def append(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[
            AppendPartsRequest,
            BodyKwarg(examples=example("Text", epoch=1, seq=0, parts=[{"kind": "text-delta", "data": {"text": "Hi"}}])),
        ],
    ) -> AppendAnswer:
        """Store consecutive parts of a run. Repeating the request changes nothing."""
        return await context.workers.append(worker_of(caller), run_id, data)

    @post(
        "/runs/{run_id:uuid}/approvals",
        operation_id="askApproval",
        summary="Ask for an approval",
        status_code=200,
        response_description="The next seqs.",
        responses=documented_errors(*OF_RUN),
    )
    async def ask(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[AskApproval, BodyKwarg(examples=example("A call", epoch=1, seq=1, toolCallId="call_1"))],
    ) -> AppendAnswer:
        """Have a person decide about a tool call. Heartbeats return the decision."""
        return await context.workers.ask(worker_of(caller), run_id, data)

    @post(
        "/runs/{run_id:uuid}/finish",
        operation_id="finishRun",
        summary="End a run",
        status_code=200,
        response_description="The run's status.",
        responses=documented_errors(*OF_RUN),
    )
    async def finish(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[FinishRequest, BodyKwarg(examples=example("Completed", epoch=1, seq=1, status="completed"))],
    ) -> RunEnd:
        """End a run. Repeating the request changes nothing."""
        return await context.workers.finish(worker_of(caller), run_id, data)

    @post(
        "/runs/{run_id:uuid}/release",
        operation_id="releaseRun",
        summary="Give a run back",
        status_code=200,
        response_description="The run's status.",
        responses=documented_errors(*OF_RUN),
    )
    async def release(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        data: Annotated[ReleaseRequest, BodyKwarg(examples=example("At once", epoch=1))],
    ) -> RunEnd:
        """Give a run back, so that another worker goes on with it. Repeating the request changes nothing."""
        return await context.workers.release(worker_of(caller), run_id, data)
