"""Exports of one thread over REST, as a stream of its messages."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import QueryParameter
from litestar.response import Stream

from khala.api.accounts.authentication import BY_KEY
from khala.api.accounts.exports import ArchiveStream
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.domain import thread_documents
from khala.domain.access import Caller
from khala.store.threads import thread_exports
from khala.store.threads.thread_exports import ThreadExport

FORMAT = "khala-thread"
VERSION = 1
MEDIA_TYPES = {"markdown": "text/markdown", "json": "application/json"}
SUFFIXES = {"markdown": "md", "json": "json"}
DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
DOCUMENT = ResponseSpec(
    data_container=str, media_type=MEDIA_TYPES["markdown"], generate_examples=False, description="The conversation."
)


@dataclass
class ThreadExportOperation(Operation):
    """An operation whose response has one of two media types. Litestar documents only one of them."""

    def __post_init__(self) -> None:
        """Document the second media type."""
        response = (self.responses or {}).get("200")
        if isinstance(response, OpenAPIResponse) and response.content is not None:
            response.content[MEDIA_TYPES["json"]] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.OBJECT))


@get(
    "/threads/{thread_id:uuid}/export",
    operation_id="exportThread",
    operation_class=ThreadExportOperation,
    tags=["Threads"],
    summary="Export a thread",
    security=BY_KEY,
    responses=documented_errors(*DENIED) | {200: DOCUMENT},
)
async def export_thread(
    context: NamedDependency[Context],
    caller: NamedDependency[Caller],
    thread_id: ThreadId,
    document_format: Annotated[
        Literal["markdown", "json"], QueryParameter(name="format", description="The kind of document.")
    ] = "markdown",
) -> Stream:
    """Write the active branch as Markdown, or all branches as JSON. The response is a stream without a length."""
    is_json = document_format == "json"
    export = await thread_exports.begin(context.db, thread_id, caller, whole=is_json)
    return ArchiveStream(
        _json(export) if is_json else _markdown(export),
        media_type=MEDIA_TYPES[document_format],
        headers={
            "Content-Disposition": f'attachment; filename="chat-{thread_id}.{SUFFIXES[document_format]}"',
            "Cache-Control": "no-store",
        },
    )


async def _markdown(export: ThreadExport) -> AsyncGenerator[bytes, None]:
    yield thread_documents.write_beginning(export.thread).encode()
    async for message in export.messages():
        yield thread_documents.write_message(message).encode()


async def _json(export: ThreadExport) -> AsyncGenerator[bytes, None]:
    head = msgspec.json.encode({"format": FORMAT, "version": VERSION, "thread": export.thread})
    yield head[:-1] + b',"messages":['
    separator = b""
    async for message in export.messages():
        yield separator + msgspec.json.encode(message)
        separator = b","
    yield b"]}"
