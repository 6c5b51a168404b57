"""Blobs of the runs that workers hold: large outputs that they store, and files that their runs may read."""

from typing import Annotated, Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from khala.api.blobs import blob_responses
from khala.api.blobs.uploads import FileBody
from khala.api.context import Context
from khala.api.executor.routes import BODY, BY_WORKER, DENIED
from khala.api.http.body_limits import refuse_large_body
from khala.api.http.path_parameters import BlobId, RunId
from khala.api.http.problem_details import documented_errors
from khala.blobs.spool import MAX_OUTPUT_BYTES
from khala.domain.access import Caller
from khala.domain.parts import BlobRef
from khala.workers.attached_runs import worker_of

OF_RUN = (*DENIED, "run_not_found", "stale_epoch", "run_ended")
EPOCH = QueryParameter(ge=1, le=2_000_000_000, description="The epoch under which the worker holds the run.")


class ExecutorBlobController(Controller):
    """Blobs of remote workers."""

    path = "/executor/runs/{run_id:uuid}/blobs"
    tags = ("Executor",)
    security = BY_WORKER
    opt: dict[str, Any] = {"scope": "execute"}  # noqa: RUF012  # Litestar's declaration

    @post(
        "/",
        operation_id="storeRunBlob",
        operation_class=FileBody,
        summary="Store a blob",
        status_code=200,
        response_description="The blob, to which parts of the run can refer.",
        responses=documented_errors(*OF_RUN, *BODY, "request_timeout"),
        # No limit here: the spool enforces it.
        request_max_body_size=None,
        raw_body=True,
    )
    async def store(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        epoch: Annotated[int, EPOCH],
        name: Annotated[str | None, QueryParameter(max_length=1000, description="The name of the file.")] = None,
    ) -> BlobRef:
        """Store the body as a blob of the run. The same body again, with its type and name, is the same blob."""
        size = refuse_large_body(request, MAX_OUTPUT_BYTES)
        media_type = request.headers.get("content-type", "")
        blobs = await context.workers.blobs(worker_of(caller), run_id, epoch)
        # Before the body is read, as it may be large.
        await blobs.check_room(size, media_type, name)
        return await blobs.store(request.stream(), media_type, name)

    @get(
        "/{blob_id:uuid}",
        operation_id="readRunBlob",
        summary="Read a blob",
        responses=documented_errors(*OF_RUN, "blob_not_found", "range_not_satisfiable")
        | blob_responses.CONTENT_RESPONSES,
    )
    async def read(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        run_id: RunId,
        blob_id: BlobId,
        epoch: Annotated[int, EPOCH],
    ) -> Response[Any]:
        """Read a blob of the run's thread, or a `Range` of it: a file of a message, or an output of a run."""
        blobs = await context.workers.blobs(worker_of(caller), run_id, epoch)
        blob = await blobs.find(blob_id)
        not_modified = blob_responses.not_modified(request, blob)
        if not_modified is not None:
            return not_modified
        try:
            return await blob_responses.stream_blob(
                context.blobs.service, blob, blob_responses.requested_range(request, blob)
            )
        except blob_responses.RangeNotSatisfiableError:
            return blob_responses.range_error(blob)
