"""Blobs over REST: read the content, a range of it, or lines of a text."""

from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Request, Response, get, head
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.blobs import blob_responses
from khala.api.context import Context
from khala.api.http.path_parameters import BlobId
from khala.api.http.problem_details import documented_errors
from khala.blobs.blob_reader import MAX_LINES, ReadMode, ReadRequest, ReadResult, read_lines
from khala.blobs.blob_service import BlobService
from khala.blobs.line_views import MAX_CONTEXT_LINES, ReadLimits
from khala.domain.access import Action, Caller
from khala.domain.errors import BlobNotFound
from khala.store.blobs.blobs import Blob
from khala.store.sharing import access

DENIED = ("invalid_input", "unauthorized", "forbidden", "blob_not_found", "rate_limited", "unavailable")
MIN_REDIRECT_BYTES = 256 * 1024
"""Reads of larger blobs redirect to a store that can sign URLs. For smaller ones, the extra round trip costs more."""
SIGNED_URL_SECONDS = 300
"""The lifetime of a signed URL."""
REDIRECT = ResponseSpec(None, description="The content is at `Location` for five minutes.", generate_examples=False)
IGNORE_CASE = QueryParameter(name="ignoreCase", description="Ignore case.")
CONTEXT_LINES = QueryParameter(
    name="context",
    ge=0,
    le=MAX_CONTEXT_LINES,
    schema_extra={"minimum": 0},  # Litestar omits a bound of 0
    description="The number of lines before and after each match.",
)


async def find_readable_blob(context: Context, caller: Caller, blob_id: UUID) -> Blob:
    """Return the blob if the caller may read its thread. Raises `BlobNotFound`, or `Forbidden`."""
    blob = await context.blobs.service.find(blob_id)
    async with context.db.driver() as driver:
        (authorization,) = await access.authorizations(driver, [(blob.thread_id, caller)])
    if authorization is None:
        raise BlobNotFound("There is no such blob.")
    authorization.require(Action.READ_THREAD)
    return blob


class BlobController(Controller):
    """Uploads, and content that is too large for a message."""

    path = "/blobs/{blob_id:uuid}"
    tags = ("Blobs",)
    security = BY_KEY

    @get(
        "/",
        operation_id="readBlob",
        summary="Read a blob",
        responses=documented_errors(*DENIED, "range_not_satisfiable")
        | blob_responses.CONTENT_RESPONSES
        | {302: REDIRECT},
    )
    async def read(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
        direct: Annotated[bool, QueryParameter(description="Never redirect to another URL.")] = False,  # noqa: FBT002
    ) -> Response[Any]:
        """Read the content, or a `Range` of it. For a large blob, the response can redirect to a temporary URL."""
        blob = await find_readable_blob(context, caller, blob_id)
        not_modified = blob_responses.not_modified(request, blob)
        if not_modified is not None:
            return not_modified
        url = None if direct else await _signed_url(context.blobs.service, blob)
        if url is not None:
            return blob_responses.EmptyResponse(
                None, status_code=302, headers={"Location": url, "Cache-Control": "no-store"}
            )
        try:
            return await blob_responses.stream_blob(
                context.blobs.service, blob, blob_responses.requested_range(request, blob)
            )
        except blob_responses.RangeNotSatisfiableError:
            return blob_responses.range_error(blob)

    @head("/", include_in_schema=False)
    async def describe(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
    ) -> Response[None]:
        """Return the headers of `GET` without the content."""
        blob = await find_readable_blob(context, caller, blob_id)
        return blob_responses.not_modified(request, blob) or blob_responses.head_response(blob)

    @get(
        "/lines",
        operation_id="readBlobLines",
        summary="Read lines of a blob",
        response_description="Lines, in order.",
        responses=documented_errors(*DENIED),
    )
    async def lines(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
        mode: Annotated[
            ReadMode,
            QueryParameter(description="Read the first lines, the last lines, a range, or the matching lines."),
        ] = "head",
        lines: Annotated[
            int, QueryParameter(ge=1, le=MAX_LINES, description="The maximum number of lines or matches.")
        ] = 100,
        start: Annotated[
            int, QueryParameter(name="from", ge=1, le=2**53, description="The first line of a range.")
        ] = 1,
        pattern: Annotated[str | None, QueryParameter(description="A regular expression in RE2 syntax.")] = None,
        ignore_case: Annotated[bool, IGNORE_CASE] = False,  # noqa: FBT002
        around: Annotated[int, CONTEXT_LINES] = 0,
        after: Annotated[
            str | None, QueryParameter(max_length=64, description="`next` of the previous response.")
        ] = None,
    ) -> ReadResult:
        """Read lines of a text blob, page by page. Very long lines are truncated."""
        blob = await find_readable_blob(context, caller, blob_id)
        request = ReadRequest(
            mode=mode, lines=lines, start=start, pattern=pattern, ignore_case=ignore_case, context=around, after=after
        )
        return await read_lines(context.blobs.service, blob, request, ReadLimits())


async def _signed_url(blob_service: BlobService, blob: Blob) -> str | None:
    if blob.size < MIN_REDIRECT_BYTES:
        return None
    return await blob_service.store.signed_url(
        blob.key,
        media_type=blob_responses.content_type(blob),
        disposition=blob_responses.disposition(blob),
        seconds=SIGNED_URL_SECONDS,
    )
