"""Uploads over REST: a file comes as the body, is looked at, and waits to be sent with a message."""

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Request, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.blobs.content_type import ContentSniffer
from khala.blobs.spool import Spool
from khala.domain.access import Action, Caller
from khala.domain.errors import InvalidInput, PayloadTooLarge
from khala.domain.parts import BlobRef
from khala.store.blobs import blobs
from khala.store.sharing import access

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type", "request_timeout")
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
TAKEN = "PNG, JPEG, GIF and WebP images, PDF, and text in UTF-8 are taken."


@dataclass
class FileBody(Operation):
    """An operation whose body is the file itself, which Litestar has no word for."""

    def __post_init__(self) -> None:
        """Say so."""
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
    response_description="The blob, which waits for a message.",
    responses=documented_errors(*DENIED, *BODY),
    # The spool has its own limit, which the operator chooses.
    request_max_body_size=None,
    raw_body=True,
)
async def upload(
    request: Request[Any, Any, Any],
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    thread_id: ThreadId,
    name: Annotated[str | None, QueryParameter(max_length=1000, description="What the file is called.")] = None,
) -> BlobRef:
    """Keep the file, to be sent with a message within a day. What kind of file it is its content says."""
    claimed, most = request.content_type[0], context.blobs.max_upload_bytes
    if claimed.lower() in FORMS:
        raise HTTPException(status_code=415, detail=f"The body is the file itself, not a form. {TAKEN}")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise PayloadTooLarge(f"A file has at most {most:,} bytes.")
    async with context.db.driver() as driver:
        await access.authorize(driver, thread_id, caller, Action.UPLOAD_FILE)
        await blobs.check_quota(driver, thread_id, 0, context.blobs.service.quota, uploader=caller.author_id)
    async with context.blobs.service.spool(most) as spool:
        media_type = await _received(request, spool, claimed)
        return await context.blobs.service.put(
            spool, thread_id=thread_id, media_type=media_type, name=name, author_id=caller.author_id, attached=False
        )


async def _received(request: Request[Any, Any, Any], spool: Spool, claimed: str) -> str:
    """Spool the body. Returns its media type."""
    sniffer = ContentSniffer()
    async for chunk in request.stream():
        await spool.write(chunk)
        sniffer.feed(chunk)
    if not spool.size:
        raise InvalidInput("The file is empty.")
    media_type = sniffer.media_type(claimed)
    if media_type is None:
        raise HTTPException(status_code=415, detail=f"This is no file that is taken. {TAKEN}")
    return media_type
