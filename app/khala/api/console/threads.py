"""The console's threads: a list, and one thread at any revision after it was opened, which is audited."""

from typing import Annotated
from uuid import UUID

import structlog
from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, QueryParameter
from msgspec import Meta

from khala.api.console.access import FOR_PEOPLE, ConsoleReason, Reason, given_reason
from khala.api.console.cursors import decode_id, encode_id
from khala.api.console.types import (
    BODY,
    DENIED,
    ConsoleController,
    ConsolePage,
    Cursor,
    Limit,
    Search,
    page_of,
)
from khala.api.context import Context
from khala.api.http.page_cursors import decode_cursor, encode_cursor
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors
from khala.api.openapi.document import OptionalBody, example
from khala.api.types import ApiStruct
from khala.api.validation import check_text
from khala.domain.access import Caller
from khala.domain.frames import MAX_REVISION
from khala.store.console import thread_fork, thread_history, thread_list
from khala.store.console.thread_fork import ThreadFork
from khala.store.console.thread_history import HistoryEntry, ThreadHistory
from khala.store.console.thread_list import ConsoleThread, ThreadGrant

log = structlog.get_logger()

Revision = Annotated[int, Meta(ge=0, le=MAX_REVISION)]


class NewFork(ApiStruct, frozen=True, kw_only=True):
    """The revision from which a new thread begins, and the grant that opened the thread."""

    revision: Revision
    grant: UUID
    reason: Reason | None = None


class ConsoleThreadController(ConsoleController):
    """Threads of everybody."""

    path = "/console/threads"

    @get(
        "/",
        operation_id="listConsoleThreads",
        summary="List threads",
        response_description="Threads, the newest first.",
        responses=documented_errors(*DENIED),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        account: Annotated[UUID | None, QueryParameter(description="Only of this account.")] = None,
        q: Search = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[ConsoleThread]:
        """List threads without titles. `q` is the id of a thread, or of a message or run of it."""
        before = None if cursor is None else decode_cursor(cursor)
        text = check_text(q, "q") if q else None
        async with context.db.snapshot() as driver:
            found = await thread_list.read_page(driver, account, text, before, limit + 1)
        return page_of(found, limit, lambda thread: encode_cursor(thread.created_at, thread.id))

    @get(
        "/{shown_thread_id:uuid}",
        operation_id="readConsoleThread",
        summary="Read a thread's metadata",
        response_description="The thread.",
        responses=documented_errors(*DENIED, "thread_not_found"),
    )
    async def read(
        self, context: NamedDependency[Context], admin: NamedDependency[Caller], shown_thread_id: ThreadId
    ) -> ConsoleThread:
        """Read a thread without its title and messages."""
        async with context.db.snapshot() as driver:
            return await thread_list.read(driver, shown_thread_id)

    @post(
        "/{shown_thread_id:uuid}/open",
        operation_id="openConsoleThread",
        operation_class=OptionalBody,
        summary="Open a thread",
        status_code=200,
        response_description="The grant.",
        responses=documented_errors(*DENIED, "thread_not_found", *BODY),
    )
    async def open(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_thread_id: ThreadId,
        data: Annotated[ConsoleReason | None, BodyKwarg(examples=example("Support", reason="Ticket 7"))] = None,
    ) -> ThreadGrant:
        """Get the right to read a thread for an hour. The audit trail has an entry of it."""
        granted = await thread_list.open_thread(context.db, shown_thread_id, admin, given_reason(data))
        log.info("console_thread_opened", thread_id=str(shown_thread_id), grant=str(granted.grant))
        return granted

    @get(
        "/{shown_thread_id:uuid}/revisions",
        operation_id="listConsoleRevisions",
        summary="List a thread's revisions",
        response_description="Messages and what has changed them, the newest first.",
        responses=documented_errors(*DENIED, "thread_not_found"),
    )
    async def revisions(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_thread_id: ThreadId,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ConsolePage[HistoryEntry]:
        """List the revisions at which a thread can be shown, without text."""
        async with context.db.snapshot() as driver:
            found, last = await thread_history.read_revisions(driver, shown_thread_id, decode_id(cursor), limit)
        return ConsolePage(items=found, next_cursor=encode_id(last))

    @get(
        "/{shown_thread_id:uuid}/at",
        operation_id="readConsoleThreadAt",
        summary="Read a thread at a revision",
        opt={FOR_PEOPLE: True},
        response_description="The thread as it was.",
        responses=documented_errors(*DENIED, "thread_not_found"),
    )
    async def at(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_thread_id: ThreadId,
        grant: Annotated[UUID, QueryParameter(description="The grant that opened the thread.")],
        revision: Annotated[
            int | None, QueryParameter(ge=0, le=MAX_REVISION, description="By default the current one.")
        ] = None,
        before: Annotated[
            UUID | None, QueryParameter(description="The id of the oldest message that you have.")
        ] = None,
        limit: Limit = 50,
    ) -> ThreadHistory:
        """Read a thread as it was: the fold of its log. `gaps` names what the log does not have any more."""
        async with context.db.snapshot() as driver:
            await thread_list.require_grant(driver, shown_thread_id, grant, admin)
            return await thread_history.read_at(driver, shown_thread_id, revision, before=before, limit=limit)

    @post(
        "/{shown_thread_id:uuid}/fork",
        operation_id="forkConsoleThread",
        summary="Fork a thread from a revision",
        response_description="The new thread.",
        responses=documented_errors(*DENIED, "thread_not_found", "conflict", *BODY),
    )
    async def fork(
        self,
        context: NamedDependency[Context],
        admin: NamedDependency[Caller],
        shown_thread_id: ThreadId,
        data: Annotated[NewFork, BodyKwarg(examples=example("A revision", revision=3, grant=str(UUID(int=7))))],
    ) -> ThreadFork:
        """Copy the newest branch at a revision into a private thread of the administrator's own."""
        reason = given_reason(ConsoleReason(reason=data.reason))
        forked = await thread_fork.fork(context.db, shown_thread_id, data.revision, data.grant, admin, reason)
        log.info("console_thread_forked", thread_id=str(shown_thread_id), fork=str(forked.thread_id))
        return forked
