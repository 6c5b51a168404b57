"""Memories over REST: store, list, search, correct and forget them."""

from typing import Annotated, Literal, get_args
from uuid import UUID

import msgspec
from litestar import Controller, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import BodyKwarg, PathParameter, QueryParameter

from khala.api.accounts.authentication import BY_KEY
from khala.api.context import Context
from khala.api.http.problem_details import documented_errors, documented_success
from khala.api.memories.types import MemoryBody, MemoryChanges
from khala.api.openapi.document import example
from khala.api.types import Page
from khala.api.validation import check_expiry, check_text
from khala.domain.access import Action, Caller
from khala.domain.errors import Forbidden, InvalidInput, NotFound, ThreadNotFound, Unauthorized
from khala.domain.memories import Memory, MemoryScope, MemorySpace, NewMemory
from khala.store.memories import memories
from khala.store.postgres.database import Driver
from khala.store.sharing import access

DENIED = ("invalid_input", "unauthorized", "forbidden", "rate_limited", "unavailable")
IN_THREAD = (*DENIED, "thread_not_found")
BODY = ("payload_too_large", "unsupported_media_type")
MAX_QUERY_CHARACTERS = 2_000
SCOPES = get_args(MemoryScope)

MemoryId = Annotated[UUID, PathParameter(description="The memory's id.")]
OfScope = Annotated[
    MemoryScope | None,
    QueryParameter(name="scope", description="By default `thread` if there is a `threadId`, else all others."),
]
OfThread = Annotated[
    UUID | None, QueryParameter(name="threadId", description="The thread, for its memories or those of its guest.")
]
Query = Annotated[
    str | None, QueryParameter(max_length=MAX_QUERY_CHARACTERS, description="Find memories that fit this text.")
]
Superseded = Annotated[
    Literal["exclude", "include"],
    QueryParameter(
        description="`include` also returns memories that were superseded; in a search, after the one that is true now."
    ),
]
Cursor = Annotated[UUID | None, QueryParameter(description="The `nextCursor` of the previous page.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200, description="The maximum number of items.")]


class MemoryController(Controller):
    """Memories of users and of threads."""

    path = "/memories"
    tags = ("Memories",)
    security = BY_KEY

    @post(
        "/",
        operation_id="createMemory",
        summary="Store a memory",
        response_description="The memory.",
        responses=documented_errors(*IN_THREAD, "not_found", *BODY)
        | {200: documented_success(Memory, "The text was stored before. The memory counts one more use.")},
    )
    async def create(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        data: Annotated[MemoryBody, BodyKwarg(examples=example("A fact", text="I live in Aiur."))],
    ) -> Response[Memory]:
        """Store a memory of the account, or of a thread. The same text again is stored once."""
        async with context.db.driver() as driver:
            space = await _space(driver, caller, data.scope, data.thread_id, Action.EDIT_MEMORIES, data.agent)
            if data.thread_id is not None:
                await access.authorize(driver, data.thread_id, caller, Action.READ_THREAD)
        new = NewMemory(
            text=_text(data.text),
            kind=data.kind,
            keywords=None if data.keywords is None else check_text(data.keywords, "keywords"),
            thread_id=data.thread_id,
            expires_at=check_expiry(data.expires_at),
        )
        memory, is_new = await context.memories.service.add(space, new)
        return Response(memory, status_code=201 if is_new else 200)

    @get(
        "/",
        operation_id="listMemories",
        summary="List or search memories",
        response_description="Memories, the newest first; or with `q`, those that fit best first.",
        responses=documented_errors(*IN_THREAD),
    )
    async def page(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        q: Query = None,
        of_scope: OfScope = None,
        thread_id: OfThread = None,
        superseded: Superseded = "exclude",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> Page[Memory]:
        """List the memories that are in use. A search returns one page."""
        history = superseded == "include"
        async with context.db.driver() as driver:
            space = await _space(driver, caller, of_scope, thread_id, Action.READ_MEMORIES)
            scopes = [of_scope] if of_scope else ["thread"] if thread_id else ["user", "agent"]
            if q is None:
                items = await memories.page(
                    driver, space.owner_id, scopes, before=cursor, limit=limit + 1, history=history
                )
                last = items[limit - 1].id if len(items) > limit else None
                return Page(items=items[:limit], next_cursor=None if last is None else str(last))
            agents = await memories.agents_of(driver, space.owner_id) if "agent" in scopes else []
        spaces = [MemorySpace(scope="agent", owner_id=space.owner_id, agent=agent) for agent in agents]
        if of_scope != "agent":
            spaces.append(space)
        found = await context.memories.service.search(
            spaces, check_text(q, "q"), limit=limit, history=history, payer_id=caller.user_id or thread_id
        )
        return Page(items=[memory for memory in found if memory.scope in scopes])

    @patch(
        "/{memory_id:uuid}",
        operation_id="correctMemory",
        summary="Correct a memory",
        response_description="The memory that supersedes it.",
        responses=documented_errors(*DENIED, "not_found", "conflict", *BODY),
    )
    async def correct(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        memory_id: MemoryId,
        data: Annotated[MemoryChanges, BodyKwarg(examples=example("Moved", text="I live in Shakuras."))],
    ) -> Memory:
        """Store a corrected memory. The old one is kept, and no longer used."""
        async with context.db.driver() as driver:
            old, space = await _owned(driver, caller, memory_id, Action.EDIT_MEMORIES)
        changed_text = data.text is not msgspec.UNSET
        new = NewMemory(
            text=old.text if data.text is msgspec.UNSET else _text(data.text),
            kind=old.kind,
            keywords=None if changed_text else old.keywords,
            thread_id=old.thread_id,
            message_id=old.message_id,
            run_id=old.run_id,
            expires_at=old.expires_at if data.expires_at is msgspec.UNSET else check_expiry(data.expires_at),
        )
        return await context.memories.service.supersede(space, memory_id, new)

    @delete(
        "/{memory_id:uuid}",
        operation_id="forgetMemory",
        summary="Forget a memory",
        response_description="The memory was deleted, with those that it had superseded.",
        responses=documented_errors(*DENIED, "not_found"),
    )
    async def forget(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], memory_id: MemoryId
    ) -> None:
        """Delete a memory."""
        async with context.db.driver() as driver:
            _, space = await _owned(driver, caller, memory_id, Action.EDIT_MEMORIES)
        await memories.forget(context.db, space.owner_id, memory_id)

    @delete(
        "/",
        operation_id="forgetAllMemories",
        summary="Forget all memories",
        response_description="The memories were deleted.",
        responses=documented_errors(*IN_THREAD, "not_found"),
    )
    async def forget_all(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], thread_id: OfThread = None
    ) -> None:
        """Delete all memories of the account, or of a thread. A guest's own memories are deleted only by their key."""
        async with context.db.driver() as driver:
            space = await _space(driver, caller, None, thread_id, Action.EDIT_MEMORIES)
            is_owner = thread_id is None or await _owns(driver, caller, thread_id)
        await memories.forget_all(context.db, space.owner_id, SCOPES if is_owner else ("thread",))


async def _space(
    driver: Driver,
    caller: Caller,
    scope: MemoryScope | None,
    thread_id: UUID | None,
    action: Action,
    agent: str | None = None,
) -> MemorySpace:
    """The memories that a request means, if the caller may do this with them.

    Raises `InvalidInput`, `Unauthorized`, `Forbidden` and `ThreadNotFound`.
    """
    chosen: MemoryScope = scope or ("thread" if thread_id else "user")
    if (agent is not None) != (chosen == "agent") and action is Action.EDIT_MEMORIES:
        raise InvalidInput("A memory of the scope agent has an agent, and others have none.", path="agent")
    if chosen == "thread":
        if thread_id is None:
            raise InvalidInput("Send the threadId.", path="threadId")
        await access.authorize(driver, thread_id, caller, action)
        return MemorySpace(scope="thread", owner_id=thread_id)
    if caller.user_id is not None:
        return MemorySpace(scope=chosen, owner_id=caller.user_id, agent=agent)
    if thread_id is None:
        raise Unauthorized("Sign in, or send the threadId of your thread.")
    await _authorize_guest(driver, caller, thread_id)
    return MemorySpace(scope=chosen, owner_id=thread_id, agent=agent)


async def _authorize_guest(driver: Driver, caller: Caller, thread_id: UUID) -> None:
    """Raise `Forbidden` unless the caller's key owns the thread, so that its memories of a guest are theirs."""
    await access.authorize(driver, thread_id, caller, Action.OWN_MEMORIES)
    if await driver.fetchval("SELECT owner_id FROM threads WHERE id = $1", thread_id) is not None:
        raise Forbidden("The memories of this thread's owner are theirs alone.")


async def _owns(driver: Driver, caller: Caller, thread_id: UUID) -> bool:
    """Whether memories that belong to the thread, and are not the thread's own, are the caller's."""
    try:
        await access.authorize(driver, thread_id, caller, Action.OWN_MEMORIES)
    except Forbidden:
        return False
    return True


async def may_change(driver: Driver, caller: Caller, space: MemorySpace, action: Action) -> bool:
    """Whether the caller may do this with these memories; with personal ones, only the person may."""
    if space.scope != "thread" and caller.user_id is not None:
        return caller.user_id == space.owner_id
    try:
        if space.scope == "thread":
            await access.authorize(driver, space.owner_id, caller, action)
        else:
            await _authorize_guest(driver, caller, space.owner_id)
    except (Forbidden, ThreadNotFound):
        return False
    return True


async def _owned(driver: Driver, caller: Caller, memory_id: UUID, action: Action) -> tuple[Memory, MemorySpace]:
    """A memory that the caller may change, and its space. All others raise `NotFound`, as if they did not exist."""
    memory, space = await memories.find(driver, memory_id)
    if not await may_change(driver, caller, space, action):
        raise NotFound("There is no such memory.")
    return memory, space


def _text(text: str) -> str:
    """The text without spaces around it. Raises `InvalidInput` if it is blank."""
    if not check_text(text, "text").strip():
        raise InvalidInput("A memory needs text.", path="text")
    return text.strip()
