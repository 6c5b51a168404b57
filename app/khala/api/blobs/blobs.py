"""Blobs over REST: read one, whole or in part, and look into one that is text."""

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
REDIRECTED = 256 * 1024
"""Bytes from which a store that signs addresses serves a blob itself: below, another round trip costs more."""
SIGNED = 300
"""Seconds for which such an address is good."""
ANSWERS = {
    200: ResponseSpec(bytes, media_type="*/*", description="All of its bytes.", generate_examples=False),
    206: ResponseSpec(bytes, media_type="*/*", description="The range that was asked for.", generate_examples=False),
    302: ResponseSpec(None, description="The bytes are at `Location`, for five minutes.", generate_examples=False),
    304: ResponseSpec(None, description="They are what `If-None-Match` names.", generate_examples=False),
}
IGNORE_CASE = QueryParameter(name="ignoreCase", description="Upper and lower case are one.")
AROUND = QueryParameter(
    name="context",
    ge=0,
    le=MAX_CONTEXT_LINES,
    schema_extra={"minimum": 0},  # Litestar takes a bound of 0 for none
    description="How many lines around each line that fits come with it.",
)


async def opened(context: Context, caller: Caller, blob_id: UUID) -> Blob:
    """The blob, if the caller may read its thread. Raises `BlobNotFound` and as `access.require` does."""
    blob = await context.blobs.service.find(blob_id)
    async with context.db.driver() as driver:
        (authorization,) = await access.authorizations(driver, [(blob.thread_id, caller)])
    if authorization is None:
        raise BlobNotFound("There is no such blob.")
    authorization.require(Action.READ_THREAD)
    return blob


class BlobController(Controller):
    """What was too large for a message, and what was uploaded."""

    path = "/blobs/{blob_id:uuid}"
    tags = ("Blobs",)
    security = BY_KEY

    @get(
        "/",
        operation_id="readBlob",
        summary="Read a blob",
        responses=documented_errors(*DENIED, "range_not_satisfiable") | ANSWERS,
    )
    async def read(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
        direct: Annotated[bool, QueryParameter(description="Never answer with another address.")] = False,  # noqa: FBT002
    ) -> Response[Any]:
        """The bytes, or with `Range` some of them; for a large blob perhaps an address that has them for a while."""
        blob = await opened(context, caller, blob_id)
        known = blob_responses.unchanged(request, blob)
        if known is not None:
            return known
        url = None if direct else await _signed(context.blobs.service, blob)
        if url is not None:
            return blob_responses.EmptyResponse(
                None, status_code=302, headers={"Location": url, "Cache-Control": "no-store"}
            )
        try:
            return await blob_responses.streamed(context.blobs.service, blob, blob_responses.wanted(request, blob))
        except blob_responses.Unsatisfiable:
            return blob_responses.unsatisfiable(blob)

    @head("/", include_in_schema=False)
    async def describe(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
    ) -> Response[None]:
        """What `GET` would say of the blob, without its bytes."""
        blob = await opened(context, caller, blob_id)
        return blob_responses.unchanged(request, blob) or blob_responses.described(blob)

    @get(
        "/lines",
        operation_id="readBlobLines",
        summary="Look into a blob",
        response_description="Lines, in order.",
        responses=documented_errors(*DENIED),
    )
    async def lines(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        blob_id: BlobId,
        mode: Annotated[
            ReadMode, QueryParameter(description="The first lines, the last, a range, or those that fit.")
        ] = "head",
        lines: Annotated[
            int, QueryParameter(ge=1, le=MAX_LINES, description="How many lines, or lines that fit.")
        ] = 100,
        start: Annotated[
            int, QueryParameter(name="from", ge=1, le=2**53, description="The first line of a range.")
        ] = 1,
        pattern: Annotated[str | None, QueryParameter(description="A regular expression in RE2's syntax.")] = None,
        ignore_case: Annotated[bool, IGNORE_CASE] = False,  # noqa: FBT002
        around: Annotated[int, AROUND] = 0,
        after: Annotated[str | None, QueryParameter(max_length=64, description="`next` of the answer before.")] = None,
    ) -> ReadResult:
        """Lines of a blob that is text. Each line that fits comes once, page by page; very long lines are cut."""
        blob = await opened(context, caller, blob_id)
        question = ReadRequest(
            mode=mode, lines=lines, start=start, pattern=pattern, ignore_case=ignore_case, context=around, after=after
        )
        return await read_lines(context.blobs.service, blob, question, ReadLimits())


async def _signed(blob_service: BlobService, blob: Blob) -> str | None:
    if blob.size < REDIRECTED:
        return None
    return await blob_service.store.signed_url(
        blob.key,
        media_type=blob_responses.content_type(blob),
        disposition=blob_responses.disposition(blob),
        seconds=SIGNED,
    )
