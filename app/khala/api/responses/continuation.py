"""Finds the answer that a request for a response continues, and the calls whose results it waits for."""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from khala.api.context import Context
from khala.api.openai.history import complete_call
from khala.api.openai.submission import ContinuedAnswer
from khala.api.responses.response_header import CONVERSATION_PREFIX, RESPONSE_PREFIX, parse_id
from khala.api.responses.types import ResponseBody
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.chat import ACTIVE, Message
from khala.domain.errors import Conflict, Forbidden, NotFound, RunNotFound
from khala.domain.fold import Block, Content, ToolBlock
from khala.domain.parts import HANDED_OVER
from khala.store.postgres.database import Driver
from khala.store.runs import response_runs
from khala.store.threads import messages
from khala.store.threads.conversation_imports import ImportedMessage


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The message that a request continues, and the run that wrote it. An empty thread has no message."""

    thread_id: UUID
    message: Message | None = None
    run_id: UUID | None = None
    is_conversation: bool
    open_calls: tuple[str, ...] = ()

    def answer(self, results: Mapping[str, str]) -> ContinuedAnswer:
        """Return the answer to continue, with these results of its calls."""
        if self.message is None:
            return ContinuedAnswer(thread_id=self.thread_id, leaf=None)
        blocks = tuple(_with_result(block, results) for block in self.message.content or ())
        completed = ImportedMessage(id=ids.new(), role="assistant", content=blocks) if results else None
        return ContinuedAnswer(
            thread_id=self.thread_id, leaf=self.message.id, parent_id=self.message.parent_id, completed=completed
        )


async def find_continued(
    request: ResponseBody, thread_id: UUID | None, context: Context, caller: Caller
) -> Continued | None:
    """Return the message that the request continues: a response, or the thread of a conversation or of a header.

    None without one. Raises `NotFound`, and `Conflict` for a response that has not ended.
    """
    if request.previous_response_id is not None:
        run_id = parse_id(request.previous_response_id, RESPONSE_PREFIX)
        async with context.db.snapshot() as driver:
            try:
                return await _after_run(driver, run_id, caller, is_conversation=False)
            except RunNotFound as error:
                raise NotFound("There is no response with this id.") from error
    if request.conversation is not None:
        given = request.conversation if isinstance(request.conversation, str) else request.conversation.id
        thread_id = parse_id(given, CONVERSATION_PREFIX)
    if thread_id is None:
        return None
    async with context.db.snapshot() as driver:
        leaf = await response_runs.read_leaf(driver, thread_id, caller)
        if leaf is None:
            return Continued(thread_id=thread_id, is_conversation=True)
        message = (await messages.read_messages(driver, thread_id, [leaf]))[leaf]
        if message.run_id is not None:
            return await _after_run(driver, message.run_id, caller, is_conversation=True)
        return Continued(thread_id=thread_id, message=message, is_conversation=True)


async def _after_run(driver: Driver, run_id: UUID, caller: Caller, *, is_conversation: bool) -> Continued:
    found = await response_runs.read(driver, run_id, caller)
    run = found.run
    if run.status in ACTIVE:
        raise Conflict("The response has not ended. Wait for it, or cancel it.")
    message = (await messages.read_messages(driver, run.thread_id, [run.message_id]))[run.message_id]
    functions = {function.name for function in found.options.functions}
    open_calls = _open_calls(message.content or (), functions)
    if open_calls and not found.is_requester:
        raise Forbidden("Only the requester may return the results of their own tools.")
    return Continued(
        thread_id=run.thread_id,
        message=message,
        run_id=run_id,
        is_conversation=is_conversation,
        open_calls=open_calls,
    )


def _open_calls(content: Content, functions: set[str]) -> tuple[str, ...]:
    """The calls that were handed to the client."""
    calls = (block for block in content if isinstance(block, ToolBlock) and block.tool in functions)
    return tuple(call.tool_call_id for call in calls if call.summary == HANDED_OVER and call.output is None)


def _with_result(block: Block, results: Mapping[str, str]) -> Block:
    if isinstance(block, ToolBlock) and block.tool_call_id in results:
        return complete_call(block, results[block.tool_call_id])
    return block
