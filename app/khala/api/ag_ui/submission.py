"""Accepts a request of AG-UI: starts the run, or finds the run that an equal request has started.

The client's id of the run gives the id of the answer. So a request that arrives again with the same id finds the run
of the first, and never starts another one.
"""

import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from khala.api.ag_ui import input_messages
from khala.api.ag_ui.event_encoder import EventedRun
from khala.api.ag_ui.types import AgentRequest
from khala.api.blobs.attached_files import store_files
from khala.api.chats import chat_runs
from khala.api.chats.chat_ids import answer_id_of, results_id, thread_id_of
from khala.api.chats.client_results import ClientResult, check_size, newest_of_chain, settle
from khala.api.chats.questions import ApprovalReply, ChatQuestion
from khala.api.context import Context
from khala.api.runs.edited_arguments import check_edited_args
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


class AgentRun(msgspec.Struct, frozen=True, kw_only=True):
    """The run whose answer is streamed. `queued_at` is set if it was queued just now.

    `decided` are the calls that the client has decided. It has the answer's events up to the pause before. `state` and
    `history` are the client's.
    """

    run: EventedRun
    queued_at: int | None = None
    decided: frozenset[str] = frozenset()
    state: dict[str, Any] = {}
    history: tuple[dict[str, Any], ...] = ()
    reason: str = "tool_call"
    """The reason of interrupts. TanStack AI has a name of its own."""


class AgentSubmission:
    """A request and its caller. `anon_key` is the key that the caller sent."""

    def __init__(self, context: Context, caller: Caller, request: AgentRequest, anon_key: str | None) -> None:
        self._context = context
        self._caller = caller
        self._request = request
        self._anon_key = anon_key
        self._messages = input_messages.read_messages(request.messages)
        self.thread_id = thread_id_of(request.thread_id, caller)
        self._answer_id = answer_id_of(caller.author_id or self.thread_id, request.run_id)

    async def accept(self) -> AgentRun:
        """Return the run that answers the request. Raises the errors of sending and of deciding approvals."""
        if self._request.resume is not None:
            return await self._decide(input_messages.read_decisions(self._request.resume))
        started = await self._find_started()
        if started is not None:
            return self._found(started)
        results = input_messages.read_results(self._messages)
        if results:
            return await self._continue(results)
        path = f"messages[{len(self._messages) - 1}]"
        last = self._messages[-1] if self._messages else None
        if last is None or last.role != "user":
            raise InvalidInput("The last message must be a user's, or the result of a tool call.", path="messages")
        return await self._answer(input_messages.read_question(last, path))

    async def _find_started(self) -> FoundRun | None:
        """Return the run that an equal request has started."""
        async with self._context.db.driver() as driver:
            with contextlib.suppress(ThreadNotFound):
                await access.authorize(driver, self.thread_id, self._caller, Action.SEND_MESSAGE)
            found = await run_lookups.by_answer(driver, self._answer_id)
            if found is not None and found.thread_id != self.thread_id:
                # The client counts its runs in each thread. A run with such an id can't be joined without its thread.
                self._answer_id = answer_id_of(self.thread_id, self._request.run_id)
                found = await run_lookups.by_answer(driver, self._answer_id)
        return found

    async def _answer(self, question: ChatQuestion) -> AgentRun:
        try:
            stored = await self._find_message(question)
        except ThreadNotFound:
            chat_id = self._request.thread_id
            await chat_runs.create_thread(self._context, self._caller, chat_id, question.text, self._anon_key)
            stored = None
        try:
            return await (self._send(question) if stored is None else self._answer_again(question, stored))
        except Conflict:
            # An equal request was faster.
            started = await self._find_started()
            if started is None:
                raise
            return self._found(started)

    async def _send(self, question: ChatQuestion) -> AgentRun:
        options = await self._options(question.text)
        uploads = await store_files(self._context, self._caller, self.thread_id, question.files)
        request = SendRequest(
            thread_id=self.thread_id,
            message_id=question.stored_id(self.thread_id),
            text=question.text,
            attachments=(*question.uploads, *uploads),
            parent_id=await self._parent(),
            options=options,
            answer_id=self._answer_id,
        )
        sent, new = await sends.send(self._context.db, request, self._caller, self._context.limits.sends)
        if sent.assistant_message_id != self._answer_id:
            return await self._answer_again(question, request.message_id)
        return self._sent(sent, options, new=new)

    async def _answer_again(self, question: ChatQuestion, stored: UUID) -> AgentRun:
        options = await self._options(question.text)
        request = SendRequest(thread_id=self.thread_id, message_id=stored, text="", options=options)
        sent, new = await sends.regenerate(
            self._context.db, request, self._answer_id, self._caller, self._context.limits.sends
        )
        return self._sent(sent, options, new=new)

    async def _find_message(self, question: ChatQuestion) -> UUID | None:
        """Return the message, if the thread has it. Raises `ThreadNotFound`, `Forbidden`."""
        possible = question.possible_ids(self.thread_id)
        async with self._context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self._caller, Action.SEND_MESSAGE)
            found = await messages.read_messages(driver, self.thread_id, possible)
        return next((one for one in possible if one in found), None)

    async def _parent(self) -> UUID | msgspec.UnsetType:
        """Return the nearest earlier message of the client's list that the thread has; by default its active leaf."""
        earlier = self._messages[-2 : -2 - MAX_EARLIER_MESSAGES : -1]
        possible = [one for message in earlier for one in input_messages.possible_ids(message, self.thread_id)]
        if possible:
            async with self._context.db.driver() as driver:
                found = await messages.read_messages(driver, self.thread_id, possible)
                parent = next((found[one] for one in possible if one in found), None)
                if parent is not None:
                    return await newest_of_chain(driver, parent)
        return msgspec.UNSET

    async def _decide(self, decisions: list[ApprovalReply]) -> AgentRun:
        """Decide the calls, and follow their run from where it waited for the decisions."""
        run_id = decisions[0].run_id
        async with self._context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self._caller, Action.DECIDE_APPROVAL)
            found = await run_lookups.by_id(driver, self.thread_id, run_id)
        if found is None:
            raise InvalidInput("These interrupts are of another thread.", path="resume")
        for decision in decisions:
            await self._decide_call(decision)
        return self._found(found, decided=frozenset(decision.call_id for decision in decisions))

    async def _decide_call(self, reply: ApprovalReply) -> None:
        db, caller = self._context.db, self._caller
        if reply.edited_args is not None:
            question = await approvals.get_question(db, reply.run_id, reply.call_id, caller)
            await check_edited_args(question, reply.edited_args)
        made = ApprovalDecision(
            approved=reply.approved, reason=reply.reason, digest=reply.digest, edited_args=reply.edited_args
        )
        await approvals.decide(db, reply.run_id, reply.call_id, caller, made)

    async def _continue(self, results: list[ClientResult]) -> AgentRun:
        """Continue an answer with the results of the client's own tools."""
        async with self._context.db.driver() as driver:
            await access.authorize(driver, self.thread_id, self._caller, Action.SEND_MESSAGE)
            owned = await self._own_results(driver, results)
            check_size(owned)
            calls = [result.call_id for result in owned]
            waiting = await conversation_imports.find_waiting(driver, self.thread_id, self._caller, calls)
        if waiting is None or not owned:
            raise InvalidInput("The thread's newest answer has made no such call.", path="messages")
        settled_id = results_id(self.thread_id, calls)
        settled = ImportedMessage(id=settled_id, role="assistant", content=settle(waiting.content, owned))
        options = await self._options("")
        request = SendRequest(
            thread_id=self.thread_id, message_id=settled_id, text="", options=options, answer_id=self._answer_id
        )
        limits = self._context.limits.sends
        # A conflict: an equal request was faster, or the thread has continued with another message.
        with contextlib.suppress(Conflict):
            await conversation_imports.continue_answer(
                self._context.db, waiting, settled, request, self._caller, limits
            )
        started = await self._find_started()
        if started is None:
            raise Conflict("The thread has continued meanwhile.")
        return self._found(started)

    async def _own_results(self, driver: Driver, results: list[ClientResult]) -> list[ClientResult]:
        """Return the results of the calls that the thread's newest answer has handed to the client."""
        handed = await conversation_imports.find_handed_over(driver, self.thread_id)
        return [result for result in results if result.call_id in handed]

    async def _options(self, text: str) -> RunOptions:
        return await chat_runs.checked_options(self._context, self._caller, self._given_options(), text, self.thread_id)

    def _given_options(self) -> Mapping[str, Any]:
        """Return the options, with the client's tools as functions, and its context as instructions."""
        props = self._request.forwarded_props
        given = props.get("options", {}) if isinstance(props, dict) else {}
        if not isinstance(given, dict):
            raise InvalidInput("The options are an object.", path="forwardedProps.options")
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}}
            for tool in self._request.tools
        ]
        context = [f"{item.description}: {item.value}" for item in self._request.context]
        added = [*input_messages.read_instructions(self._messages), *context]
        options = {**given, "functions": tools} if tools else dict(given)
        instructions = given.get("instructions", "")
        if added and isinstance(instructions, str):  # Others are refused with all options.
            options["instructions"] = "\n\n".join([*filter(None, [instructions]), *added])
        return options

    def _sent(self, sent: SendResult, options: RunOptions, *, new: bool) -> AgentRun:
        run = EventedRun(
            thread_id=sent.thread_id,
            run_id=sent.run_id,
            message_id=sent.assistant_message_id,
            thread_name=self._request.thread_id,
            run_name=self._request.run_id,
            functions=options.client_tools,
        )
        return self._run(run, queued_at=sent.revision if new else None)

    def _found(self, found: FoundRun, decided: frozenset[str] = frozenset()) -> AgentRun:
        return self._run(evented(found, self._request.thread_id, self._request.run_id), decided=decided)

    def _run(self, run: EventedRun, **more: Any) -> AgentRun:
        request = self._request
        state = request.state if isinstance(request.state, dict) else {}
        reason = "tool_call" if request.protocol_version is not None else "approval_required"
        return AgentRun(run=run, state=state, history=tuple(request.messages), reason=reason, **more)


def evented(found: FoundRun, thread_name: str, run_name: str) -> EventedRun:
    """Return the facts that the run's events need."""
    return EventedRun(
        thread_id=found.thread_id,
        run_id=found.id,
        message_id=found.message_id,
        functions=found.functions,
        thread_name=thread_name,
        run_name=run_name,
    )
