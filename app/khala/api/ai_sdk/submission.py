"""Accepts a POST of the AI SDK: starts the run that answers it, or finds the run that an equal request has started."""

import contextlib
from uuid import UUID

import msgspec

from khala.api.ai_sdk import user_messages
from khala.api.ai_sdk.chunk_encoder import StreamedRun
from khala.api.ai_sdk.client_results import EarlierAnswer, earlier_answers
from khala.api.ai_sdk.types import ChatRequest, ChatRequestMessage
from khala.api.blobs.attached_files import reattachable, store_files
from khala.api.chats import chat_runs
from khala.api.chats.chat_ids import as_uuid, regenerated_id, results_id, thread_id_of
from khala.api.chats.client_results import ClientResult, check_size, newest_of_chain, settle
from khala.api.chats.questions import ApprovalReply, ChatQuestion
from khala.api.context import Context
from khala.domain.access import Action, Caller
from khala.domain.chat import RunOptions, SendResult
from khala.domain.errors import Conflict, InvalidInput, ThreadNotFound
from khala.store.postgres.database import Driver
from khala.store.runs import run_lookups
from khala.store.runs.run_lookups import FoundRun
from khala.store.sharing import access
from khala.store.threads import conversation_imports, messages, sends
from khala.store.threads.conversation_imports import ImportedMessage
from khala.store.threads.sends import SendRequest
from khala.store.tools import approvals
from khala.store.tools.approvals import ApprovalDecision

MAX_EARLIER_MESSAGES = 20
"""Messages before the question among which its parent is looked for."""


class ChatRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose answer is streamed. `queued_at` is set if it was queued just now.

    `decided` are the calls that the client has decided. It has the answer's chunks up to the pause before. `earlier`
    are the answers before, which this one continues with results of the client's own tools.
    """

    run: StreamedRun
    queued_at: int | None = None
    decided: frozenset[str] = frozenset()
    earlier: tuple[EarlierAnswer, ...] = ()


class ChatSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its caller. `anon_key` is the key that the caller sent."""

    context: Context
    caller: Caller
    request: ChatRequest
    anon_key: str | None

    @property
    def thread_id(self) -> UUID:
        """The chat's thread."""
        return thread_id_of(self.request.id, self.caller)

    async def accept(self) -> ChatRun:
        """Return the run that answers the request. Raises the errors of sending and of deciding approvals."""
        last = self.request.messages[-1]
        path = f"messages[{len(self.request.messages) - 1}]"
        if last.role == "user":
            question = user_messages.read_user_message(last, path)
            if self.request.trigger == "regenerate-message":
                return await self._regenerate(question)
            return await self._submit(question)
        if last.role == "assistant":
            if decisions := user_messages.read_decisions(last, path):
                return await self._decide(decisions)
            if results := user_messages.read_results(last, path):
                return await self._continue(last, results)
        raise InvalidInput("The last message must be a user's, or have decisions or results of tool calls.", path=path)

    async def _submit(self, question: ChatQuestion) -> ChatRun:
        try:
            found = await self._find_answer(question)
        except ThreadNotFound:
            await chat_runs.create_thread(self.context, self.caller, self.request.id, question.text, self.anon_key)
            found = None
        if found is not None:
            return ChatRun(run=streamed(found))
        request = await self._send_request(question)
        try:
            sent, new = await sends.send(self.context.db, request, self.caller, self.context.limits.sends)
        except Conflict:
            # An equal request was faster, and has stored the same files as other blobs.
            found = await self._find_answer(question)
            if found is None:
                raise
            return ChatRun(run=streamed(found))
        return _sent(sent, request.options, new=new)

    async def _regenerate(self, question: ChatQuestion) -> ChatRun:
        """Answer a stored message again. A message that the thread never got is sent."""
        async with self.context.db.snapshot() as driver:
            await access.authorize(driver, self.thread_id, self.caller, Action.SEND_MESSAGE)
            stored = await self._stored_message(driver, question)
            active = await run_lookups.newest_active(driver, self.thread_id)
            newest = None if stored is None else await run_lookups.newest_answer(driver, self.thread_id, stored)
        if stored is None:
            return await self._submit(question)
        replaced = as_uuid(self.request.message_id or "")
        if replaced in (None, stored):
            # The request does not say which answer it replaces. While one is being written, it is that one's retry.
            if active is not None and active.user_message_id == stored:
                return ChatRun(run=streamed(active))
            # Equal requests that arrive together replace the same answer, so only the first of them queues a run.
            replaced = newest.message_id if newest else stored
        answer_id = regenerated_id(replaced)
        request = SendRequest(
            thread_id=self.thread_id, message_id=stored, text="", options=await self._options(question.text)
        )
        sent, new = await sends.regenerate(self.context.db, request, answer_id, self.caller, self.context.limits.sends)
        return _sent(sent, request.options, new=new)

    async def _decide(self, decisions: list[ApprovalReply]) -> ChatRun:
        """Decide the calls, and follow their run from where it waited for the decisions."""
        run_id = decisions[0].run_id
        if any(decision.run_id != run_id for decision in decisions):
            raise InvalidInput("These decisions are about calls of several runs.", path="messages")
        async with self.context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self.caller, Action.DECIDE_APPROVAL)
            found = await run_lookups.by_id(driver, self.thread_id, run_id)
        if found is None:
            raise InvalidInput("These decisions are about calls of another chat.", path="messages")
        for decision in decisions:
            made = ApprovalDecision(approved=decision.approved, reason=decision.reason, digest=decision.digest)
            await approvals.decide(self.context.db, run_id, decision.call_id, self.caller, made)
        return ChatRun(run=streamed(found), decided=frozenset(decision.call_id for decision in decisions))

    async def _continue(self, answer: ChatRequestMessage, results: list[ClientResult]) -> ChatRun:
        """Continue an answer with the results of the client's own tools."""
        check_size(results)
        calls = [result.call_id for result in results]
        settled_id = results_id(self.thread_id, calls)
        async with self.context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self.caller, Action.SEND_MESSAGE)
            found = await run_lookups.first_answer(driver, self.thread_id, settled_id)
            if found is not None:
                return _continued(answer, found)
            waiting = await conversation_imports.find_waiting(driver, self.thread_id, self.caller, calls)
        if waiting is None:
            raise InvalidInput("The chat's newest answer has made no such call.", path="messages")
        settled = ImportedMessage(id=settled_id, role="assistant", content=settle(waiting.content, results))
        options = await self._options("")
        request = SendRequest(thread_id=self.thread_id, message_id=settled_id, text="", options=options)
        # A conflict: an equal request was faster, or the thread has continued with another message.
        with contextlib.suppress(Conflict):
            await conversation_imports.continue_answer(
                self.context.db, waiting, settled, request, self.caller, self.context.limits.sends
            )
        async with self.context.db.driver() as driver:
            found = await run_lookups.first_answer(driver, self.thread_id, settled_id)
        if found is None:
            raise Conflict("The chat has continued meanwhile.")
        return _continued(answer, found)

    async def _find_answer(self, question: ChatQuestion) -> FoundRun | None:
        """Return the run that answers the message, if the thread has both. Raises `ThreadNotFound`, `Forbidden`."""
        async with self.context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self.caller, Action.SEND_MESSAGE)
            stored = await self._stored_message(driver, question)
            return None if stored is None else await run_lookups.first_answer(driver, self.thread_id, stored)

    async def _stored_message(self, driver: Driver, question: ChatQuestion) -> UUID | None:
        possible = question.possible_ids(self.thread_id)
        found = await messages.read_messages(driver, self.thread_id, possible)
        if possible[0] in found:
            return possible[0]
        known = found.get(possible[-1])
        return known.id if known is not None and question.is_stored_as(known) else None

    async def _send_request(self, question: ChatQuestion) -> SendRequest:
        options = await self._options(question.text)
        uploads = await reattachable(self.context, self.caller, self.thread_id, question.uploads)
        stored = await store_files(self.context, self.caller, self.thread_id, question.files)
        return SendRequest(
            thread_id=self.thread_id,
            message_id=question.stored_id(self.thread_id),
            text=question.text,
            attachments=(*uploads, *stored),
            parent_id=await self._parent(question),
            options=options,
        )

    async def _parent(self, question: ChatQuestion) -> UUID | msgspec.UnsetType | None:
        """Return the nearest earlier message of the client's list that the thread has; by default its active leaf."""
        earlier = self.request.messages[-2 : -2 - MAX_EARLIER_MESSAGES : -1]
        possible = [one for message in earlier for one in user_messages.possible_ids(message, self.thread_id)]
        if possible:
            async with self.context.db.driver() as driver:
                found = await messages.read_messages(driver, self.thread_id, possible)
                parent = next((found[one] for one in possible if one in found), None)
                if parent is not None:
                    return await newest_of_chain(driver, parent)
        return None if self.request.message_id == question.client_id else msgspec.UNSET

    async def _options(self, text: str) -> RunOptions:
        return await chat_runs.checked_options(self.context, self.caller, self.request.options, text, self.thread_id)


def streamed(found: FoundRun) -> StreamedRun:
    """Return the facts that the run's chunks need."""
    return StreamedRun(
        thread_id=found.thread_id, run_id=found.id, message_id=found.message_id, functions=found.functions
    )


def _continued(answer: ChatRequestMessage, found: FoundRun) -> ChatRun:
    """Return the run with the id of the client's message, which it continues."""
    run = streamed(found)
    return ChatRun(run=msgspec.structs.replace(run, message_id=as_uuid(answer.id) or run.message_id))


async def resumed(context: Context, found: FoundRun) -> ChatRun:
    """Return the run to be streamed from the beginning of its message."""
    async with context.db.driver() as driver:
        earlier = await earlier_answers(driver, found)
    run = streamed(found)
    if earlier:
        run = msgspec.structs.replace(run, message_id=earlier[0].run.message_id)
    return ChatRun(run=run, earlier=earlier)


def _sent(sent: SendResult, options: RunOptions, *, new: bool) -> ChatRun:
    run = StreamedRun(
        thread_id=sent.thread_id,
        run_id=sent.run_id,
        message_id=sent.assistant_message_id,
        functions=options.client_tools,
    )
    return ChatRun(run=run, queued_at=sent.revision if new else None)
