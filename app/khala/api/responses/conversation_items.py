"""Adds the items of a request to a conversation, as messages of its thread."""

from collections.abc import Sequence
from uuid import UUID

from khala.api.blobs.attached_files import AttachedFile, store_files
from khala.api.context import Context
from khala.api.openai.history import AssistantTurn, HistoryTurn, read_turns
from khala.api.openai.types import JsonObject
from khala.api.responses.input_items import convert_input
from khala.api.responses.stored_items import message_items, read_branch
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.errors import InvalidInput
from khala.domain.fold import TextBlock
from khala.store.threads import conversations
from khala.store.threads.conversation_imports import ImportedMessage

PATH = "items"


class ConversationItems:
    """Items of a request, for a thread. Raises `InvalidInput` with the path of the item that does not fit."""

    def __init__(self, context: Context, caller: Caller, thread_id: UUID, items: Sequence[JsonObject]) -> None:
        self._context = context
        self._caller = caller
        self._thread_id = thread_id
        given = convert_input(items, name=PATH)
        self._history = read_turns(given.messages, given.paths)

    @property
    def title(self) -> str | None:
        """The title of a thread with these items."""
        return self._history.title

    async def add(self, *, is_first: bool) -> list[JsonObject]:
        """Store the items as messages, and return them. Only the first items of a conversation may be instructions."""
        system = self._history.system
        if system and not is_first:
            raise InvalidInput("Instructions can only be the first items of a conversation.", path=PATH)
        new = [ImportedMessage(id=ids.new(), role="system", content=(TextBlock(text=system),))] if system else []
        new += [await self._imported(turn) for turn in self._history.turns]
        if not new:
            return []
        await conversations.append(self._context.db, self._thread_id, self._caller, new)
        added = {message.id for message in new}
        async with self._context.db.snapshot() as driver:
            branch = await read_branch(driver, self._thread_id, new[-1].id)
        return [item for message in branch if message.id in added for item in message_items(message)]

    async def _imported(self, turn: HistoryTurn) -> ImportedMessage:
        if isinstance(turn, AssistantTurn):
            return ImportedMessage(id=ids.new(), role="assistant", content=turn.blocks)
        remote = next((file for file in turn.files if not isinstance(file, AttachedFile)), None)
        if remote is not None:
            raise InvalidInput("A conversation takes images and files as data URLs only.", path=remote.path)
        files = [file for file in turn.files if isinstance(file, AttachedFile)]
        attachments = await store_files(self._context, self._caller, self._thread_id, files)
        text = (TextBlock(text=turn.text),) if turn.text else ()
        return ImportedMessage(id=ids.new(), role="user", content=text, attachments=attachments)
