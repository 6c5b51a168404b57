"""Threads over REST: make, read, rename, delete, reset, and send."""

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, QueryParameter
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import BY_KEY, require_credentials, with_keys
from khala.api.context import Context
from khala.api.http.path_parameters import ThreadId
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.openapi.document import OptionalBody, example
from khala.api.threads.types import (
    CreatedThread,
    NewMessage,
    NewThread,
    OlderMessages,
    RegenerateRequest,
    ThreadChanges,
)
from khala.api.tools import client_functions
from khala.api.types import Page
from khala.api.validation import check_json, check_message_text, check_text
from khala.domain import ids
from khala.domain.access import Action, Caller, validated_anon_key
from khala.domain.chat import Message, RunOptions, SendResult, Snapshot, Thread
from khala.domain.errors import Forbidden, InvalidInput
from khala.store.sharing import access
from khala.store.threads import sends, thread_feed, threads
from khala.store.threads.sends import SendRequest

DENIED = ("invalid_input", "unauthorized", "forbidden", "thread_not_found", "rate_limited", "unavailable")
BODY = ("payload_too_large", "unsupported_media_type")

Cursor = Annotated[str | None, QueryParameter(description="The `nextCursor` of the page before.")]
Before = Annotated[UUID, QueryParameter(description="The id of the oldest message that you have.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200, description="How many, at most.")]


class ThreadController(Controller):
    """Conversations."""

    path = "/threads"
    tags = ("Threads",)

    @post(
        "/",
        operation_id="makeThread",
        operation_class=OptionalBody,
        summary="Make a thread",
        response_description="The new thread, and its key, which is told only now.",
        responses=documented_errors(
            "invalid_input", "unauthorized", "forbidden", "conflict", *BODY, "rate_limited", "unavailable"
        )
        | {200: documented_success(CreatedThread, "It was there already, and is the caller's.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[
            NewThread | None, BodyKwarg(examples=example("A thread of one's own", title="Trip to Aiur"))
        ] = None,
    ) -> Response[CreatedThread]:
        """Make a thread and its welcome message. The same id and caller again changes nothing and answers 200."""
        data = data or NewThread()
        key = None if caller.user_id else _key(data)
        title = None if data.title is None else check_text(data.title, "title")
        thread, new = await threads.create(
            context.db,
            data.id or ids.new(),
            with_keys(caller, key, None),
            title=title,
            welcome=context.threads.welcome,
        )
        return Response(CreatedThread(thread=thread, anon_key=key if new else None), status_code=201 if new else 200)

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
    ) -> Page[Thread]:
        """The threads that the account owns or was given a role on, or that the key opens, newest first."""
        found = await threads.list_page(
            context.db, require_credentials(caller), before=_position(cursor), limit=limit + 1
        )
        items = found[:limit]
        return Page(items=items, next_cursor=_cursor(items[-1]) if len(found) > limit else None)

    @get(
        "/{thread_id:uuid}",
        operation_id="readThread",
        summary="Read a thread",
        security=BY_KEY,
        response_description="The thread as it is.",
        responses=documented_errors(*DENIED),
    )
    async def read(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        limit: Limit = 100,
    ) -> Snapshot:
        """The thread and its newest messages, in order; answers under way as far as they have come."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            return await thread_feed.read_snapshot(driver, thread_id, limit=limit)

    @get(
        "/{thread_id:uuid}/messages",
        operation_id="readOlder",
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
        """The messages before the one that `before` names, in order."""
        async with context.db.snapshot() as driver:
            await access.authorize(driver, thread_id, caller, Action.READ_THREAD)
            items, more = await thread_feed.read_older(driver, thread_id, before=before, limit=limit)
        return OlderMessages(items=items, has_more=more)

    @patch(
        "/{thread_id:uuid}",
        operation_id="changeThread",
        summary="Change a thread",
        security=BY_KEY,
        response_description="The thread as it is now.",
        responses=documented_errors(*DENIED, *BODY),
    )
    async def change(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[ThreadChanges, BodyKwarg(examples=example("A new title", title="Trip to Shakuras"))],
    ) -> Thread:
        """Give the thread a title, or with `null` take it away; say who may read it, and what it goes on from."""
        if data == ThreadChanges():
            raise InvalidInput("Nothing to change: send a title, a visibility or an activeLeaf.", path="title")
        if data.visibility == "public" and not context.threads.allow_public:
            raise Forbidden("Public threads are not switched on here.")
        title = check_text(data.title, "title") if isinstance(data.title, str) else data.title
        return await threads.update_thread(
            context.db, thread_id, caller, title=title, visibility=data.visibility, active_leaf=data.active_leaf
        )

    @delete(
        "/{thread_id:uuid}",
        operation_id="deleteThread",
        summary="Delete a thread",
        security=BY_KEY,
        response_description="It is gone.",
        responses=documented_errors(*DENIED),
    )
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> None:
        """Delete the thread with all that is in it; observers are told."""
        await threads.remove(context.db, thread_id, caller)

    @post(
        "/{thread_id:uuid}/reset",
        operation_id="resetThread",
        summary="Empty a thread",
        security=BY_KEY,
        status_code=200,
        response_description="The thread, with nothing but its welcome.",
        responses=documented_errors(*DENIED),
    )
    async def reset(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: ThreadId
    ) -> Thread:
        """Delete messages, parts, runs and receipts, and start over with the welcome."""
        return await threads.reset(context.db, thread_id, caller, welcome=context.threads.welcome)

    @post(
        "/{thread_id:uuid}/send",
        operation_id="send",
        summary="Send a message",
        security=BY_KEY,
        status_code=202,
        response_description="The message is stored and its answer is on the way.",
        responses=documented_errors(*DENIED, "conflict", "run_active", *BODY, "budget_exhausted")
        | {200: documented_success(SendResult, "It was sent before; nothing was added.")},
    )
    async def send(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[NewMessage, BodyKwarg(examples=example("A question", text="What is a Khala?"))],
    ) -> Response[SendResult]:
        """Store a message and start its answer. The same `messageId` again adds nothing and answers 200."""
        await _check(data.options, context)
        question = SendRequest(
            thread_id=thread_id,
            message_id=data.message_id or ids.new(),
            text=check_message_text(data.text, may_be_empty=bool(data.attachments)),
            attachments=tuple(data.attachments),
            parent_id=data.parent_id,
            options=data.options,
        )
        sent, new = await sends.send(context.db, question, caller, context.limits.sends)
        bind_contextvars(run_id=str(sent.run_id))
        return Response(sent, status_code=202 if new else 200)

    @post(
        "/{thread_id:uuid}/regenerate",
        operation_id="regenerate",
        summary="Answer a message once more",
        security=BY_KEY,
        status_code=202,
        response_description="Another answer is on the way.",
        responses=documented_errors(*DENIED, "conflict", "run_active", *BODY, "budget_exhausted")
        | {200: documented_success(SendResult, "It was asked for before; nothing was added.")},
    )
    async def regenerate(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        thread_id: ThreadId,
        data: Annotated[RegenerateRequest, BodyKwarg(examples=example("Another answer", messageId=str(UUID(int=7))))],
    ) -> Response[SendResult]:
        """Start another answer to a user's message, beside those there are. The same `answerId` again adds nothing."""
        await _check(data.options, context)
        question = SendRequest(thread_id=thread_id, message_id=data.message_id, text="", options=data.options)
        answer_id = data.answer_id or ids.new()
        sent, new = await sends.regenerate(context.db, question, answer_id, caller, context.limits.sends)
        bind_contextvars(run_id=str(sent.run_id))
        return Response(sent, status_code=202 if new else 200)


async def _check(options: RunOptions, context: Context) -> None:
    """Raise `InvalidInput` for options that can't be kept, or ask for what is not offered."""
    if options.model is not None and not context.models.is_allowed(options.model):
        raise InvalidInput("This model is not offered here.", path="options.model")
    check_json(options, "options")
    await client_functions.check(options.functions, every="options.functions", each="options.functions.{}")


def _key(data: NewThread) -> str:
    return ids.new_secret() if data.anon_key is None else validated_anon_key(data.anon_key)


def _cursor(thread: Thread) -> str:
    return base64.urlsafe_b64encode(f"{thread.created_at.isoformat()} {thread.id}".encode()).decode()


def _position(cursor: str | None) -> tuple[datetime, UUID] | None:
    if cursor is None:
        return None
    try:
        at, thread_id = base64.urlsafe_b64decode(cursor).decode().split(" ")
        return datetime.fromisoformat(at).astimezone(UTC), UUID(thread_id)
    except (ValueError, OverflowError, binascii.Error) as error:
        raise InvalidInput("This is no cursor of this list.", path="cursor") from error
