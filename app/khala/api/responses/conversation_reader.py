"""Reads the items of a conversation: messages as they are stored, and answers as the output of their responses."""

from collections.abc import Sequence
from uuid import UUID

from khala.api.context import Context
from khala.api.openai.types import JsonObject
from khala.api.responses.response_reader import ResponseReader
from khala.api.responses.stored_items import message_items, page, read_branch
from khala.domain.access import Caller
from khala.domain.chat import Message
from khala.domain.errors import InvalidInput, NotFound, RunNotFound
from khala.domain.fold import ToolBlock
from khala.store.runs import response_runs
from khala.store.threads import messages
from khala.store.threads.conversations import Conversation


class ConversationReader:
    """Reads one conversation for one caller. The items of a response have the same ids as in its `output`."""

    def __init__(self, context: Context, caller: Caller, conversation: Conversation) -> None:
        self._context = context
        self._caller = caller
        self._conversation = conversation

    async def page(self, *, order: str, after: str | None, limit: int) -> JsonObject:
        """Return a page of the items. Raises `InvalidInput` if no item has the id `after`."""
        branch = await self._branch()
        rest = branch if order == "asc" else [*reversed(branch)]
        listed: list[JsonObject] = []
        if after is not None:
            at, items = await self._locate(rest, after)
            if at is None:
                raise InvalidInput("No item has this id.", path="after")
            rest = rest[at + 1 :]
            listed = _after(_ordered(items, order), after)
        for message in rest:
            if len(listed) > limit:
                break
            listed += _ordered(await self._items(message), order)
        return page(listed, order="asc", after=None, limit=limit)

    async def find(self, item_id: str) -> tuple[Message, JsonObject]:
        """Return the item, and its message. Raises `NotFound`."""
        branch = await self._branch()
        at, items = await self._locate(branch, item_id)
        if at is None:
            raise NotFound("There is no item with this id in the conversation.")
        return branch[at], next(item for item in items if item["id"] == item_id)

    async def _branch(self) -> list[Message]:
        if self._conversation.leaf is None:
            return []
        async with self._context.db.snapshot() as driver:
            return await read_branch(driver, self._conversation.id, self._conversation.leaf)

    async def _locate(self, branch: Sequence[Message], item_id: str) -> tuple[int | None, list[JsonObject]]:
        """Return the index of the message that has this item, and the message's items; None without one."""
        owner = _owner(item_id)
        for index, message in enumerate(branch if owner is not None else ()):
            if owner == message.id or owner == await self._run_of(message):
                items = await self._items(message)
                return (index if any(item["id"] == item_id for item in items) else None), items
        return None, []

    async def _items(self, message: Message) -> list[JsonObject]:
        run_id = await self._run_of(message)
        stored = [*message_items(message)]
        if run_id is None:
            return stored
        try:
            async with self._context.db.snapshot() as driver:
                found = await response_runs.read(driver, run_id, self._caller)
        except RunNotFound:
            return stored
        output = await ResponseReader(self._context, self._caller, found).items()
        if run_id == message.run_id:
            return output
        calls = {item["call_id"] for item in output if item["type"] == "function_call"}
        return output + [item for item in stored if item["type"] == "function_call_output" and item["call_id"] in calls]

    async def _run_of(self, message: Message) -> UUID | None:
        """Return the run that wrote the answer, or the one of which it is a copy with the results of its calls."""
        calls = _calls(message)
        if message.run_id is not None:
            return message.run_id
        if message.role != "assistant" or not calls:
            return None
        async with self._context.db.snapshot() as driver:
            earlier = await messages.read_earlier_answers(driver, message)
        return next((answer.run_id for answer in earlier if answer.run_id and _calls(answer) == calls), None)


def _owner(item_id: str) -> UUID | None:
    """Return the id of the message or the run in the id of an item; None for an id that this server never makes."""
    try:
        return UUID(hex=item_id.split("_")[1])
    except (IndexError, ValueError):
        return None


def _calls(message: Message) -> list[str]:
    return [block.tool_call_id for block in message.content or () if isinstance(block, ToolBlock)]


def _ordered(items: list[JsonObject], order: str) -> list[JsonObject]:
    return items if order == "asc" else items[::-1]


def _after(items: list[JsonObject], item_id: str) -> list[JsonObject]:
    at = next(index for index, item in enumerate(items) if item["id"] == item_id)
    return items[at + 1 :]
