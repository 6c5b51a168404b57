"""Uploads over REST: the body is the file. Its content type is checked, and it waits to be sent with a message."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.body_limits import refuse_large_body
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.blobs.content_type import ContentSniffer
from khala.blobs.spool import Spool
from khala.domain.access import Action, Caller
from khala.domain.errors import InvalidInput
from khala.domain.parts import BlobRef
from khala.store.blobs import blobs
from khala.store.sharing import access

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type", "request_timeout")
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
ACCEPTED_TYPES = "PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8 are accepted."


@dataclass
class FileBody(Operation):
    """An operation whose body is a file, which Litestar cannot document."""

    def __post_init__(self) -> None:
        """Document the body."""
        file = OpenAPIMediaType(
            schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY), example="name,score\nZeratul,7\n"
        )
        self.request_body = RequestBody(content={"*/*": file}, description="The file.", required=True)


@post(
    "/threads/{thread_id:uuid}/blobs",
    tags=["Blobs"],
    operation_id="uploadBlob",
    operation_class=FileBody,
    summary="Upload a file",
    security=BY_KEY,
    response_description="The blob, which can be attached to a message.",
    responses=documented_errors(*DENIED, *BODY),
    # No limit here: the spool enforces the operator's limit.
    request_max_body_size=None,
    raw_body=True,
)
async def upload(
    request: Request[Any, Any, Any],
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    thread_id: ThreadId,
    name: Annotated[str | None, QueryParameter(max_length=1000, description="The name of the file.")] = None,
) -> BlobRef:
    """Store a file to be sent with a message within a day. Its content determines its media type."""
    max_bytes = context.blobs.max_upload_bytes
    check_file_body(request, max_bytes)
    async with context.db.driver() as driver:
        await access.authorize(driver, thread_id, caller, Action.UPLOAD_FILE)
        await blobs.check_quota(driver, thread_id, 0, context.blobs.service.quota, uploader=caller.author_id)
    async with context.blobs.service.spool(max_bytes) as spool:
        media_type = await receive_file(request, spool)
        return await context.blobs.service.put(
            spool, thread_id=thread_id, media_type=media_type, name=name, author_id=caller.author_id, attached=False
        )


def check_file_body(request: Request[Any, Any, Any], max_bytes: int) -> None:
    """Refuse a form, and a body that is announced as larger than `max_bytes`, before it is read."""
    if request.content_type[0].lower() in FORMS:
        raise HTTPException(status_code=415, detail=f"Send the file itself as the body, not a form. {ACCEPTED_TYPES}")
    refuse_large_body(request, max_bytes)


async def receive_file(request: Request[Any, Any, Any], spool: Spool) -> str:
    """Spool the body, and return its media type. Raises `InvalidInput` for an empty file, and 415 for other types."""
    sniffer = ContentSniffer()
    async for chunk in request.stream():
        await spool.write(chunk)
        sniffer.feed(chunk)
    if not spool.size:
        raise InvalidInput("The file is empty.")
    media_type = sniffer.media_type(request.content_type[0])
    if media_type is None:
        raise HTTPException(status_code=415, detail=f"Files of this type are not accepted. {ACCEPTED_TYPES}")
    return media_type
