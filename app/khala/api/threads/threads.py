"""Threads over REST: create, list, read, change, reset and delete them, and send messages."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, QueryParameter
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import BY_KEY, require_credentials, with_keys
from khala.api.agents.catalog import choose_agent
from khala.api.context import Context
from khala.api.http.page_cursors import decode_cursor, encode_cursor
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import OptionalBody, example
from khala.api.threads.delayed_sends import delay
from khala.api.threads.run_options import check_options
from khala.api.threads.types import (
    MAX_LABEL_CHARACTERS,
    CreatedThread,
    NewMessage,
    NewThread,
    OlderMessages,
    RegenerateRequest,
    ThreadChanges,
)
from khala.api.types import Page
from khala.api.validation import check_message_text, check_new_id, check_text
from khala.domain import ids
from khala.domain.access import Action, Caller, validated_anon_key
from khala.domain.agents import AUTO
from khala.domain.chat import ListedThread, Message, SendResult, Thread
from khala.domain.errors import Forbidden, InvalidInput
from khala.domain.schedules import Schedule
from khala.domain.thread_changes import Snapshot
from khala.store.sharing import access
from khala.store.threads import messages, sends, thread_feed, thread_pages, threads
from khala.store.threads.sends import SendRequest
from khala.store.threads.thread_pages import ThreadFilter

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")

TEMPORARY_LIFETIME = timedelta(days=1)

Cursor = Annotated[str | None, QueryParameter(description="The `nextCursor` of the previous page.")]
Pinned = Annotated[bool | None, QueryParameter(description="Only threads that the caller has pinned, or has not.")]
Archived = Annotated[bool | None, QueryParameter(description="Only threads that the caller has archived, or has not.")]
InFolder = Annotated[
    str | None,
    QueryParameter(max_length=MAX_LABEL_CHARACTERS, description="Only threads in this folder; empty for no folder."),
]
Before = Annotated[UUID, QueryParameter(description="The id of the oldest message that you have.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")]


class ThreadController(Controller):
    """Conversations."""

    path = "/threads"
    tags = ("Threads",)

    @post(
        "/",
        operation_id="createThread",
        operation_class=OptionalBody,
        summary="Create a thread",
        response_description="The new thread and its key, which is returned only once.",
        responses=documented_errors(
            "invalid_input", "unauthorized", "forbidden", "conflict", *BODY, "rate_limited", "unavailable"
        )
        | {200: documented_success(CreatedThread, "The thread already existed, and belongs to the caller.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewThread | None, BodyKwarg(examples=example("A thread with a title", title="Trip to Aiur"))
        ] = None,
    ) -> Response[CreatedThread]:
        """Create a thread with a welcome message. A repetition with the same id changes nothing and returns 200.

        With `temporary`, the response says when the thread is deleted (`expiresAt`).
        """
        data = data or NewThread()
        key = None if caller.user_id else _anon_key(data)
        title = None if data.title is None else check_text(data.title, "title")
        thread, new = await threads.create(
            context.db,
            data.id or ids.new(),
            with_keys(caller, key, None),
            title=title,
            welcome=context.threads.welcome,
            lifetime=TEMPORARY_LIFETIME if data.temporary else None,
            recalls=not data.temporary,
        )
        expires_at = thread.expires_at if data.temporary else None
        created = CreatedThread(thread=thread, anon_key=key if new else None, expires_at=expires_at)
        return Response(created, status_code=201 if new else 200)

    @get(
        "/",
        operation_id="listThreads",
        summary="List threads",
        security=BY_KEY,
        response_description="Threads.",
        responses=documented_errors("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable"),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        cursor: Cursor = None,
        limit: Limit = 50,
        pinned: Pinned = None,
        archived: Archived = None,
        folder: InFolder = None,
    ) -> Page[ListedThread]:
        """List the threads of the account and those in which it has a role, or the thread of the key, newest first."""
        page = await thread_pages.list_page(
            context.db,
            require_credentials(caller),
            before=None if cursor is None else decode_cursor(cursor),
            limit=limit + 1,
            only=ThreadFilter(pinned=pinned, archived=archived, folder=folder and check_text(folder, "folder")),
        )
        items = page[:limit]
        return Page(
            items=items, next_cursor=encode_cursor(items[-1].created_at, items[-1].id) if len(page) > limit else None
        )

    @get(
        "/{thread_id:uuid}",
        operation_id="readThread",
        summary="Read a thread",
        security=BY_KEY,
        response_description="A snapshot of the thread.",
        responses=documented_errors(*DENIED),
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        limit: Limit = 100,
    ) -> Snapshot:
        """Read the thread and its newest messages, in order. Answers of active runs have the text written so far."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            return await thread_feed.read_snapshot(driver, thread_id, limit=limit)

    @get(
        "/{thread_id:uuid}/messages",
        operation_id="readOlderMessages",
        summary="Read older messages",
        security=BY_KEY,
        response_description="Messages, in order.",
        responses=documented_errors(*DENIED),
    )
    async def older(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        before: Before,
        limit: Limit = 50,
    ) -> OlderMessages[Message]:
        """Read the messages before `before`, in order."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            items, more = await thread_feed.read_older(driver, thread_id, before=before, limit=limit)
        return OlderMessages(items=items, has_more=more)

    @patch(
        "/{thread_id:uuid}",
        operation_id="changeThread",
        summary="Change a thread",
        security=BY_KEY,
        response_description="The changed thread.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ThreadChanges, BodyKwarg(examples=example("A new title", title="Trip to Shakuras"))],
    ) -> Thread:
        """Change the title (`null` removes it), the visibility, or the message from which the thread continues."""
        if data == ThreadChanges():
            raise InvalidInput("Nothing to change: send a title, a visibility or an activeLeaf.", path="title")
        if data.visibility == "public" and not context.threads.allow_public:
            raise Forbidden("Public threads are disabled on this server.")
        title = check_text(data.title, "title") if isinstance(data.title, str) else data.title
        return await threads.update_thread(
            context.db, thread_id, caller, title=title, visibility=data.visibility, active_leaf=data.active_leaf
        )

    @delete(
        "/{thread_id:uuid}",
        operation_id="deleteThread",
        summary="Delete a thread",
        security=BY_KEY,
        response_description="The thread was deleted.",
        responses=documented_errors(*DENIED),
    )
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> None:
        """Delete the thread with its content. Observers are notified. Within some seconds it can be restored."""
        await threads.remove(context.db, thread_id, caller, undo=context.threads.undo)

    @post(
        "/{thread_id:uuid}/reset",
        operation_id="resetThread",
        summary="Reset a thread",
        security=BY_KEY,
        status_code=200,
        response_description="The thread with only its welcome message.",
        responses=documented_errors(*DENIED),
    )
    async def reset(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Thread:
        """Delete messages, parts, runs and receipts, and add the welcome message again."""
        return await threads.reset(context.db, thread_id, caller, welcome=context.threads.welcome)

    @post(
        "/{thread_id:uuid}/send",
        operation_id="send",
        summary="Send a message",
        security=BY_KEY,
        status_code=202,
        response_description="The message is stored, and its answer is queued, or is to be sent later.",
        responses=documented_errors(*DENIED, "conflict", "run_active", *BODY, "budget_exhausted")
        | {200: documented_success(SendResult, "The message was already sent. Nothing was added.")},
    )
    async def send(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[NewMessage, BodyKwarg(examples=example("A question", text="What is a Khala?"))],
    ) -> Response[SendResult | Schedule]:
        """Store a message and queue its answer. A repeated request with the same `messageId` returns 200.

        With `sendAt` or `after`, the message is stored as a schedule, which sends it at that time.
        """
        if data.send_at is not None or data.after is not None:
            return await delay(context, caller, thread_id, data)
        caller = _named(caller, data.author_name)
        text = check_message_text(data.text, may_be_empty=bool(data.attachments))
        options = await check_options(data.options, context, caller)
        if options.agent == AUTO:
            async with context.db.driver() as driver:
                await access.authorize(driver, thread_id, caller, Action.SEND_MESSAGE)
            options = await choose_agent(context, caller, options, text, caller.user_id or thread_id)
        request = SendRequest(
            thread_id=thread_id,
            message_id=check_new_id(data.message_id, "messageId") or ids.new(),
            text=text,
            attachments=tuple(data.attachments),
            parent_id=data.parent_id,
            options=options,
        )
        sent, new = await sends.send(context.db, request, caller, context.limits.sends)
        bind_contextvars(run_id=str(sent.run_id))
        return Response(sent, status_code=202 if new else 200)

    @post(
        "/{thread_id:uuid}/regenerate",
        operation_id="regenerate",
        summary="Answer a message again",
        security=BY_KEY,
        status_code=202,
        response_description="Another answer is queued.",
        responses=documented_errors(*DENIED, "conflict", "run_active", *BODY, "budget_exhausted")
        | {200: documented_success(SendResult, "The answer was already requested. Nothing was added.")},
    )
    async def regenerate(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[RegenerateRequest, BodyKwarg(examples=example("Another answer", messageId=str(UUID(int=7))))],
    ) -> Response[SendResult]:
        """Queue another answer to a user's message. A repeated request with the same `answerId` adds nothing."""
        options = await check_options(data.options, context, caller)
        if options.agent == AUTO:
            async with context.db.driver() as driver:
                await access.authorize(driver, thread_id, caller, Action.SEND_MESSAGE)
                text = await messages.read_text(driver, thread_id, data.message_id)
            options = await choose_agent(context, caller, options, text, caller.user_id or thread_id)
        request = SendRequest(thread_id=thread_id, message_id=data.message_id, text="", options=options)
        answer_id = check_new_id(data.answer_id, "answerId") or ids.new()
        sent, new = await sends.regenerate(context.db, request, answer_id, caller, context.limits.sends)
        bind_contextvars(run_id=str(sent.run_id))
        return Response(sent, status_code=202 if new else 200)


def _anon_key(data: NewThread) -> str:
    return ids.new_secret() if data.anon_key is None else validated_anon_key(data.anon_key)


def _named(caller: Caller, name: str | None) -> Caller:
    """The caller under the name that they give. Raises `InvalidInput` for an account, which has its own."""
    if name is None:
        return caller
    if caller.user_id is not None:
        raise InvalidInput("An account has a name of its own: PATCH /me changes it.", path="authorName")
    return msgspec.structs.replace(caller, name=" ".join(check_text(name, "authorName").split()))
