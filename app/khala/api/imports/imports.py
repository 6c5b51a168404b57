"""Imports exports of ChatGPT, Claude and Open WebUI into the caller's account. The body is the file."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import structlog
from litestar import Request, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

from khala.api.accounts.authentication import BY_ACCOUNT
from khala.api.blobs.uploads import FORMS, FileBody
from khala.api.context import Context
from khala.api.http.body_limits import refuse_large_body
from khala.api.http.problem_details import documented_errors
from khala.api.http.server_sent_events import KEEP_ALIVE, encode_event, stream_response
from khala.api.imports.import_limiter import ImportLimiter
from khala.api.imports.types import ImportCounts, ImportedThread, ImportEnded, ImportEvent, ImportFailed, ImportProgress
from khala.blobs.spool import Spool
from khala.chat_imports.export_reader import ImportReport
from khala.chat_imports.importer import ChatImporter
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput, KhalaError, RateLimited, ReachedLimit
from khala.store.accounts.accounts import require_account
from khala.store.budgets import counters

log = structlog.get_logger()

MAX_EXPORT_BYTES = 512 << 20
"""Bytes of an export, as it is uploaded."""
MAX_IMPORTS_PER_HOUR = 10
"""Of one account, by all processes."""
PROGRESS_INTERVAL_SECONDS = 0.5
KEEP_ALIVE_INTERVALS = 20
EVENTS = ResponseSpec(
    data_container=str,
    media_type="text/event-stream",
    generate_examples=False,
    description="Events with `type`: any number of `progress`, then one `imported` or `failed`, which is the last one.",
)


@post(
    "/imports",
    tags=["Accounts"],
    operation_id="importChats",
    operation_class=FileBody,
    summary="Import conversations of another product",
    security=BY_ACCOUNT,
    status_code=200,
    responses=documented_errors(
        "invalid_input", "unauthorized", "forbidden", "payload_too_large", "unsupported_media_type", "request_timeout",
        "rate_limited", "unavailable",
    )
    | {200: EVENTS},
    # No limit here: the spool enforces it.
    request_max_body_size=None,
    raw_body=True,
)  # fmt: skip
async def import_chats(
    request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
) -> Stream:
    """Import an export of ChatGPT, Claude or Open WebUI: its zip, or its JSON. A repetition adds nothing.

    If the client closes the response before the last event, the import ends; what it has imported stays.
    """
    user_id = require_account(caller)
    if request.content_type[0].lower() in FORMS:
        raise InvalidInput("Send the file itself as the body, not a form.")
    refuse_large_body(request, MAX_EXPORT_BYTES)
    limiter = context.limits.imports
    async with AsyncExitStack() as stack:
        stack.enter_context(limiter.opened(user_id))
        wait = await counters.count(
            context.db, "import", user_id.bytes, "tries", MAX_IMPORTS_PER_HOUR, window_seconds=3600
        )
        if wait is not None:
            limit = ReachedLimit("imports_per_hour", "account", MAX_IMPORTS_PER_HOUR)
            message = f"An account imports at most {MAX_IMPORTS_PER_HOUR} times an hour."
            raise RateLimited(message, limit=limit, retry_after=wait)
        spool = await stack.enter_async_context(context.blobs.service.spool(MAX_EXPORT_BYTES))
        async for chunk in request.stream():
            await spool.write(chunk)
        if not spool.size:
            raise InvalidInput("The file is empty.")
        importer = ChatImporter(context.db, context.blobs.service, caller)
        events = _events(importer, spool, limiter, stack.pop_all())
        # Begun, so that it is closed with the response, however that ends.
        await anext(events)
    return stream_response(events)


async def _events(
    importer: ChatImporter, spool: Spool, limiter: ImportLimiter, resources: AsyncExitStack
) -> AsyncGenerator[str]:
    """Encode the progress at intervals, and then the end."""
    importing: asyncio.Task[ImportReport] | None = None
    try:
        yield ""
        importing = asyncio.create_task(_run(importer, await spool.file(), limiter))
        sent, silent = None, 0
        while not importing.done():
            await asyncio.wait({importing}, timeout=PROGRESS_INTERVAL_SECONDS)
            counts, silent = _counts(importer.report), silent + 1
            if counts != sent:
                sent, silent = counts, 0
                yield _encoded(ImportProgress(report=counts))
            elif silent >= KEEP_ALIVE_INTERVALS:
                silent = 0
                yield KEEP_ALIVE
        yield _encoded(_end(importer, importing))
    finally:
        if importing is not None:
            importing.cancel()
            await asyncio.wait({importing})
        await resources.aclose()


async def _run(importer: ChatImporter, path: Path, limiter: ImportLimiter) -> ImportReport:
    async with limiter.running:
        return await importer.run(path)


def _end(importer: ChatImporter, importing: "asyncio.Task[ImportReport]") -> ImportEnded | ImportFailed:
    try:
        return ImportEnded(report=_counts(importing.result()))
    except KhalaError as error:
        return ImportFailed(code=error.code, message=error.message, report=_counts(importer.report))
    except Exception:  # the response has begun: an unexpected error becomes its last event
        log.exception("import_crashed")
        return ImportFailed(
            code="internal", message="The server failed to import the file.", report=_counts(importer.report)
        )


def _counts(report: ImportReport) -> ImportCounts:
    return ImportCounts(
        conversations=report.conversations,
        known=report.known,
        messages=report.messages,
        files=report.files,
        threads=[ImportedThread(id=thread.id, title=thread.title) for thread in report.threads],
        left_out=dict(report.left_out),
    )


def _encoded(event: ImportEvent) -> str:
    return encode_event(msgspec.json.encode(event).decode())
