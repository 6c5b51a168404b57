"""`/v1/conversations`: threads as conversations of OpenAI's protocol, and their messages as items."""

from typing import Annotated, Any

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter
from structlog.contextvars import bind_contextvars

from khala.api.accounts.authentication import require_user
from khala.api.context import Context
from khala.api.openai.request_body import MAX_COMPLETION_BODY_BYTES
from khala.api.openai.types import JsonObject
from khala.api.responses.conversation_items import ConversationItems
from khala.api.responses.conversation_reader import ConversationReader
from khala.api.responses.creation import decode_body
from khala.api.responses.response_header import CONVERSATION_PREFIX, conversation_id, parse_id
from khala.api.responses.routes import AfterItem, Limit, Order
from khala.api.responses.stored_items import page
from khala.api.responses.types import ConversationChanges, NewConversation, NewItems
from khala.api.validation import check_json
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import KhalaError, NotFound, ThreadNotFound
from khala.store.threads import conversations, threads
from khala.store.threads.conversations import Conversation

ConversationId = Annotated[str, PathParameter(description="The conversation's id.", max_length=200)]
ItemId = Annotated[str, PathParameter(description="The item's id.", max_length=200)]
new_decoder = msgspec.json.Decoder(NewConversation)
changes_decoder = msgspec.json.Decoder(ConversationChanges)
items_decoder = msgspec.json.Decoder(NewItems)


class ConversationController(Controller):
    """Conversations of OpenAI's protocol."""

    path = "/conversations"
    include_in_schema = False
    opt = {"lenient": True}  # noqa: RUF012 (Litestar reads it.)

    @post("/", status_code=200, request_max_body_size=MAX_COMPLETION_BODY_BYTES)
    async def create(
        self, request: Request[Any, Any, Any], context: NamedDependency[Context], caller: NamedDependency[Caller]
    ) -> Response[JsonObject]:
        """Create a thread with these items, without an answer to them."""
        require_user(caller)
        new = decode_body(await request.body() or b"{}", new_decoder)
        check_json(new.metadata, "metadata")
        thread_id = ids.new()
        items = ConversationItems(context, caller, thread_id, new.items or ())
        await threads.create(
            context.db, thread_id, caller, title=items.title, welcome="", client_metadata=new.metadata or None
        )
        try:
            await items.add(is_first=True)
        except KhalaError:
            # No client has the id yet.
            await threads.remove(context.db, thread_id, caller)
            raise
        return await _read(context, caller, conversation_id(thread_id))

    @get("/{conversation_id:str}")
    async def read(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], conversation_id: ConversationId
    ) -> Response[JsonObject]:
        """Return the conversation."""
        return await _read(context, caller, conversation_id)

    @post("/{conversation_id:str}", status_code=200)
    async def update(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        conversation_id: ConversationId,
    ) -> Response[JsonObject]:
        """Replace the metadata."""
        found = await _find(context, caller, conversation_id)
        changes = decode_body(await request.body(), changes_decoder)
        check_json(changes.metadata, "metadata")
        await conversations.set_metadata(context.db, found.id, caller, changes.metadata or {})
        return await _read(context, caller, conversation_id)

    @delete("/{conversation_id:str}", status_code=200)
    async def remove(
        self, context: NamedDependency[Context], caller: NamedDependency[Caller], conversation_id: ConversationId
    ) -> Response[JsonObject]:
        """Delete the thread."""
        found = await _find(context, caller, conversation_id)
        await threads.remove(context.db, found.id, caller)
        deleted = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return Response(deleted, media_type="application/json")

    @post("/{conversation_id:str}/items", status_code=200, request_max_body_size=MAX_COMPLETION_BODY_BYTES)
    async def add_items(
        self,
        request: Request[Any, Any, Any],
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        conversation_id: ConversationId,
    ) -> Response[JsonObject]:
        """Add items at the end, without an answer to them. The result is the list of what was added."""
        found = await _find(context, caller, conversation_id)
        new = decode_body(await request.body(), items_decoder)
        added = await ConversationItems(context, caller, found.id, new.items).add(is_first=found.leaf is None)
        listed = page(added, order="asc", after=None, limit=max(len(added), 1))
        return Response(listed, media_type="application/json")

    @get("/{conversation_id:str}/items")
    async def list_items(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        conversation_id: ConversationId,
        order: Order = "desc",
        after: AfterItem = None,
        limit: Limit = 20,
    ) -> Response[JsonObject]:
        """Return a page of the items."""
        found = await _find(context, caller, conversation_id)
        listed = await ConversationReader(context, caller, found).page(order=order, after=after, limit=limit)
        return Response(listed, media_type="application/json")

    @get("/{conversation_id:str}/items/{item_id:str}")
    async def read_item(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        conversation_id: ConversationId,
        item_id: ItemId,
    ) -> Response[JsonObject]:
        """Return one item."""
        found = await _find(context, caller, conversation_id)
        _, item = await ConversationReader(context, caller, found).find(item_id)
        return Response(item, media_type="application/json")

    @delete("/{conversation_id:str}/items/{item_id:str}", status_code=200)
    async def remove_item(
        self,
        context: NamedDependency[Context],
        caller: NamedDependency[Caller],
        conversation_id: ConversationId,
        item_id: ItemId,
    ) -> Response[JsonObject]:
        """Delete the last message. The conversation then ends before it; its thread has it as another branch."""
        found = await _find(context, caller, conversation_id)
        message, _ = await ConversationReader(context, caller, found).find(item_id)
        await conversations.remove_last(context.db, found.id, caller, message.id)
        return await _read(context, caller, conversation_id)


async def _read(context: Context, caller: Caller, text: str) -> Response[JsonObject]:
    found = await _find(context, caller, text)
    body = {
        "id": text,
        "object": "conversation",
        "created_at": int(found.created_at.timestamp()),
        "metadata": found.metadata,
        "khala": {"threadId": found.id},
    }
    return Response(body, media_type="application/json")


async def _find(context: Context, caller: Caller, text: str) -> Conversation:
    require_user(caller)
    thread_id = parse_id(text, CONVERSATION_PREFIX)
    bind_contextvars(thread_id=str(thread_id))
    async with context.db.snapshot() as driver:
        try:
            return await conversations.read(driver, thread_id, caller)
        except ThreadNotFound as error:
            raise NotFound("There is no conversation with this id.") from error
