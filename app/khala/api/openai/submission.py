"""Submits a completion request: stores its messages in a new or a given thread, and queues the run that answers."""

from collections.abc import Mapping, Sequence
from uuid import UUID, uuid5

import msgspec
import structlog

from khala.api.accounts.authentication import require_user
from khala.api.agents.catalog import choose_agent, resolve_agent
from khala.api.blobs import remote_files
from khala.api.blobs.attached_files import AttachedFile, store_files
from khala.api.blobs.remote_files import RemoteFile
from khala.api.context import Context
from khala.api.openai.completion_options import AGENT_HEADER, CompletionOptions
from khala.api.openai.history import AssistantTurn, History, HistoryTurn, UserTurn, complete_call
from khala.api.validation import check_message_text
from khala.domain import ids
from khala.domain.access import Caller
from khala.domain.agents import AUTO
from khala.domain.chat import ResponseRequest, RunOptions, SendResult, StoredRunOptions
from khala.domain.errors import BudgetExhausted, InvalidInput, KhalaError, RateLimited
from khala.domain.fold import Block, TextBlock, ToolBlock
from khala.store.runs import completion_requests, runs
from khala.store.runs.completion_requests import AcceptedRequest
from khala.store.threads import conversation_imports, sends, threads
from khala.store.threads.conversation_imports import Continuation, ConversationImport, ImportedMessage
from khala.store.threads.sends import SendRequest

log = structlog.get_logger()


class ContinuedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The message after which a conversation continues, on any branch; no `leaf` in a thread without messages.

    With `completed`, this copy of it, which has the results of its calls, replaces it.
    """

    thread_id: UUID
    leaf: UUID | None
    parent_id: UUID | None = None
    completed: ImportedMessage | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to answer.

    With `after`, all of its turns continue a thread after that answer; there are none if only calls have returned.
    `response` is set for a request of the Responses API.
    """

    context: Context
    caller: Caller
    history: History
    options: CompletionOptions
    after: ContinuedAnswer | None = None
    response: ResponseRequest | None = None

    async def submit(self) -> AcceptedRequest:
        """Queue the answer, or join the run that an equal request started. Raises the errors of sending."""
        identity = self.options.identity
        if identity is None:
            return AcceptedRequest(sent=await self.send())
        joined = await completion_requests.join(self.context.db, identity) if identity.may_be_known else None
        if joined is not None:
            return joined
        try:
            return AcceptedRequest(sent=await self.send(), attempt=identity.attempt)
        except KhalaError:
            # A concurrent equal request was faster, or this one was stored and its commit was not confirmed.
            joined = await completion_requests.join(self.context.db, identity)
            if joined is None:
                raise
            return joined

    async def add_choices(self, accepted: AcceptedRequest) -> tuple[SendResult, ...]:
        """Queue the answers of further choices beside the first one, as other answers to the same message.

        A retry joins them, too: their ids follow from the first run's. If one cannot be queued, all are canceled,
        unless they are another request's as well.
        """
        first, text = accepted.sent, _text(self.history.turns[-1])
        added: list[SendResult] = []
        for index in range(1, self.options.choices):
            options = msgspec.structs.replace(await self._run_options(text), if_busy="queue")
            question = SendRequest(
                thread_id=first.thread_id, message_id=first.user_message_id, text="", options=options
            )
            answer_id = uuid5(first.run_id, f"choice {index}")
            try:
                sent, _ = await sends.regenerate(
                    self.context.db,
                    question,
                    answer_id,
                    self.caller,
                    self.context.limits.sends,
                    beside=first.run_id,
                )
            except KhalaError as error:
                await self._cancel(accepted, added)
                if isinstance(error, RateLimited | BudgetExhausted):
                    raise self._too_many(error) from error
                raise
            added.append(sent)
        return tuple(added)

    async def _cancel(self, accepted: AcceptedRequest, further: Sequence[SendResult]) -> None:
        """Cancel the runs of a request that fails, unless another request joined them or queued them before."""
        if accepted.joined:
            return
        db, run_id = self.context.db, accepted.sent.run_id
        try:
            if self.options.identity is None or await completion_requests.release(db, accepted):
                for queued in (*reversed(further), accepted.sent):
                    await runs.cancel(db, queued.run_id, self.caller)
        except KhalaError as error:
            log.warning("run_cancel_failed", run_id=str(run_id), error=error.message)

    def _too_many(self, error: RateLimited | BudgetExhausted) -> KhalaError:
        message = f"n asks for {self.options.choices} answers at once. {error.message}"
        return type(error)(message, limit=error.limit, retry_after=error.retry_after)

    async def send(self) -> SendResult:
        """Store the new messages of the conversation, and queue the answer, without joining another run."""
        last = self.history.turns[-1] if self.history.turns else None
        if isinstance(last, UserTurn):
            if not last.files and not last.text.strip():
                raise InvalidInput("A message needs text.", path="messages")
            check_message_text(last.text, may_be_empty=True)
        thread_id = self.options.thread_id
        # Fetched before anything is stored. In a thread that continues, only the last message is sent.
        is_whole = thread_id is None or self.after is not None
        turns = self.history.turns if is_whole else self.history.turns[-1:]
        remote = [
            file for turn in turns if isinstance(turn, UserTurn) for file in turn.files if isinstance(file, RemoteFile)
        ]
        if remote:
            fetched = await remote_files.fetch(self.context.tools.registry.fetch_client, remote)
            history = _with_files(self.history, fetched)
            return await msgspec.structs.replace(self, history=history).send()
        if self.after is not None:
            return await self._continue_after(self.after)
        if thread_id is None:
            return await self._create_thread()
        if isinstance(last, UserTurn):
            request = await self._send_request(thread_id, last)
            sent, _ = await sends.send(self.context.db, request, self.caller, self.context.limits.sends)
            return sent
        return await self._continue_answer(thread_id)

    async def _continue_after(self, after: ContinuedAnswer) -> SendResult:
        turns = self.history.turns
        last = turns[-1] if turns else None
        before = turns[:-1] if isinstance(last, UserTurn) else turns
        continuation = Continuation(
            leaf=after.leaf,
            parent_id=after.parent_id,
            completed=after.completed,
            history=[await self._imported(after.thread_id, turn) for turn in before],
            has_question=isinstance(last, UserTurn),
        )
        question = last if isinstance(last, UserTurn) else UserTurn(text="")
        request = await self._send_request(after.thread_id, question)
        return await conversation_imports.continue_after(
            self.context.db, continuation, request, self.caller, self.context.limits.sends
        )

    async def _create_thread(self) -> SendResult:
        thread_id, db = ids.new(), self.context.db
        if not any(isinstance(turn, UserTurn) and turn.files for turn in self.history.turns):
            return await self._import_conversation(thread_id)
        # Files need an existing thread. If the import fails, the thread is removed before any client gets its id.
        title, lifetime = self.history.title, self.options.lifetime
        await threads.create(db, thread_id, self.caller, title=title, welcome="", lifetime=lifetime)
        try:
            return await self._import_conversation(thread_id)
        except KhalaError:
            await threads.remove(db, thread_id, self.caller)
            raise

    async def _import_conversation(self, thread_id: UUID) -> SendResult:
        *before, last = self.history.turns
        has_question = isinstance(last, UserTurn)
        instructions = self.history.system
        system = [ImportedMessage(role="system", content=(TextBlock(text=instructions),))] if instructions else []
        earlier = [await self._imported(thread_id, turn) for turn in (before if has_question else self.history.turns)]
        question = last if isinstance(last, UserTurn) else UserTurn(text="")
        conversation = ConversationImport(
            title=self.history.title,
            history=[*system, *earlier],
            question=await self._send_request(thread_id, question),
            has_question=has_question,
            lifetime=self.options.lifetime,
        )
        limits = self.context.limits.sends
        return await conversation_imports.start(self.context.db, conversation, self.caller, limits)

    async def _continue_answer(self, thread_id: UUID) -> SendResult:
        """Continue the newest answer with the results of its calls. The continued answer replaces it."""
        results = self.history.results
        async with self.context.db.driver() as driver:
            waiting = await conversation_imports.find_waiting(driver, thread_id, self.caller, list(results))
        if waiting is None:
            raise InvalidInput("The thread's newest answer has made no such call.", path="messages")
        blocks = tuple(_with_result(block, results) for block in waiting.content)
        completed = ImportedMessage(role="assistant", content=blocks)
        request = await self._send_request(thread_id, UserTurn(text=""))
        return await conversation_imports.continue_answer(
            self.context.db, waiting, completed, request, self.caller, self.context.limits.sends
        )

    async def _send_request(self, thread_id: UUID, turn: UserTurn) -> SendRequest:
        return SendRequest(
            thread_id=thread_id,
            message_id=ids.new(),
            text=turn.text,
            attachments=await self._store_files(thread_id, turn.files),
            options=await self._run_options(turn.text),
            request=self.options.identity,
        )

    async def _run_options(self, task: str) -> RunOptions:
        run = self.options.run
        if run.agent == AUTO:
            chosen = await choose_agent(self.context, self.caller, run, task, require_user(self.caller))
        else:
            chosen = await resolve_agent(self.context, self.caller, run, path=AGENT_HEADER)
        if self.response is None:
            return chosen
        fields = {name: getattr(chosen, name) for name in chosen.__struct_fields__}
        return StoredRunOptions(**fields | {"response": self.response})

    async def _imported(self, thread_id: UUID, turn: HistoryTurn) -> ImportedMessage:
        if isinstance(turn, AssistantTurn):
            return ImportedMessage(role="assistant", content=turn.blocks)
        text = (TextBlock(text=turn.text),) if turn.text else ()
        attachments = await self._store_files(thread_id, turn.files)
        return ImportedMessage(role="user", content=text, attachments=attachments)

    async def _store_files(self, thread_id: UUID, files: Sequence[AttachedFile | RemoteFile]) -> tuple[UUID, ...]:
        given = [file for file in files if isinstance(file, AttachedFile)]
        return await store_files(self.context, self.caller, thread_id, given)


def _text(turn: HistoryTurn) -> str:
    return turn.text if isinstance(turn, UserTurn) else ""


def _with_files(history: History, fetched: Mapping[str, AttachedFile]) -> History:
    """The history with the fetched files in their places."""
    turns = [
        msgspec.structs.replace(turn, files=tuple(fetched.get(file.path, file) for file in turn.files))
        if isinstance(turn, UserTurn)
        else turn
        for turn in history.turns
    ]
    return msgspec.structs.replace(history, turns=turns)


def _with_result(block: Block, results: Mapping[str, str]) -> Block:
    if isinstance(block, ToolBlock) and block.tool_call_id in results:
        return complete_call(block, results[block.tool_call_id])
    return block
